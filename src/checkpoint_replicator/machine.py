"""The contract between deciding and doing.

A machine is pure and synchronous: it takes an event (past tense), changes its own state and returns effects
(imperative). Time and chance are arguments. It never waits: it names the moment at which it wants to be asked again.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

import msgspec

__all__ = ["Machine", "Ticked"]

Event_contra = TypeVar("Event_contra", contravariant=True)
Effect_co = TypeVar("Effect_co", covariant=True)


class Ticked(msgspec.Struct, frozen=True, tag=True):
    """Time has passed; sent at `next_deadline()` at the latest."""


class Machine(Protocol[Event_contra, Effect_co]):
    """Decides; `driver.drive` does the rest."""

    def handle(self, event: Event_contra, now: float) -> Sequence[Effect_co]:
        """Take one event and return what is to be done, in order. `now` is in monotonic seconds."""
        ...

    def next_deadline(self) -> float | None:
        """When `Ticked` is wanted at the latest, in the clock of `handle`; None: no wish."""
        ...
