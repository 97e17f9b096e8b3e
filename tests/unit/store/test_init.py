import msgspec
import pytest

from checkpoint_replicator.store import Delete, SetHash


def test_a_change_is_a_value() -> None:
    assert SetHash("epoch", {"a": "b"}) == SetHash("epoch", {"a": "b"}, replace=False)
    with pytest.raises(AttributeError):
        Delete("epoch").key = "keep"  # type: ignore[misc]


def test_changes_can_be_logged_and_replayed() -> None:
    change = SetHash("epoch", {"a": "b"}, replace=True)
    assert msgspec.json.decode(msgspec.json.encode(change), type=SetHash) == change
