"""One run: trouble for a while, then quiet, in which all must come to a good end."""

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from checkpoint_replicator.inputlog import InputLog
from simulation.faults import Faults
from simulation.laws import LawBrokenError
from simulation.ramdisk import TornError
from simulation.rest import come_to_rest
from simulation.world import World

__all__ = ["Played", "play", "run"]

PATIENCE: Final = 30.0
"""Seconds in which people get their answers when all is well."""


@dataclass(frozen=True)
class Played:
    """What came of a seed.

    Attributes:
        hits: what happened how often.
        error: what broke; None: all laws held.
        troubles: what went wrong, in order: `number:kind` of each stroke, and the names of what was wrong all the time.
        without: which of these were left out.
    """

    hits: Counter[str]
    error: AssertionError | None
    troubles: tuple[str, ...]
    without: frozenset[str]


def play(
    seed: int,
    tell: Callable[[str], None] | None = None,
    without: frozenset[str] = frozenset(),
    inputs: InputLog | None = None,
) -> Played:
    """Play a seed, perhaps without some of its troubles; other events may then come in another order.

    `inputs` takes what every machine is told.
    """
    with _uncollected():
        return _play(seed, tell, without, inputs)


def _play(seed: int, tell: Callable[[str], None] | None, without: frozenset[str], inputs: InputLog | None) -> Played:
    world = World(seed, tell, inputs)
    faults = Faults(world, without)
    error: AssertionError | None = None
    try:
        world.start()
        faults.begin()
        world.people.begin(without)
        while world.now < world.trouble:  # a fault may need longer
            world.run(world.trouble)
        faults.end()
        world.people.end()
        if world.people.busy:
            world.run(world.now + PATIENCE, over=lambda: not world.people.busy)
        come_to_rest(world)
    except TornError as torn:
        error = LawBrokenError(9, f"seed {seed}, {world.now:.3f} s: {torn}")
        error.__cause__ = torn
    except LawBrokenError as broken:
        broken.args = (f"seed {seed}, {world.now:.3f} s: {broken}",)
        error = broken
    except Exception as other:  # noqa: BLE001 - whatever a machine raises is a finding
        error = AssertionError(f"seed {seed}, {world.now:.3f} s: {type(other).__name__}: {other}")
        error.__cause__ = other
    world.hits["events"] = world.events
    return Played(world.hits, error, (*faults.troubles, *world.people.troubles), without)


@contextmanager
def _uncollected() -> Iterator[None]:
    """A world's objects know one another and go together when it is over: looking for garbage before finds none."""
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collected:
            gc.enable()


def run(seed: int, tell: Callable[[str], None] | None = None, without: frozenset[str] = frozenset()) -> Counter[str]:
    """Play a seed; returns what happened how often.

    Raises:
        LawBrokenError: which law, by what.
    """
    played = play(seed, tell, without)
    if played.error is not None:
        raise played.error
    return played.hits
