"""Pure: answers the local transfer's Want for a shard of a backup, within its credit and our own bounds.

The transfer asks for the tree first, then for leaves, never more than it has credit for, and asks again for what did
not come. So nothing is repeated here: what was read and handed over is forgotten, what failed is answered.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from checkpoint_replicator.ids import Address, Job
from checkpoint_replicator.machine import Ticked
from checkpoint_replicator.messages import Party, Run, Want

__all__ = [
    "Absent",
    "Bounds",
    "CloseShard",
    "Holder",
    "HolderEffect",
    "HolderEvent",
    "LeavesFailed",
    "LeavesSent",
    "OpenShard",
    "Opened",
    "ReadLeaves",
    "SayNotYet",
    "SendTree",
    "ShardId",
    "Wanted",
]


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds; sizes in bytes, times in seconds.

    Attributes:
        reads: reads of the store at a time.
        queue: leaves waiting, for each shard.
        message: one Leaves message.
        leaves: leaves in one message.
        shards: shards open at a time.
        idle: a shard that nobody asked for this long is closed.
    """

    reads: int = 4
    queue: int = 64 << 20
    message: int = 4 << 20
    leaves: int = 64
    shards: int = 16
    idle: float = 60.0


class ShardId(msgspec.Struct, frozen=True):
    """One shard of one backup."""

    job: Job
    backup: str
    address: Address


class Wanted(msgspec.Struct, frozen=True):
    """The transfer asked."""

    job: Job
    asker: Party
    want: Want


class Opened(msgspec.Struct, frozen=True):
    """The shard's tree is here; sizes of its leaves in bytes."""

    shard: ShardId
    sizes: Sequence[int]


class Absent(msgspec.Struct, frozen=True):
    """The shard cannot be opened; `gone`: it never will be."""

    shard: ShardId
    reason: str
    gone: bool


class LeavesSent(msgspec.Struct, frozen=True):
    """These leaves were read and handed over."""

    shard: ShardId
    runs: tuple[Run, ...]


class LeavesFailed(msgspec.Struct, frozen=True):
    """These leaves were not read or not handed over; `gone`: they never will be."""

    shard: ShardId
    runs: tuple[Run, ...]
    reason: str
    gone: bool


class OpenShard(msgspec.Struct, frozen=True):
    """Find the shard and its tree; answer with Opened or Absent."""

    shard: ShardId


class CloseShard(msgspec.Struct, frozen=True):
    """Forget the shard's tree."""

    shard: ShardId


class SendTree(msgspec.Struct, frozen=True):
    """Send the tree as an Offer."""

    shard: ShardId
    to: Party


class ReadLeaves(msgspec.Struct, frozen=True):
    """Read leaves and send them in one message; answer with LeavesSent or LeavesFailed."""

    shard: ShardId
    to: Party
    runs: tuple[Run, ...]


class SayNotYet(msgspec.Struct, frozen=True):
    """Tell the asker that these leaves do not come; without runs the whole shard does not."""

    shard: ShardId
    to: Party
    runs: tuple[Run, ...]
    gone: bool
    reason: str


HolderEvent = Wanted | Opened | Absent | LeavesSent | LeavesFailed | Ticked
HolderEffect = OpenShard | CloseShard | SendTree | ReadLeaves | SayNotYet


@dataclass(slots=True)
class _Serve:
    """A shard that is asked for."""

    asker: Party
    used: float
    early: Want
    sizes: Sequence[int] | None = None
    queue: deque[int] = field(default_factory=deque)
    queued: int = 0
    awaited: set[int] = field(default_factory=set)
    reads: int = 0


class Holder:
    """Serves shards of backups."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._serves: dict[ShardId, _Serve] = {}
        self._reads = 0

    def handle(self, event: HolderEvent, now: float) -> list[HolderEffect]:
        """Take one event."""
        effects: list[HolderEffect] = []
        match event:
            case Wanted():
                effects += self._want(event, now)
            case Opened(shard, sizes):
                effects += self._open(shard, sizes)
            case Absent(shard, reason, gone):
                if (serve := self._serves.pop(shard, None)) is not None:
                    effects.append(SayNotYet(shard, serve.asker, serve.early.runs, gone, reason))
            case LeavesSent(shard, runs):
                self._end_read(shard, runs)
            case LeavesFailed(shard, runs, reason, gone):
                if (serve := self._end_read(shard, runs)) is not None:
                    effects.append(SayNotYet(shard, serve.asker, runs, gone, reason))
            case Ticked():
                effects += self._close_idle(now)
        return [*effects, *self._read()]

    def next_deadline(self) -> float | None:
        """When a shard that nobody asks for is closed."""
        idle = [serve.used for serve in self._serves.values() if _is_idle(serve)]
        return min(idle) + self._bounds.idle if idle else None

    def _want(self, event: Wanted, now: float) -> list[HolderEffect]:
        want = event.want
        shard = ShardId(event.job, want.backup, want.address)
        effects: list[HolderEffect] = []
        serve = self._serves.get(shard)
        if serve is not None and serve.sizes is None:
            return self._say_opening(shard, serve, want)
        if serve is None:
            if not (want.runs or want.tree):
                return []  # the last acknowledgement of a fetch that is over
            if len(self._serves) >= self._bounds.shards:
                effects += self._close_oldest()
            if len(self._serves) >= self._bounds.shards:
                reason = f"{len(self._serves)} shards are being read already"
                return [SayNotYet(shard, event.asker, want.runs, gone=False, reason=reason)]
            self._serves[shard] = _Serve(event.asker, now, early=want)
            return [*effects, OpenShard(shard)]
        serve.asker = event.asker
        serve.used = now
        if want.tree:
            effects.append(SendTree(shard, serve.asker))
        return [*effects, *self._enqueue(shard, serve, want)]

    def _say_opening(self, shard: ShardId, serve: _Serve, want: Want) -> list[HolderEffect]:
        """The first Want is answered when the shard is open; until then the asker shall know that we are at it."""
        if want.tree and not serve.early.tree:
            serve.early = msgspec.structs.replace(serve.early, tree=True)
        if not (want.runs or want.tree):
            return []
        return [SayNotYet(shard, serve.asker, want.runs, gone=False, reason="the backup is being looked through")]

    def _open(self, shard: ShardId, sizes: Sequence[int]) -> list[HolderEffect]:
        serve = self._serves.get(shard)
        if serve is None:
            return [CloseShard(shard)]
        serve.sizes = sizes
        effects: list[HolderEffect] = [SendTree(shard, serve.asker)] if serve.early.tree else []
        return [*effects, *self._enqueue(shard, serve, serve.early)]

    def _enqueue(self, shard: ShardId, serve: _Serve, want: Want) -> list[HolderEffect]:
        sizes = serve.sizes or ()
        inside = all(run.first >= 0 and 0 < run.count <= len(sizes) - run.first for run in want.runs)
        if not inside or sum(run.count for run in want.runs) > len(sizes):
            reason = f"leaves were asked for beyond the {len(sizes)} of the shard"
            return [SayNotYet(shard, serve.asker, want.runs, gone=True, reason=reason)]
        room = min(want.credit, self._bounds.queue)
        beyond: list[int] = []
        for run in want.runs:
            for number in range(run.first, run.first + run.count):
                if number in serve.awaited:
                    continue
                if serve.queued + sizes[number] > room:
                    beyond.append(number)
                    continue
                serve.queue.append(number)
                serve.awaited.add(number)
                serve.queued += sizes[number]
        if not beyond:
            return []
        return [SayNotYet(shard, serve.asker, _runs(beyond), gone=False, reason="more than the credit or our queue")]

    def _read(self) -> list[HolderEffect]:
        """Begin reads, one for each shard in turn."""
        effects: list[HolderEffect] = []
        while self._reads < self._bounds.reads:
            waiting = [(serve.reads, shard) for shard, serve in self._serves.items() if serve.queue]
            if not waiting:
                break
            _, shard = min(waiting, key=lambda item: item[0])
            serve = self._serves[shard]
            runs = _runs(self._take(serve))
            serve.reads += 1
            self._reads += 1
            effects.append(ReadLeaves(shard, serve.asker, runs))
        return effects

    def _take(self, serve: _Serve) -> list[int]:
        sizes = serve.sizes or ()
        taken: list[int] = []
        total = 0
        while serve.queue and len(taken) < self._bounds.leaves:
            size = sizes[serve.queue[0]]
            if taken and total + size > self._bounds.message:
                break
            taken.append(serve.queue.popleft())
            total += size
        serve.queued -= total
        return taken

    def _end_read(self, shard: ShardId, runs: tuple[Run, ...]) -> _Serve | None:
        serve = self._serves.get(shard)
        self._reads -= 1
        if serve is not None:
            serve.reads -= 1
            for run in runs:
                serve.awaited.difference_update(range(run.first, run.first + run.count))
        return serve

    def _close_idle(self, now: float) -> list[HolderEffect]:
        idle = [
            shard for shard, serve in self._serves.items() if _is_idle(serve) and now >= serve.used + self._bounds.idle
        ]
        return [self._close(shard) for shard in idle]

    def _close_oldest(self) -> list[HolderEffect]:
        idle = [(serve.used, shard) for shard, serve in self._serves.items() if _is_idle(serve)]
        return [self._close(min(idle, key=lambda item: item[0])[1])] if idle else []

    def _close(self, shard: ShardId) -> HolderEffect:
        del self._serves[shard]
        return CloseShard(shard)


def _is_idle(serve: _Serve) -> bool:
    return serve.sizes is not None and not serve.queue and not serve.reads


def _runs(numbers: Iterable[int]) -> tuple[Run, ...]:
    """Join numbers that follow one another, keeping the order."""
    runs: list[Run] = []
    for number in numbers:
        if runs and runs[-1].first + runs[-1].count == number:
            runs[-1] = Run(first=runs[-1].first, count=runs[-1].count + 1)
        else:
            runs.append(Run(first=number, count=1))
    return tuple(runs)
