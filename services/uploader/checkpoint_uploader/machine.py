"""Pure: which orders are worked on, when they are tried again, and when the process must end.

An order is tried until it succeeded, failed for good or was tried often enough; the result stands until the watcher
lists the order no more. Everything that an order does may be repeated, so a new life of the uploader or of its watcher
just begins again.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

import msgspec

from checkpoint_replicator.ids import Incarnation, Job
from checkpoint_replicator.machine import Ticked
from checkpoint_replicator.messages import BackupResult, UploaderReport
from checkpoint_replicator.records import BackupOrder
from checkpoint_uploader.assignment import Assignment, Stage

__all__ = [
    "Begin",
    "Cancel",
    "Effect",
    "Event",
    "Failed",
    "Finished",
    "Limits",
    "Moved",
    "Ordered",
    "Quit",
    "Report",
    "Uploader",
]

_HEAVY: Final = frozenset({"upload", "abandon", "prune"})
"""Kinds that may take long; they have places of their own, so that a listing never waits behind an upload."""
_REMEMBERED: Final = 64
"""Superseded lives of the watcher that are remembered, so that their late messages change nothing."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds, times in seconds.

    Attributes:
        heavy: orders at once of the kinds that may take long.
        light: others at once.
        tries: how often an order is begun before it is given up.
        retry_least: delay before the second try; it doubles with each further one.
        retry_most: longest such delay.
        silent: without a byte for this long an order is given up, and after as long again the process ends.
        report: time between two reports.
    """

    heavy: int = 2
    light: int = 4
    tries: int = 3
    retry_least: float = 0.2
    retry_most: float = 5.0
    silent: float = 60.0
    report: float = 1.0


class Ordered(msgspec.Struct, frozen=True):
    """The watcher said all that it wants for a job."""

    watcher: Incarnation
    job: Job
    version: int
    orders: tuple[BackupOrder, ...]


class Moved(msgspec.Struct, frozen=True):
    """Something moved for an order; `sent` bytes in all."""

    job: Job
    id: str
    sent: int


class Finished(msgspec.Struct, frozen=True):
    """An order was carried out."""

    job: Job
    result: BackupResult


class Failed(msgspec.Struct, frozen=True):
    """An order was not carried out; `again`: trying again may help."""

    job: Job
    id: str
    reason: str
    again: bool


class Begin(msgspec.Struct, frozen=True):
    """Carry out an order; answer with Moved and one Finished or Failed."""

    job: Job
    order: BackupOrder

    @property
    def kinds(self) -> tuple[str, ...]:
        """What is begun."""
        return (self.order.kind,)


class Cancel(msgspec.Struct, frozen=True):
    """Stop carrying out an order as soon as possible; the answer still comes."""

    job: Job
    id: str


class Report(msgspec.Struct, frozen=True):
    """Send this to the watcher."""

    job: Job
    report: UploaderReport


class Quit(msgspec.Struct, frozen=True):
    """End the process: a call to the store hangs and cannot be ended in another way."""

    reason: str


Event = Ordered | Moved | Finished | Failed | Ticked
Effect = Begin | Cancel | Report | Quit


class Uploader:
    """The orders of one node's watcher, for all its jobs."""

    def __init__(self, root: str | None, limits: Limits) -> None:
        self._root = root
        self._limits = limits
        self._watcher = Incarnation("")
        self._superseded: deque[Incarnation] = deque(maxlen=_REMEMBERED)
        self._versions: dict[Job, int] = {}
        self._assignments: dict[tuple[Job, str], Assignment] = {}
        self._now = 0.0
        self._report_due: float | None = None
        self._news: set[Job] = set()

    @property
    def assignments(self) -> tuple[Assignment, ...]:
        """All orders in hand, in the order in which they came."""
        return tuple(self._assignments.values())

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one event."""
        self._now = now
        effects: list[Effect] = []
        match event:
            case Ordered():
                effects += self._take_orders(event, now)
            case Moved(job, ident, sent):
                self._move(job, ident, sent, now)
            case Finished(job, result):
                self._finish(job, result)
            case Failed(job, ident, reason, again):
                self._fail(job, ident, reason, again=again, now=now)
            case Ticked():
                effects += self._find_silent(now)
        effects += self._begin(now)
        return [*effects, *self._reports(now)]

    def next_deadline(self) -> float | None:
        """When a report, a second try or a verdict of silence is due."""
        deadlines = [] if self._report_due is None else [self._report_due]
        for assignment in self._assignments.values():
            if assignment.stage is Stage.WAITING and assignment.due > self._now:
                deadlines.append(assignment.due)  # one that is due already begins with the next event that makes room
            elif assignment.active:
                deadlines.append(assignment.moved_at + self._limits.silent)
        return min(deadlines, default=None)

    def _take_orders(self, event: Ordered, now: float) -> list[Effect]:
        if event.watcher in self._superseded:
            return []
        if event.watcher != self._watcher:  # a new life: what the old one said is forgotten
            if self._watcher:
                self._superseded.append(self._watcher)
            self._watcher = event.watcher
            self._versions.clear()
        if event.version < self._versions.get(event.job, event.version):
            return []
        if not self._versions:
            self._report_due = now
        self._versions[event.job] = event.version
        listed = {(event.job, order.id): order for order in event.orders}
        effects: list[Effect] = []
        for key, assignment in tuple(self._assignments.items()):
            if key not in listed and (assignment.job == event.job or assignment.job not in self._versions):
                effects += self._drop(key, assignment)
        for key, order in listed.items():
            known = self._assignments.setdefault(key, Assignment(event.job, order, due=now))
            known.wanted = True
        return effects

    def _drop(self, key: tuple[Job, str], assignment: Assignment) -> list[Effect]:
        """Forget an order that is not listed any more, once no thread is at it."""
        assignment.wanted = False
        if assignment.stage is Stage.RUNNING:
            assignment.stage = Stage.ENDING
            return [Cancel(*key)]
        if assignment.stage is not Stage.ENDING:
            del self._assignments[key]
        return []

    def _move(self, job: Job, ident: str, sent: int, now: float) -> None:
        assignment = self._assignments.get((job, ident))
        if assignment is not None and assignment.active:
            assignment.moved_at = now
            assignment.sent = sent

    def _finish(self, job: Job, result: BackupResult) -> None:
        assignment = self._assignments.get((job, result.id))
        if assignment is None or not assignment.active:
            return
        if not assignment.wanted:
            del self._assignments[job, result.id]
            return
        assignment.answer(result)
        self._news.add(job)

    def _fail(self, job: Job, ident: str, reason: str, *, again: bool, now: float) -> None:
        assignment = self._assignments.get((job, ident))
        if assignment is None or not assignment.active:
            return
        if not assignment.wanted:
            del self._assignments[job, ident]
        elif assignment.result is not None:  # given up before: it stays so
            assignment.stage = Stage.ANSWERED
        elif assignment.stage is Stage.ENDING:  # listed anew while its thread came back
            assignment.stage = Stage.WAITING
            assignment.due = now
        elif again and assignment.tries < self._limits.tries:
            delay = min(self._limits.retry_least * 2 ** (assignment.tries - 1), self._limits.retry_most)
            assignment.stage = Stage.WAITING
            assignment.due = now + delay
        else:
            assignment.answer(assignment.failure(reason))
            self._news.add(job)

    def _find_silent(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for (job, ident), assignment in self._assignments.items():
            silent = now - assignment.moved_at
            if not assignment.active or silent < self._limits.silent:
                continue
            reason = f"{assignment.order.kind} {assignment.order.name or job}: no bytes for {silent:.0f} s"
            assignment.moved_at = now  # as long again for the thread to come back
            if assignment.stage is Stage.ENDING:
                effects.append(Quit(reason))
                continue
            assignment.stage = Stage.ENDING
            assignment.result = assignment.failure(reason)
            self._news.add(job)
            effects.append(Cancel(job, ident))
        return effects

    def _begin(self, now: float) -> list[Effect]:
        active = [assignment for assignment in self._assignments.values() if assignment.active]
        places = {assignment.place for assignment in active}
        room = {
            heavy: limit - sum((one.order.kind in _HEAVY) is heavy for one in active)
            for heavy, limit in ((True, self._limits.heavy), (False, self._limits.light))
        }
        effects: list[Effect] = []
        for assignment in self._assignments.values():
            heavy = assignment.order.kind in _HEAVY
            if assignment.stage is not Stage.WAITING or assignment.due > now or not room[heavy]:
                continue
            if assignment.place in places:
                continue
            room[heavy] -= 1
            places.add(assignment.place)
            assignment.stage = Stage.RUNNING
            assignment.tries += 1
            assignment.moved_at = now
            assignment.sent = 0
            effects.append(Begin(assignment.job, assignment.order))
        return effects

    def _reports(self, now: float) -> list[Effect]:
        """Report what changed at once, and all each `report` seconds."""
        jobs: Iterable[Job] = self._news & self._versions.keys()
        if self._report_due is not None and now >= self._report_due:
            self._report_due = now + self._limits.report
            jobs = self._versions
        effects: list[Effect] = [Report(job, self._report(job)) for job in sorted(jobs)]
        self._news.clear()
        return effects

    def _report(self, job: Job) -> UploaderReport:
        mine = [one for one in self._assignments.values() if one.job == job and one.wanted]
        return UploaderReport(
            root=self._root,
            version=self._versions[job],
            results=tuple(one.said for one in mine),
            sent={one.order.id: one.sent for one in mine if one.result is None},
        )
