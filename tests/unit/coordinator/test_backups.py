"""When a backup is due."""

from checkpoint_coordinator.backups import Interval, LastBackup, due, interval_of
from checkpoint_replicator.ids import Epoch, Job, Rank, Step
from checkpoint_replicator.save import Save
from checkpoint_replicator.session import SessionSpec
from checkpoint_replicator.shape import Shape

JOB = Job("run")
SHAPE = Shape(2, 1, 1, "pytorch")
NAME = "2023-11-14_22-13"


def save(step: int) -> Save:
    return Save(Epoch(1), Step(step))


LAST = LastBackup(name=NAME, save=save(10), verified_at=1000.0)


def test_a_backup_is_due_by_age_by_steps_and_on_request() -> None:
    by_age, by_steps = Interval(30, None), Interval(None, 5)
    assert due(save(1), None, 0, by_age, ()) == "no verified backup yet"
    assert due(save(10), LAST, 9e9, by_age, ()) == ""
    assert due(save(11), LAST, 1000 + 1799, by_age, ()) == ""
    assert due(save(11), LAST, 1000 + 1800, by_age, ()) == "the last verified one is 30 minutes old"
    assert due(save(11), LAST, 0, by_age, ()) != ""
    assert due(save(14), LAST, 9e9, by_steps, ()) == ""
    assert due(save(15), LAST, 0, by_steps, ()) == "the last verified one is 5 steps behind"
    assert due(save(11), LAST, 1000, by_age, [save(11)]) == "requested with save 1.11"
    assert due(save(11), LAST, 1000, by_age, [save(9), save(12)]) == ""


def test_the_shortest_interval_of_any_yaml_counts_and_thirty_minutes_without_any() -> None:
    def spec(minutes: float | None, steps: int | None) -> SessionSpec:
        return SessionSpec(
            job=JOB, rank=Rank(0), shape=SHAPE, backup_interval_minutes=minutes, backup_interval_steps=steps
        )

    assert interval_of([spec(None, None)]) == Interval(30, None)
    assert interval_of([spec(20, None), spec(10, None), spec(None, 7)]) == Interval(10, 7)
    assert interval_of([spec(None, 7)]) == Interval(None, 7)
