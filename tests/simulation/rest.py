"""In quiet all must come to a good end: the jobs run, what they save is protected, and nothing is left behind."""

from itertools import islice
from typing import TYPE_CHECKING, Final

from simulation.audit import faults_of
from simulation.laws import LawBrokenError

if TYPE_CHECKING:
    from simulation.training import Training
    from simulation.world import World

__all__ = ["come_to_rest"]

PATIENCE: Final = 2.5
"""So many of the trainers' own time-outs may pass in quiet before the job runs and is safe again: one that an earlier
trouble spoilt, and one that is begun anew."""
SETTLED: Final = 60.0
"""Seconds after which a job that runs and saves no more has nothing left to do: copies lie, what is old is gone, a
backup that is due is made, one that was given up is closed."""
BACKLOG: Final = 5.0
"""Seconds of quiet in which a save may still be skipped: those before it were in flight for as long as nobody could
commit."""
BUSY: Final = 1000
"""Events a second that a world of one job may have, on the average, in quiet."""
SPANS: Final = (5, 10, 20, 40, 80, 160)


def come_to_rest(world: "World") -> None:
    """In quiet every job runs again and commits, or says why not; then it is looked at closely."""
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

    def all_safe() -> bool:
        return all(safe(training) for training in trainings)

    early = world.run(world.now + BACKLOG, all_safe)
    skipped = world.hits["save_skipped"] + world.hits["save had no room"]
    if not early and not world.run(limit, all_safe):
        for training in trainings:
            if not safe(training) and not _lost(training):
                raise LawBrokenError(6, f"no save of {training.job} was committed in quiet: {world.explain()}")
    else:
        world.hits[f"protected again {_span(world.now - since)}"] += 1
    _settle(world, [training for training in trainings if safe(training)])
    if not world.tight and world.hits["save_skipped"] + world.hits["save had no room"] > skipped:
        raise LawBrokenError(8, f"a save found no room in quiet: {world.explain()}")
    if world.events - begun > BUSY * len(trainings) * (world.now - since + 10):
        raise LawBrokenError(6, f"{world.events - begun} events in {world.now:.0f} s: somebody is always busy")


def _settle(world: "World", trainings: "list[Training]") -> None:
    """Let trainers save no more, and see whether all that is to be done gets done."""
    if world.tight or not trainings:
        return
    for training in trainings:
        training.saving = False
    since = world.now

    def settled() -> bool:
        return all(next(faults_of(training), None) is None for training in trainings)

    while not settled():
        if world.now - since > SETTLED:
            told = [f"{training.job}: {fault}" for training in trainings for fault in islice(faults_of(training), 4)]
            raise LawBrokenError(6, f"after {SETTLED:.0f} s of quiet: {'; '.join(told)}; {world.explain()}")
        world.run(world.now + 1.0)
    world.hits[f"settled {_span(world.now - since)}"] += 1


def _span(seconds: float) -> str:
    return next((f"within {span} s" for span in SPANS if seconds <= span), f"after more than {SPANS[-1]} s")


def _lost(training: "Training") -> bool:
    """Whether the job may stay down: what was committed is gone, and people are told so."""
    laws = training.laws
    gone = bool(laws.committed) and not any(laws.restorable(save) for save in laws.committed)
    whys = [trainer.why for trainer in training.trainers.values()] + training.reasons[-4:]
    told = any("nothing can be restored" in why for why in whys)
    if gone and told:
        training.world.hits["lost and told"] += 1
    return gone and told
