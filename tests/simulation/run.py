"""One run: trouble for a while, then quiet, in which all must come to a good end."""

from collections import Counter
from collections.abc import Callable

from simulation.faults import Faults
from simulation.laws import LawBrokenError
from simulation.ramdisk import TornError
from simulation.rest import come_to_rest
from simulation.world import World

__all__ = ["run"]


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
        come_to_rest(world)
    except TornError as error:
        raise LawBrokenError(9, f"seed {seed}, {world.now:.3f} s: {error}") from error
    except LawBrokenError as error:
        error.args = (f"seed {seed}, {world.now:.3f} s: {error}",)
        raise
    except Exception as error:
        raise AssertionError(f"seed {seed}, {world.now:.3f} s: {type(error).__name__}: {error}") from error
    world.hits["events"] = world.events
    return world.hits
