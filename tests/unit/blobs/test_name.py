import pytest

from checkpoint_replicator.blobs.name import is_name_part, name_fault, name_parts
from checkpoint_replicator.errors import ProtocolError


def test_an_ordinary_name_has_no_fault() -> None:
    assert name_fault("job/2026-01-02_03-04/Dab.data/.metadata") is None
    assert name_parts("job/x/ö y") == ("job", "x", "ö y")


def test_only_the_first_part_is_kept_for_the_store() -> None:
    assert name_fault("a/.blobs/b") is None
    assert name_fault(".blobs") == "begins with .blobs, which the store keeps for itself"


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("a/../b", "has the part '..'"),
        ("/a", "has the part ''"),
        ("a\nb", "control character"),
        ("\udcff", "is not UTF-8"),
        ("x" * 2000, "has 2000 bytes, expected at most 1024"),
        ("a/" + "ö" * 128, "a part of 256 bytes, expected at most 255"),
    ],
)
def test_the_error_says_what_is_wrong(name: str, fault: str) -> None:
    with pytest.raises(ProtocolError) as raised:
        name_parts(name)
    assert fault in str(raised.value)


@pytest.mark.parametrize("text", ["a", ".blobs", "ö y", ".metadata"])
def test_what_may_stand_between_two_slashes(text: str) -> None:
    assert is_name_part(text)


@pytest.mark.parametrize("text", ["", ".", "..", "a/b", "new\nline", "\udcff", "x" * 256])
def test_what_no_object_may_have_in_its_name(text: str) -> None:
    assert not is_name_part(text)
