"""One order in hand: where it stands, how often it was tried, when it last moved."""

from dataclasses import dataclass, field
from enum import StrEnum, auto

from checkpoint_replicator.ids import Job
from checkpoint_replicator.messages import BackupResult
from checkpoint_replicator.records import BackupOrder

__all__ = ["Assignment", "Stage"]


class Stage(StrEnum):
    """Where an order stands."""

    WAITING = auto()
    """To be begun, at once or at `due`."""
    RUNNING = auto()
    """A thread is at it."""
    ENDING = auto()
    """Given up or not wanted any more, but its thread has not come back yet."""
    ANSWERED = auto()
    """The result stands until the order is no longer listed."""


@dataclass(slots=True)
class Assignment:
    """An order, and what became of it so far.

    Attributes:
        wanted: whether the watcher still lists it.
        due: when it may be begun (again).
        tries: how often it was begun.
        moved_at: when bytes moved last, or it was begun.
        sent: bytes moved so far in this try.
        result: the answer, once there is one.
    """

    job: Job
    order: BackupOrder
    due: float
    stage: Stage = Stage.WAITING
    wanted: bool = True
    tries: int = 0
    moved_at: float = 0.0
    sent: int = 0
    result: BackupResult | None = field(default=None)

    @property
    def active(self) -> bool:
        """Whether a thread is at it."""
        return self.stage in {Stage.RUNNING, Stage.ENDING}

    @property
    def place(self) -> tuple[Job, str]:
        """What it works on; two orders for one backup never run side by side."""
        return self.job, self.order.name or self.order.id

    def answer(self, result: BackupResult) -> None:
        """Keep the result and rest."""
        self.result = result
        self.stage = Stage.ANSWERED

    @property
    def said(self) -> BackupResult:
        """What reports say: the answer, or how far it is."""
        if self.result is not None:
            return self.result
        return BackupResult(id=self.order.id, kind=self.order.kind, name=self.order.name, size=self.sent)

    def failure(self, reason: str) -> BackupResult:
        """Return a result that says no."""
        return BackupResult(id=self.order.id, kind=self.order.kind, name=self.order.name, reason=reason)
