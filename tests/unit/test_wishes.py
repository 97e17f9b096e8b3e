import pytest

from checkpoint_replicator.ids import Epoch, Step
from checkpoint_replicator.save import Save
from checkpoint_replicator.wishes import Branch, Forced


def save(epoch: int, step: int) -> Save:
    return Save(Epoch(epoch), Step(step))


@pytest.mark.parametrize(
    ("forced", "text"),
    [
        (Forced(none=True), "a fresh start"),
        (Forced(save=save(1, 5)), "save 1.5"),
        (Forced(backup="2026-01-01_00-00"), "backup 2026-01-01_00-00"),
    ],
)
def test_an_ordered_restore_says_what_it_wants(forced: Forced, text: str) -> None:
    assert str(forced) == text


def test_a_new_line_outdoes_only_what_is_newer_than_what_was_restored() -> None:
    branch = Branch(epoch=Epoch(3), save=save(1, 5))
    assert branch.outdid(save(1, 6))
    assert branch.outdid(save(2, 1))
    assert not branch.outdid(save(1, 5))
    assert not branch.outdid(save(3, 1))
    assert branch.bears(save(3, 0))
    assert branch.bears(save(4, 0))
    assert not branch.bears(save(2, 9))


def test_a_fresh_start_outdoes_all_that_was_before() -> None:
    branch = Branch(epoch=Epoch(3))
    assert branch.outdid(save(0, 0))
    assert not branch.outdid(save(3, 0))
