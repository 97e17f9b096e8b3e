"""Pure: one fetch of one shard, from any number of sources.

The tree comes from any source; then leaves from all of them at once. Nothing counts before its bytes were verified
against the tree. A source that is silent, dry or corrupt is remembered, and the fetch fails only when every source was
tried; then it says of each one why.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from checkpoint_replicator.machine import Ticked
from checkpoint_replicator.messages import Run
from checkpoint_transfer.budget import Budget
from checkpoint_transfer.leaves import CHUNK_BYTES, CHUNK_LEAVES, LeafSet, Sizes, fit, leaves_in, runs_of
from checkpoint_transfer.patience import Patience
from checkpoint_transfer.receiving import (
    AskLeaves,
    AskTree,
    Complain,
    Frames,
    LeavesAbsent,
    LeavesArrived,
    LeavesStored,
    NameShard,
    NamingFailed,
    OpenPartial,
    PartialAbsent,
    PartialOpened,
    PartialRefused,
    ReceiverEffect,
    ReceiverEvent,
    RoomMissing,
    ShardNamed,
    ShardStood,
    SourceLost,
    SourcesChanged,
    StoreFailed,
    StoreLeaves,
    TreeArrived,
    TreeSpoiled,
)
from checkpoint_transfer.source import Source
from checkpoint_transfer.supply import Supply

__all__ = ["Phase", "Receiver"]

MISSING: Final = 0
ASKED: Final = 1
STORING: Final = 2
HERE: Final = 3


class Phase(StrEnum):
    """Where a fetch stands."""

    LOOKING = "looking"
    """The disk is asked for a partial, or the whole shard, from earlier."""
    TREE = "tree"
    OPENING = "opening"
    """The disk checks the tree and reserves the room."""
    LEAVES = "leaves"
    NAMING = "naming"
    DONE = "done"
    FAILED = "failed"


class Receiver:
    """One fetch. It begins with `SourcesChanged`; `phase`, `reason` and `have` tell how it stands."""

    def __init__(self, budget: Budget, window: int, patience: Patience) -> None:
        """Take the shared bound and this fetch's own window, both in bytes."""
        self._budget = budget
        self.window = window
        """Bytes asked for and not stored, at most; whoever composes several fetches may change it."""
        self._patience = patience
        self._supplies: dict[Source, Supply] = {}
        self._marks = bytearray()
        self._cursor = 0
        self._storing = 0
        self._storing_bytes = 0
        self._spoiled: set[int] = set()
        self._retry_at: float | None = None
        self.phase = Phase.LOOKING
        self.reason = ""
        """Why it failed last; empty again as soon as it makes progress."""
        self.fault = ""
        """The kind of the last failure: `no_room`, `clash` or `failed`."""
        self.sizes: Sizes = ()
        self.have = LeafSet.empty(0)
        self.have_bytes = 0
        self.by_source: dict[str, int] = {}
        self.is_starved = False
        """Whether it would ask for more if the budget had room."""

    def handle(self, event: ReceiverEvent, now: float) -> list[ReceiverEffect]:  # noqa: PLR0915 - a line or three an event
        """Take one event."""
        effects: list[ReceiverEffect] = []
        match event:
            case SourcesChanged(sources):
                effects += self._change(sources)
            case TreeArrived(source, body):
                effects += self._take_tree(source, body, now)
            case PartialAbsent():
                if self.phase is Phase.LOOKING:
                    self.phase = Phase.TREE
            case TreeSpoiled(source, reason):
                if (supply := self._supplies.get(source)) is not None:
                    supply.given_up = f"sent a tree that is not the shard's: {reason}"
                    supply.corrupt += 1
                if self.phase in {Phase.LOOKING, Phase.OPENING}:
                    self.phase = Phase.TREE
            case PartialOpened(sizes, have):
                self._open(sizes, have)
            case ShardStood():
                if self.phase in {Phase.LOOKING, Phase.OPENING}:
                    self.phase = Phase.NAMING
                    effects.append(NameShard())
            case RoomMissing(reason, _):
                if self.phase in {Phase.LOOKING, Phase.OPENING}:
                    self._fail(reason, now)
                    self.fault = "no_room"
            case PartialRefused(reason):
                if self.phase in {Phase.LOOKING, Phase.OPENING}:
                    self._fail(reason, now)
            case LeavesArrived(source, runs, body):
                effects += self._take(source, runs, body, now)
            case LeavesStored(source, good, bad, size):
                self._end_store(source, size)
                effects += self._settle(source, good, bad, now)
            case StoreFailed(source, size, reason):
                self._end_store(source, size)
                self._fail(reason, now)
            case LeavesAbsent(source, runs, gone, reason):
                self._absent(source, runs, gone=gone, reason=reason, now=now)
            case SourceLost(source, reason):
                if (supply := self._supplies.get(source)) is not None and supply.is_busy:
                    self._unask(supply)
                    supply.missed(now, reason)
            case ShardNamed():
                if self.phase is Phase.NAMING:
                    self.phase = Phase.DONE
                    self.reason = ""
            case NamingFailed(reason, clash):
                self._fail(reason, now)
                self.fault = "clash" if clash else "failed"
            case Ticked():
                effects += self._tick(now)
        touched = event.source if isinstance(event, LeavesStored) else None
        return [*effects, *self._go_on(touched, now)]

    def next_deadline(self) -> float | None:
        """When a source's answer is overdue, its rest ends, or a failed fetch starts again."""
        if self.phase is Phase.FAILED:
            return self._retry_at
        if self.phase not in {Phase.TREE, Phase.LEAVES}:
            return None
        deadlines: list[float] = []
        for supply in self._supplies.values():
            if (overdue := supply.deadline()) is not None:
                deadlines.append(overdue)
            elif supply.is_usable and (rested := supply.rest_ends()) is not None:
                deadlines.append(rested)
        return min(deadlines, default=None)

    @property
    def is_quiet(self) -> bool:
        """Whether no thread works for it, so that it can be forgotten."""
        return not self._storing and self.phase not in {Phase.LOOKING, Phase.OPENING, Phase.NAMING}

    @property
    def corrupt(self) -> dict[Source, int]:
        """Corrupt leaves that came from each source."""
        return {source: supply.corrupt for source, supply in self._supplies.items() if supply.corrupt}

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources, the best first."""
        return tuple(self._supplies)

    def is_complained(self, source: Source) -> bool:
        """Tell whether a leaf of this source came corrupt twice."""
        supply = self._supplies.get(source)
        return supply is not None and any(not supply.may_give(leaf) for leaf in supply.spoiled)

    def close(self) -> None:
        """Give back what the budget lent; leaves in threads give theirs back here too, and are not waited for."""
        for supply in self._supplies.values():
            self._unask(supply)
        self._budget.give(self._storing_bytes)
        self._storing_bytes = 0

    # ---- sources

    def _change(self, sources: tuple[Source, ...]) -> list[ReceiverEffect]:
        begins = not self._supplies and self.phase is Phase.LOOKING
        for source in [source for source in self._supplies if source not in sources]:
            self._unask(self._supplies.pop(source))
        known = self._supplies
        fresh = any(source not in known for source in sources)
        self._supplies = {source: known.get(source) or Supply(source, self._patience) for source in sources}
        if fresh and self.phase is Phase.FAILED:
            self._retry_at = 0.0
        return [OpenPartial()] if begins else []

    def _absent(self, source: Source, runs: tuple[Run, ...], *, gone: bool, reason: str, now: float) -> None:
        supply = self._supplies.get(source)
        if supply is None or not supply.is_busy:
            return
        if runs and fit(runs, len(self._marks)):
            self._unask(supply, list(leaves_in(runs)))
        else:
            self._unask(supply)
        if gone:
            supply.given_up = reason or "does not have it"
        else:
            supply.dried(now, reason or "does not have it yet")

    def _unask(self, supply: Supply, leaves: list[int] | None = None) -> None:
        dropped, size = supply.forget(leaves)
        self._budget.give(size)
        for leaf in dropped:
            self._miss(leaf)

    def _miss(self, leaf: int) -> None:
        self._marks[leaf] = MISSING
        self._cursor = min(self._cursor, leaf)

    def _end_store(self, source: Source, size: int) -> None:
        self._storing -= 1
        self._storing_bytes -= size
        self._budget.give(size)
        if (supply := self._supplies.get(source)) is not None:
            supply.storing_bytes = max(supply.storing_bytes - size, 0)

    # ---- tree

    def _take_tree(self, source: Source, body: Frames, now: float) -> list[ReceiverEffect]:
        supply = self._supplies.get(source)
        if supply is None or self.phase is not Phase.TREE:
            return []
        supply.heard(now)
        for other in self._supplies.values():
            other.waiting = False
        self.phase = Phase.OPENING
        return [OpenPartial(source, body)]

    def _open(self, sizes: Sizes, have: LeafSet) -> None:
        if self.phase not in {Phase.LOOKING, Phase.OPENING}:
            return
        self.phase = Phase.LEAVES
        self.sizes = sizes
        self.have = have
        self._marks = bytearray(HERE if leaf in have else MISSING for leaf in range(len(sizes)))
        self._cursor = 0
        self.have_bytes = sum(sizes[leaf] for leaf in have)

    # ---- leaves

    def _take(self, source: Source, runs: tuple[Run, ...], body: Frames, now: float) -> list[ReceiverEffect]:
        supply = self._supplies.get(source)
        if supply is None or self.phase is not Phase.LEAVES or not fit(runs, len(self._marks)):
            return []
        leaves = [leaf for leaf in leaves_in(runs) if leaf in supply.asked]
        if not leaves:
            return []  # nobody asked, or it came after its deadline and was asked of another
        size = supply.arrived(leaves)
        supply.spoke(now)
        for leaf in leaves:
            self._marks[leaf] = STORING
        self._storing += 1
        self._storing_bytes += size
        return [StoreLeaves(source, runs, body, size)]

    def _settle(self, source: Source, good: Iterable[int], bad: Iterable[int], now: float) -> list[ReceiverEffect]:
        supply = self._supplies.get(source)
        effects: list[ReceiverEffect] = []
        for leaf in good:
            if self.have.add(leaf):
                self.have_bytes += self.sizes[leaf]
                self.by_source[source.kind] = self.by_source.get(source.kind, 0) + self.sizes[leaf]
                self.reason = ""
            self._marks[leaf] = HERE
            if leaf in self._spoiled:
                self._spoiled.discard(leaf)
                effects += self._convict(leaf, source)
            if supply is not None:
                supply.heard(now)
        for leaf in bad:
            if self._marks[leaf] != STORING:
                continue
            self._miss(leaf)
            self._spoiled.add(leaf)
            if supply is not None and (complaint := supply.spoil(leaf)):
                effects.append(Complain(source, complaint))
        return effects

    def _convict(self, leaf: int, right: Source) -> list[ReceiverEffect]:
        """Tell who gave a leaf corrupt that another gave it right: its copy still counts, so it must look at it."""
        return [
            Complain(source, f"leaf {leaf} came corrupt, and right from {right}")
            for source, supply in self._supplies.items()
            if source != right and leaf in supply.spoiled
        ]

    def _go_on(self, touched: Source | None, now: float) -> list[ReceiverEffect]:
        match self.phase:
            case Phase.TREE:
                return self._ask_tree(now)
            case Phase.LEAVES if self.have.is_full:
                if self._storing:
                    return []  # a write after the naming would change the shard's times
                for supply in self._supplies.values():
                    self._unask(supply)
                self.phase = Phase.NAMING
                last = [AskLeaves(touched, (), 0)] if touched in self._supplies and touched is not None else []
                return [*last, NameShard()]
            case Phase.LEAVES:
                return self._ask(touched, now)
            case _:
                return []

    def _ask_tree(self, now: float) -> list[ReceiverEffect]:
        if any(supply.is_busy for supply in self._supplies.values()):
            return []
        for supply in self._ready(now):
            supply.ask_tree(now)
            return [AskTree(supply.source)]
        if not any(supply.is_usable for supply in self._supplies.values()):
            self._fail_all(now)
        return []

    def _ready(self, now: float) -> list[Supply]:
        """Sources that may be asked now; the backup only when no peer is worth waiting for."""
        supplies = self._supplies.values()
        peers = [supply for supply in supplies if not supply.source.backup]
        wait = any(supply.is_healthy(now) for supply in peers)
        ready = [supply for supply in peers if supply.is_ready(now)]
        if not wait or self._only_backup():
            ready += [supply for supply in supplies if supply.source.backup and supply.is_ready(now)]
        return ready

    def _only_backup(self) -> bool:
        """Whether a missing leaf came corrupt from every peer."""
        return any(self._marks[leaf] == MISSING and not self._a_peer_may_give(leaf) for leaf in self._spoiled)

    def _a_peer_may_give(self, leaf: int) -> bool:
        return any(supply.may_give(leaf) for supply in self._supplies.values() if not supply.source.backup)

    def _ask(self, touched: Source | None, now: float) -> list[ReceiverEffect]:
        ready = self._ready(now)
        grants: dict[Source, list[int]] = {}
        if touched is not None and touched in self._supplies:
            grants[touched] = []  # the acknowledgement, with or without a new wish
        share = max(self.window // max(len(ready), 1), min(self.window, 2 * CHUNK_BYTES))
        wait = any(supply.is_healthy(now) for supply in ready if not supply.source.backup)
        self.is_starved = False
        asking = ready
        while asking:
            asking = [supply for supply in asking if self._grant(supply, share, grants, wait=wait, now=now)]
        self._check_hope(now)
        if self.phase is not Phase.LEAVES:
            return []
        return [
            AskLeaves(source, runs_of(leaves), self._supplies[source].asked_bytes)
            for source, leaves in grants.items()
            if leaves or self._supplies[source].is_usable
        ]

    def _grant(self, supply: Supply, share: int, grants: dict[Source, list[int]], *, wait: bool, now: float) -> bool:
        """Ask one source for one more message; False when it cannot take more now."""
        room = share - supply.asked_bytes - supply.storing_bytes
        leaves, size = self._next(supply, min(room, CHUNK_BYTES), spare=bool(supply.source.backup) and wait, now=now)
        if not leaves:
            return False
        if not self._budget.take(size):
            self.is_starved = True
            return False
        supply.ask({leaf: self.sizes[leaf] for leaf in leaves}, now)
        for leaf in leaves:
            self._marks[leaf] = ASKED
        grants.setdefault(supply.source, []).extend(leaves)
        return True

    def _next(self, supply: Supply, room: int, *, spare: bool, now: float) -> tuple[list[int], int]:
        """Choose missing leaves for one message; one that came corrupt goes alone. `spare`: only what no peer gives."""
        leaves: list[int] = []
        total = 0
        leaf = self._cursor = self._find(self._cursor)
        while leaf < len(self._marks):
            if leaf in self._spoiled:
                if leaves:
                    break
                if self._should_give(supply, leaf, now) and self.sizes[leaf] <= room:
                    return [leaf], self.sizes[leaf]
            elif not spare:
                if total + self.sizes[leaf] > room or len(leaves) == CHUNK_LEAVES:
                    break
                leaves.append(leaf)
                total += self.sizes[leaf]
            leaf = self._find(leaf + 1)
        return leaves, total

    def _find(self, start: int) -> int:
        found = self._marks.find(MISSING, start)
        return len(self._marks) if found < 0 else found

    def _should_give(self, supply: Supply, leaf: int, now: float) -> bool:
        """Tell whether a leaf that came corrupt is best asked of this source: others that never spoiled it go first."""
        if not supply.may_give(leaf):
            return False
        if supply.source.backup:
            return not self._a_peer_may_give(leaf)
        if leaf not in supply.spoiled:
            return True
        others = (other for other in self._supplies.values() if other is not supply and not other.source.backup)
        return not any(other.is_ready(now) and leaf not in other.spoiled for other in others)

    # ---- ends

    def _check_hope(self, now: float) -> None:
        """Fail when a leaf is missing that no source can give."""
        usable = any(supply.is_usable for supply in self._supplies.values())
        hopeless = any(
            self._marks[leaf] == MISSING and not any(supply.may_give(leaf) for supply in self._supplies.values())
            for leaf in self._spoiled
        )
        if hopeless or not (usable or self._storing):
            self._fail_all(now)

    def _fail_all(self, now: float) -> None:
        verdicts = [f"{source}: {supply.verdict or 'not needed'}" for source, supply in self._supplies.items()]
        self._fail("; ".join(verdicts) or "no source was named", now)

    def _fail(self, reason: str, now: float) -> None:
        for supply in self._supplies.values():
            self._unask(supply)
        self.phase = Phase.FAILED
        self.fault = "failed"
        self.reason = reason
        self._retry_at = now + self._patience.afresh

    def _tick(self, now: float) -> list[ReceiverEffect]:
        if self.phase is Phase.FAILED:
            if self._retry_at is None or now < self._retry_at or self._storing:
                return []
            self._supplies = {source: Supply(source, self._patience) for source in self._supplies}
            self._spoiled.clear()
            self._retry_at = None
            self.phase = Phase.LOOKING
            return [OpenPartial()]
        for supply in self._supplies.values():
            supply.wake(now)
            if supply.is_overdue(now):
                self._unask(supply)
                supply.missed(now, f"did not answer for {self._patience.answer:g} s")
        return []
