"""One run: trouble for a while, then quiet, in which all must come to a good end."""

from collections import Counter
from collections.abc import Callable
from typing import Final

from simulation.faults import Faults
from simulation.laws import LawBrokenError
from simulation.ramdisk import TornError
from simulation.world import World

__all__ = ["run"]

PATIENCE: Final = 4.0
"""So many of the trainers' own time-outs may pass in quiet before the job runs and is safe again."""


def run(seed: int, tell: Callable[[str], None] | None = None) -> Counter[str]:
    """Play a seed; returns what happened how often.

    Raises:
        LawBrokenError: which law, by what.
    """
    world = World(seed, tell)
    faults = Faults(world)
    try:
        world.start()
        faults.begin()
        world.run(world.trouble)
        faults.end()
        _come_to_rest(world)
    except TornError as error:
        raise LawBrokenError(9, f"seed {seed}, {world.now:.3f} s: {error}") from error
    except LawBrokenError as error:
        error.args = (f"seed {seed}, {world.now:.3f} s: {error}",)
        raise
    except Exception as error:
        raise AssertionError(f"seed {seed}, {world.now:.3f} s: {type(error).__name__}: {error}") from error
    world.hits["events"] = world.events
    return world.hits


def _come_to_rest(world: World) -> None:
    """In quiet the job runs again and commits, or says why not."""
    before = max(world.laws.committed, default=None)
    training = world.training

    def safe() -> bool:
        newest = max(world.laws.committed, default=None)
        if world.tight:  # the ramdisks are too small for what must stay: the job runs on, and saves are skipped
            return training.running
        return training.running and newest is not None and newest != before and newest.epoch >= epoch()

    def epoch() -> int:
        return min(trainer.epoch for trainer in training.trainers.values())

    begun = world.events
    limit = world.now + PATIENCE * world.times.client
    if not world.run(limit, safe) and not _lost(world):
        raise LawBrokenError(6, f"no save was committed in quiet: {world.explain()}")
    if world.events - begun > 1000 * (world.now - world.trouble + 10):
        raise LawBrokenError(6, f"{world.events - begun} events in {world.now:.0f} s: somebody is always busy")


def _lost(world: World) -> bool:
    """Whether the job may stay down: what was committed is gone, and people are told so."""
    laws = world.laws
    gone = bool(laws.committed) and not any(laws.restorable(save) for save in laws.committed)
    whys = [trainer.why for trainer in world.training.trainers.values()] + world.training.reasons[-4:]
    told = any("nothing can be restored" in why for why in whys)
    if gone and told:
        world.hits["lost and told"] += 1
    return gone and told
