"""Whom the node obeys in one job, and what it has obeyed.

Only what stands in Redis is obeyed, read as one view, and only where the lease in that view names a coordinator and
no number in it went back behind what this node obeyed before. Beacons merely say when to read. `fence.json` is
written before a view is acted on.
"""

from dataclasses import dataclass, field
from typing import Final

from checkpoint_replicator.backoff import delay, spread
from checkpoint_replicator.fence import ZERO
from checkpoint_replicator.ids import Incarnation, Job, StoreId
from checkpoint_replicator.messages import Beacon
from checkpoint_replicator.records import KeepList, Lease, NodeView
from checkpoint_replicator.save import Save
from checkpoint_watcher.effects import CallHelp, Follow, ReadView, WriteFence
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
    _heard_at: float | None = None
    """When the coordinator that is followed last spoke, or since when it is followed."""
    _untaken: tuple[int, float] | None = None
    """The oldest report that it did not say to have taken up, and when that was sent."""
    _called_at: float | None = None

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

    @property
    def cut_off(self) -> bool:
        """Whether Redis can be reached and the coordinator cannot."""
        return self._called_at is not None and not self.failure

    def look(self, now: float) -> None:
        """Have Redis read soon: something changed here."""
        if self._reading:
            self._again = True
        self.due = now

    def advance(self, now: float) -> None:
        """Read when it is time, and call for help where the coordinator cannot be reached."""
        self._call_help(now)
        if self._reading or now < self.due:
            return
        self._reading, self._again = True, False
        session = self.node.session
        rank = session.spec.rank if session and session.spec and session.spec.job == self.job else None
        self.node.emit(ReadView(self.job, rank))

    def deadline(self) -> float | None:
        """When `advance` has something to do."""
        due = None if self._reading else self.due
        cut_off = self._cut_off_at()
        return due if cut_off is None or (due is not None and due <= cut_off) else cut_off

    def _cut_off_at(self) -> float | None:
        """When the coordinator counts as out of reach, or is called for again."""
        if self.lease is None or self.failure:
            return None
        since = self._heard_at
        if self._untaken is not None and (since is None or self._untaken[1] < since):
            since = self._untaken[1]
        if since is None:
            return None
        called = self._called_at
        return (since if called is None or called < since else called) + self.node.times.beacon_silent

    def sent(self, version: int, now: float) -> None:
        """A report went to the coordinator."""
        if self._untaken is None:
            self._untaken = (version, now)

    def lacking(self, now: float) -> str:
        """Say why the coordinator cannot be reached although Redis can; empty where all is well or not known."""
        lease, silent = self.lease, self.node.times.beacon_silent
        if lease is None or self.failure or self._heard_at is None:
            return ""
        if now - self._heard_at >= silent:
            return f"no beacon of the coordinator on {lease.host} at {lease.beacons} for {now - self._heard_at:.0f} s"
        if self._untaken is not None and now - self._untaken[1] >= silent:
            seconds = now - self._untaken[1]
            return f"the coordinator on {lease.host} at {lease.reports} took up no report for {seconds:.0f} s"
        return ""

    def beacon(self, incarnation: Incarnation, beacon: Beacon, now: float) -> None:
        """Take a wake-up."""
        known = self._read
        lease = self.lease
        followed = lease is not None and (incarnation, beacon.token) == (lease.incarnation, lease.token)
        if followed:
            self._heard_at = now
            if self._untaken is not None and beacon.taken.get(self.node.incarnation, -1) >= self._untaken[0]:
                self._untaken = None
        if known is None or not followed or beacon.store != self.store or beacon.stamp > (known.fence or ZERO):
            self.look(now)
        elif not self._reading and self.due > now:
            self.due = now + self.node.times.beacon_silent

    def failed(self, reason: str, now: float) -> None:
        """Redis did not answer: try again later, ever less often."""
        times = self.node.times
        self._reading = False
        chance = spread(f"{self.node.incarnation} {self.job}", self._failures)
        self.due = now + delay(self._failures, times.retry_least, times.retry_most, chance)
        self._failures += 1
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
            self._heard_at, self._untaken, self._called_at = now, None, None
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

    def _call_help(self, now: float) -> None:
        """Tell the coordinator by way of Redis that this node lives, read its lease anew and connect anew."""
        reason, times = self.lacking(now), self.node.times
        if not reason:
            if self.cut_off:
                self.node.announce("coordinator_reached", job=self.job)
                self._called_at = None
            return
        if self.lease is None or (self._called_at is not None and now < self._called_at + times.beacon_silent):
            return
        if self._called_at is None:
            self.node.announce("coordinator_unreachable", job=self.job, reason=reason)
        self._called_at = now
        self.node.emit(CallHelp(self.job, reason, 2 * times.beacon_silent), Follow(self.job, self.lease))
        self.look(now)

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
        if fence < seen or fence.number < seen.number:  # numbers grow through all tenures
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
            hold=keep.hold if keep is not None and keep.stamp >= fence.keep else fence.hold,
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
