"""In quiet all must come to a good end: the jobs run, what they save is protected, and nothing is left behind."""

from typing import TYPE_CHECKING, Final

from simulation.laws import LawBrokenError

if TYPE_CHECKING:
    from simulation.training import Training
    from simulation.world import World

__all__ = ["come_to_rest"]

PATIENCE: Final = 4.0
"""So many of the trainers' own time-outs may pass in quiet before the job runs and is safe again."""
BUSY: Final = 1000
"""Events a second that a world of one job may have, on the average, in quiet."""


def come_to_rest(world: "World") -> None:
    """In quiet every job runs again and commits, or says why not."""
    trainings = list(world.trainings.values())
    before = {training.job: max(training.laws.committed, default=None) for training in trainings}

    def safe(training: "Training") -> bool:
        if world.tight:  # the ramdisks are too small for what must stay: the job runs on, and saves are skipped
            return training.running
        newest = max(training.laws.committed, default=None)
        epoch = min(trainer.epoch for trainer in training.trainers.values())
        return training.running and newest is not None and newest != before[training.job] and newest.epoch >= epoch

    begun, since = world.events, world.now
    limit = world.now + PATIENCE * world.times.client
    if not world.run(limit, lambda: all(safe(training) for training in trainings)):
        for training in trainings:
            if not safe(training) and not _lost(training):
                raise LawBrokenError(6, f"no save of {training.job} was committed in quiet: {world.explain()}")
    if world.events - begun > BUSY * len(trainings) * (world.now - since + 10):
        raise LawBrokenError(6, f"{world.events - begun} events in {world.now:.0f} s: somebody is always busy")


def _lost(training: "Training") -> bool:
    """Whether the job may stay down: what was committed is gone, and people are told so."""
    laws = training.laws
    gone = bool(laws.committed) and not any(laws.restorable(save) for save in laws.committed)
    whys = [trainer.why for trainer in training.trainers.values()] + training.reasons[-4:]
    told = any("nothing can be restored" in why for why in whys)
    if gone and told:
        training.world.hits["lost and told"] += 1
    return gone and told
