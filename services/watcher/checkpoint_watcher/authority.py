"""Whom the node obeys in one job, and what it has obeyed.

Only what stands in Redis is obeyed, read as one view, and only where the lease in that view names a coordinator and
no number in it went back behind what this node obeyed before. Beacons merely say when to read. `fence.json` is
written before a view is acted on.
"""

from dataclasses import dataclass, field
from typing import Final

from checkpoint_replicator.fence import ZERO
from checkpoint_replicator.ids import Incarnation, Job, StoreId
from checkpoint_replicator.messages import Beacon
from checkpoint_replicator.records import KeepList, Lease, NodeView
from checkpoint_replicator.save import Save
from checkpoint_watcher.effects import Follow, ReadView, WriteFence
from checkpoint_watcher.node import Node
from checkpoint_watcher.record import FenceRecord

__all__ = ["Authority"]

NO_STORE: Final = StoreId("")


@dataclass(slots=True)
class Authority:
    """Reads, judges and keeps the view of one job.

    Attributes:
        fence: what `fence.json` is known to hold.
        view: the last view that was judged good and whose stamps are in `fence.json`.
        lease: whom reports go to, obeyed or not.
        failure: why nothing newer is obeyed; empty when all is well.
    """

    node: Node
    job: Job
    fence: FenceRecord = field(default_factory=FenceRecord)
    view: NodeView | None = None
    lease: Lease | None = None
    store: StoreId = NO_STORE
    failure: str = ""
    due: float = 0.0
    _pending: NodeView | None = None
    _wanted: FenceRecord | None = None
    _reading: bool = False
    _again: bool = False
    _read: NodeView | None = None
    _failures: int = 0
    _leaseless: float | None = None

    @property
    def committed(self) -> Save | None:
        """The newest committed save that this node knows of."""
        return self.fence.committed

    @property
    def keep(self) -> KeepList | None:
        """The keep list, if it may be obeyed."""
        return None if self.view is None else self._permitted(self.view)

    @property
    def forgets(self) -> bool:
        """Whether the present coordinator's own word is to remove all that this host has of the job."""
        return self.view is not None and _forgets(self.view)

    @property
    def left(self) -> bool:
        """Whether nobody decides for the job, and this host has obeyed nobody that it must remember."""
        leaderless = self._read is not None and self._read.lease is None
        return leaderless and self.fence == FenceRecord() and self._pending is None

    def forgotten(self) -> None:
        """This host has nothing of the job any more, and no fence either."""
        self.fence = FenceRecord()
        self._wanted = self._pending = None

    @property
    def heard(self) -> bool:
        """Whether Redis answered in this life of the process."""
        return self._read is not None

    def look(self, now: float) -> None:
        """Have Redis read soon: something changed here."""
        if self._reading:
            self._again = True
        self.due = now

    def advance(self, now: float) -> None:
        """Read when it is time."""
        if self._reading or now < self.due:
            return
        self._reading, self._again = True, False
        session = self.node.session
        rank = session.spec.rank if session and session.spec and session.spec.job == self.job else None
        self.node.emit(ReadView(self.job, rank))

    def deadline(self) -> float | None:
        """When `advance` has something to do."""
        return None if self._reading else self.due

    def beacon(self, incarnation: Incarnation, beacon: Beacon, now: float) -> None:
        """Take a wake-up."""
        known = self._read
        lease = self.lease
        if (
            known is None
            or lease is None
            or incarnation != lease.incarnation
            or beacon.token != lease.token
            or beacon.store != self.store
            or beacon.stamp > (known.fence or ZERO)
        ):
            self.look(now)
        elif not self._reading and self.due > now:
            self.due = now + self.node.times.beacon_silent

    def failed(self, reason: str, now: float) -> None:
        """Redis did not answer: try again later, ever less often."""
        times = self.node.times
        self._reading = False
        self.due = now + min(times.retry_most, times.retry_least * 2**self._failures)
        self._failures = min(self._failures + 1, 16)
        if reason != self.failure:
            self.node.announce("view_failed", job=self.job, reason=reason)
        self.failure = reason

    def read(self, view: NodeView, now: float) -> bool:
        """Take an answer of Redis; True: a view newly counts."""
        self._reading, self._failures, self._read = False, 0, view
        self.due = now if self._again else now + self.node.times.beacon_silent
        self._again = False
        if view.store is not None and view.store != self.store:
            if self.store:
                self.node.announce("store_changed", job=self.job, reason=f"{self.store} is now {view.store}")
                self.node.register()
            self.store = view.store
        if view.lease is None:
            self._without_lease(now)
            return False
        self._leaseless = None
        if view.lease != self.lease:
            self.lease = view.lease
            self.node.emit(Follow(self.job, view.lease))
        stale = self._stale(view, view.lease)
        if stale and stale != self.failure:
            self.node.announce("stale_view_refused", job=self.job, reason=stale)
        self.failure = stale
        return not stale and self._take(view)

    def written(self, record: FenceRecord) -> bool:
        """`fence.json` holds this now; True: a view newly counts."""
        self.fence = record
        if self._pending is None or record != self._wanted:
            return False
        self.view, self._pending = self._pending, None
        return True

    def _without_lease(self, now: float) -> None:
        times = self.node.times
        self.failure = "no coordinator holds the job's lease in Redis"
        self.due = now + times.beacon
        if self._leaseless is None:
            self._leaseless = now
        elif now >= self._leaseless + times.beacon_silent:
            self._leaseless = now
            self.node.register()

    def _stale(self, view: NodeView, lease: Lease) -> str:
        seen = self.fence.stamp
        fence = view.fence or ZERO
        if fence < seen:
            return f"Redis went back: its fence is {fence}, this node obeyed {seen}"
        if lease.token < seen.token:
            return f"the lease has token {lease.token}, this node obeyed token {seen.token}"
        return ""

    def _take(self, view: NodeView) -> bool:
        if _forgets(view):  # the fence goes with all else: nothing is written that would have to be removed again
            self.view, self._pending = view, None
            return True
        fence = self._wanted or self.fence
        keep = self._permitted(view)
        stamps = [fence.stamp, *(part.stamp for part in (view.epoch, view.restore, view.plan, view.orders) if part)]
        committed = [fence.committed] if fence.committed else []
        if keep is not None:
            stamps.append(keep.stamp)
            committed += [keep.upto] if keep.upto is not None else []
        record = FenceRecord(
            stamp=max(stamps),
            committed=max(committed, default=None),
            keep=max(fence.keep, keep.stamp) if keep is not None else fence.keep,
        )
        if record == self.fence:
            self.view, self._pending = view, None
            return True
        self._pending = view
        if record != self._wanted:
            self._wanted = record
            self.node.emit(WriteFence(self.job, record))
        return False

    def _permitted(self, view: NodeView) -> KeepList | None:
        """Deleting wants the present coordinator's own word, and the newest of its words."""
        keep, lease = view.keep, view.lease
        if keep is None or lease is None or keep.stamp.token != lease.token or keep.stamp < self.fence.keep:
            return None
        return keep


def _forgets(view: NodeView) -> bool:
    orders, lease = view.orders, view.lease
    return orders is not None and lease is not None and orders.forget and orders.stamp.token == lease.token
