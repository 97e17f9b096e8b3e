"""Pure: one peer's Want for one shard.

A Want says three things: send these leaves; at most `credit` bytes of what was asked, these included, have not arrived;
so whatever was sent before and does not fit into the credit beside what is still to be sent has arrived. The next Want
is the acknowledgement. Leaves that are not here yet are parked, and answered by NotYet when they do not come in time.
"""

from collections import deque
from collections.abc import Iterable

import msgspec

from checkpoint_replicator.machine import Ticked
from checkpoint_replicator.messages import Run
from checkpoint_transfer.budget import Budget
from checkpoint_transfer.leaves import LeafSet, Sizes, cut, leaves_in, runs_of
from checkpoint_transfer.patience import Patience

__all__ = [
    "ForgetPeer",
    "Holder",
    "HolderEffect",
    "HolderEvent",
    "LeavesLanded",
    "LeavesUnsent",
    "SayNotYet",
    "SendLeaves",
    "Wanted",
]


class Wanted(msgspec.Struct, frozen=True):
    """The peer asked for leaves; the runs were checked to lie within the shard."""

    runs: tuple[Run, ...]
    credit: int


class LeavesLanded(msgspec.Struct, frozen=True):
    """The shard is being received here too and has more leaves now, or there is room in the budget again."""


class LeavesUnsent(msgspec.Struct, frozen=True):
    """Leaves could not be read or handed to the peer's socket; with `gone` they never will be."""

    runs: tuple[Run, ...]
    size: int
    reason: str
    gone: bool = False


class SendLeaves(msgspec.Struct, frozen=True):
    """Read these leaves and hand them to the peer's socket in one message of `size` bytes."""

    runs: tuple[Run, ...]
    size: int


class SayNotYet(msgspec.Struct, frozen=True):
    """Tell the peer that these leaves are not here (with `gone`: never will be)."""

    runs: tuple[Run, ...]
    gone: bool
    reason: str


class ForgetPeer(msgspec.Struct, frozen=True):
    """Close the peer's leaf socket: what it did not acknowledge in time must not stay in memory."""


HolderEvent = Wanted | LeavesLanded | LeavesUnsent | Ticked
HolderEffect = SendLeaves | SayNotYet | ForgetPeer


class Holder:
    """Serves one peer; never has more unacknowledged bytes than the peer's credit, its limit and the budget allow."""

    def __init__(self, sizes: Sizes, have: LeafSet, budget: Budget, limit: int, patience: Patience) -> None:
        """Take the shard's leaf sizes, the live set of leaves that are here, and the bounds in bytes."""
        self._sizes = sizes
        self.have = have
        self._budget = budget
        self._limit = limit
        self._patience = patience
        self._queue: deque[int] = deque()
        self._queued: set[int] = set()
        self._queued_bytes = 0
        self._parked: dict[int, float] = {}
        self._in_flight: deque[tuple[int, float]] = deque()
        self._heard = 0.0
        self.in_flight_bytes = 0
        self.credit = 0
        self.sent = 0
        """Bytes sent so far."""
        self.is_starved = False
        """Whether it would send more if the budget had room."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is queued, parked or unacknowledged."""
        return not (self._queue or self._parked or self._in_flight)

    def handle(self, event: HolderEvent, now: float) -> list[HolderEffect]:
        """Take one event."""
        match event:
            case Wanted(runs, credit):
                self._heard = now
                self.credit = credit
                self._enqueue(leaves_in(runs), now)
                self._acknowledge()
                return self._serve(now)
            case LeavesLanded():
                return self._serve(now)
            case LeavesUnsent(runs, size, reason, gone):
                self._take_back(size)
                return [SayNotYet(runs, gone, reason)] if gone else []
            case Ticked():
                return [*self._lapse(now), *self._serve(now)]

    def next_deadline(self) -> float:
        """When a parked leaf or an acknowledgement is overdue, or the peer was silent for too long."""
        deadlines = [self._heard + self._patience.silent]
        if self._parked:
            deadlines.append(min(self._parked.values()))
        if self._in_flight:
            deadlines.append(self._overdue())
        return min(deadlines)

    def is_forgotten(self, now: float) -> bool:
        """Tell whether the peer was silent for so long that its state can go; close it then."""
        return now >= self._heard + self._patience.silent

    def close(self) -> None:
        """Give back what the budget lent."""
        self._budget.give(self.in_flight_bytes)
        self.in_flight_bytes = 0
        self._in_flight.clear()
        self._queue.clear()
        self._queued.clear()
        self._parked.clear()

    def _enqueue(self, leaves: Iterable[int], now: float) -> None:
        for leaf in leaves:
            if leaf in self._queued or leaf in self._parked:
                continue
            if leaf in self.have:
                self._push(leaf)
            else:
                self._parked[leaf] = now + self._patience.parked

    def _push(self, leaf: int) -> None:
        self._queue.append(leaf)
        self._queued.add(leaf)
        self._queued_bytes += self._sizes[leaf]

    def _acknowledge(self) -> None:
        """Retire the oldest messages until what is left fits into the credit beside what is still to be sent."""
        waiting = self._queued_bytes + sum(self._sizes[leaf] for leaf in self._parked)
        while self._in_flight and self.in_flight_bytes + waiting > self.credit:
            self._take_back(self._in_flight[0][0])

    def _take_back(self, size: int) -> None:
        """End the oldest message of this size, whether it arrived or never left."""
        for place, (sent, _) in enumerate(self._in_flight):
            if sent == size:
                del self._in_flight[place]
                self.in_flight_bytes -= size
                self._budget.give(size)
                return

    def _serve(self, now: float) -> list[HolderEffect]:
        landed = [leaf for leaf in self._parked if leaf in self.have]
        for leaf in landed:
            del self._parked[leaf]
            self._push(leaf)
        effects: list[HolderEffect] = []
        self.is_starved = False
        while self._queue:
            room = min(self.credit, self._limit) - self.in_flight_bytes
            leaves, size = cut(self._queue, self._sizes, room)
            if not leaves:
                break
            if not self._budget.take(size):
                self.is_starved = True
                break
            for leaf in leaves:
                self._queue.popleft()
                self._queued.discard(leaf)
            self._queued_bytes -= size
            self._in_flight.append((size, now))
            self.in_flight_bytes += size
            self.sent += size
            effects.append(SendLeaves(runs_of(leaves), size))
        return effects

    def _lapse(self, now: float) -> list[HolderEffect]:
        effects: list[HolderEffect] = []
        if self._in_flight and now >= self._overdue():
            while self._in_flight:  # lost with the peer or its connection; it asks again if it lives
                self._take_back(self._in_flight[0][0])
            effects.append(ForgetPeer())
        late = [leaf for leaf, deadline in self._parked.items() if now >= deadline]
        for leaf in late:
            del self._parked[leaf]
        if late:
            effects.append(SayNotYet(runs_of(late), gone=False, reason="not here yet"))
        return effects

    def _overdue(self) -> float:
        return max(self._heard, self._in_flight[0][1]) + self._patience.unacknowledged
