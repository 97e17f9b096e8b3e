"""Pure: all peers that are being served, one `Holder` for each peer and shard."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

import msgspec

from checkpoint_replicator.ids import Address
from checkpoint_replicator.machine import Ticked
from checkpoint_replicator.messages import Want
from checkpoint_replicator.records import Peer
from checkpoint_transfer.budget import Budget
from checkpoint_transfer.holder import Holder, HolderEffect, HolderEvent, LeavesLanded, Wanted
from checkpoint_transfer.leaves import LeafSet, Sizes, fit
from checkpoint_transfer.patience import Patience
from checkpoint_transfer.source import Source, source_of

__all__ = ["Serve", "Serving"]

MOST_RUNS: Final = 1 << 20
"""Runs that all parked Wants together may name."""

Addressed = tuple[Peer, HolderEffect]


class Parked(msgspec.Struct, frozen=True):
    """A Want for a shard of which nothing is known yet."""

    want: Want
    deadline: float


class Serve:
    """One shard that can be served: its leaf sizes, which leaves are here, and who is being served."""

    __slots__ = ("have", "holders", "sizes")

    def __init__(self, sizes: Sizes, have: LeafSet) -> None:
        self.sizes = sizes
        self.have = have
        self.holders: dict[Source, tuple[Peer, Holder]] = {}


class Serving:
    """Serves peers out of whole shards and of partials alike, within one budget."""

    def __init__(self, budget: Budget, limit: int, most: int, patience: Patience) -> None:
        """Take the bound of all serves and of one, in bytes, and how many peers are served or parked at most."""
        self._budget = budget
        self._limit = limit
        self._most = most
        self._patience = patience
        self._serves: dict[Address, Serve] = {}
        self._parked: dict[tuple[Address, Source], Parked] = {}
        self._waiting: Counter[Address] = Counter()
        self._runs = 0
        """How many peers are parked for each shard, and how many runs all of them name."""

    def __contains__(self, address: Address) -> bool:
        return address in self._serves

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The known shards."""
        return tuple(self._serves)

    def open(self, address: Address, sizes: Sizes, have: LeafSet) -> list[Want]:
        """Make a shard known, or its leaves anew; returns the Wants that were parked for it, to be taken now."""
        serve = self._serves.setdefault(address, Serve(sizes, have))
        serve.have = have
        for _, holder in serve.holders.values():
            holder.have = have
        keys = [key for key in self._parked if key[0] == address] if address in self._waiting else []
        return [self._unpark(key) for key in keys]

    def park(self, want: Want, now: float) -> bool:
        """Keep a Want for a shard that is not known yet; False when there are too many."""
        key = (want.address, source_of(want.answer_to))
        known = self._parked.get(key)
        if known is None and len(self._parked) >= self._most:
            return False
        runs = self._runs + len(want.runs) - (len(known.want.runs) if known else 0)
        if runs > MOST_RUNS:
            return False
        self._parked[key] = Parked(want, now + self._patience.parked)
        self._runs = runs
        if known is None:
            self._waiting[want.address] += 1
        return True

    def is_wanted(self, address: Address) -> bool:
        """Tell whether a peer is served out of this shard, or waits for it."""
        serve = self._serves.get(address)
        return bool(serve and serve.holders) or address in self._waiting

    def want(self, want: Want, now: float) -> list[Addressed] | None:
        """Take a Want for a known shard; None: its runs lie outside of the shard, or too many peers are served."""
        serve = self._serves[want.address]
        if not fit(want.runs, len(serve.have)) or want.credit < 0:
            return None
        source = source_of(want.answer_to)
        if source not in serve.holders:
            if sum(len(other.holders) for other in self._serves.values()) >= self._most:
                return None
            holder = Holder(serve.sizes, serve.have, self._budget, self._limit, self._patience)
            serve.holders[source] = (want.answer_to, holder)
        return self._ask(want.address, source, Wanted(want.runs, want.credit), now)

    def tell(self, address: Address, peer: Peer, event: HolderEvent, now: float) -> list[Addressed]:
        """Pass an event to the holder that serves this peer, if there is one."""
        return self._ask(address, source_of(peer), event, now)

    def landed(self, address: Address, now: float) -> list[Addressed]:
        """Serve what came for those who wait for it."""
        serve = self._serves.get(address)
        sources = list(serve.holders) if serve else []
        return [effect for source in sources for effect in self._ask(address, source, LeavesLanded(), now)]

    def sent(self, address: Address, peer: Peer) -> int:
        """Return how many bytes of the shard went to the peer in this serve."""
        serve = self._serves.get(address)
        known = serve.holders.get(source_of(peer)) if serve else None
        return known[1].sent if known else 0

    def stop(self, address: Address, source: Source) -> None:
        """Forget a peer that has the shard, or does not want it."""
        serve = self._serves.get(address)
        if serve and (known := serve.holders.pop(source, None)):
            known[1].close()

    def lose(self, source: Source) -> None:
        """Forget a peer that is away."""
        for address in self._serves:
            self.stop(address, source)

    def close(self, address: Address) -> list[Peer]:
        """Forget a shard; returns the peers that were being served out of it."""
        serve = self._serves.pop(address, None)
        if serve is None:
            return []
        for _, holder in serve.holders.values():
            holder.close()
        return [peer for peer, _ in serve.holders.values()]

    def tick(self, now: float) -> tuple[list[tuple[Address, Addressed]], list[Want]]:
        """Let time pass; returns effects, and the parked Wants that waited too long."""
        effects: list[tuple[Address, Addressed]] = []
        for address, source, holder in list(self._all()):
            effects += [(address, addressed) for addressed in self._ask(address, source, Ticked(), now)]
            if holder.is_forgotten(now):
                self.stop(address, source)
        late = [key for key, parked in self._parked.items() if now >= parked.deadline]
        return effects, [self._unpark(key) for key in late]

    def poke(self, now: float) -> list[tuple[Address, Addressed]]:
        """Let holders go on that waited for the budget, those that had least first."""
        effects: list[tuple[Address, Addressed]] = []
        starved = [one for one in self._all() if one[2].is_starved]
        for address, source, _ in sorted(starved, key=lambda one: one[2].sent):
            if self._budget.free <= 0:
                break
            effects += [(address, addressed) for addressed in self._ask(address, source, LeavesLanded(), now)]
        return effects

    def next_deadline(self) -> float | None:
        """When the next Want or acknowledgement is overdue, or a silent peer is to be forgotten."""
        deadlines = [deadline for _, _, holder in self._all() if (deadline := holder.next_deadline()) is not None]
        deadlines += [parked.deadline for parked in self._parked.values()]
        return min(deadlines, default=None)

    def _unpark(self, key: tuple[Address, Source]) -> Want:
        want = self._parked.pop(key).want
        self._runs -= len(want.runs)
        self._waiting[want.address] -= 1
        if not self._waiting[want.address]:
            del self._waiting[want.address]
        return want

    def _all(self) -> Iterator[tuple[Address, Source, Holder]]:
        for address, serve in self._serves.items():
            for source, (_, holder) in serve.holders.items():
                yield address, source, holder

    def _ask(self, address: Address, source: Source, event: HolderEvent, now: float) -> list[Addressed]:
        serve = self._serves.get(address)
        known = serve.holders.get(source) if serve else None
        if known is None:
            return []
        peer, holder = known
        return [(peer, effect) for effect in holder.handle(event, now)]
