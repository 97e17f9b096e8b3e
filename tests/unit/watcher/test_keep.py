"""What a keep list lets a node delete."""

from checkpoint_replicator.fence import ZERO
from checkpoint_replicator.messages import Held
from checkpoint_replicator.records import KeepList
from checkpoint_watcher.keep import droppable
from support.watcher_story import save, tag

HELD = [Held(tag=tag(step), own=True) for step in (1, 2, 3, 4, 5)]


def dropped(*keep: int, upto: int | None = None, drop: tuple[int, ...] = (), busy: tuple[int, ...] = ()) -> list[int]:
    record = KeepList(
        stamp=ZERO,
        upto=None if upto is None else save(upto),
        keep=tuple(save(step) for step in keep),
        drop=tuple(save(step) for step in drop),
    )
    return [tag.save.step for tag in droppable(HELD, record, {save(step) for step in busy})]


def test_an_empty_list_drops_nothing() -> None:
    assert dropped() == []


def test_saves_up_to_the_committed_one_go_unless_they_are_kept() -> None:
    assert dropped(1, 3, upto=3) == [2]


def test_newer_saves_go_only_by_name() -> None:
    assert dropped(3, upto=3, drop=(4,)) == [1, 2, 4]


def test_the_newest_committed_save_stays_whatever_the_list_says() -> None:
    assert dropped(upto=3, drop=(3,)) == [1, 2]


def test_what_is_in_use_stays() -> None:
    assert dropped(3, upto=3, drop=(4,), busy=(1, 4)) == [2]


def test_saves_of_an_older_epoch_are_older() -> None:
    old = Held(tag=tag(100, epoch=0), own=True)
    assert droppable([old], KeepList(stamp=ZERO, upto=save(1)), ()) == (old.tag,)


def test_under_a_hold_nothing_goes() -> None:
    record = KeepList(stamp=ZERO, upto=save(3), keep=(save(3),), drop=(save(5),), hold=True)
    assert droppable(HELD, record, ()) == ()
