"""When a save is committed, and who holds it up; pure.

Committed = whole, and every shard has its required replicas on other live hosts, counted from the receivers' own
reports. The number required is the number asked, at most the other live hosts; a rank without peers commits with its
own copy and is shown as unprotected.
"""

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from typing import Final

import msgspec

from checkpoint_coordinator.inventory import Found
from checkpoint_coordinator.membership import ranks_text
from checkpoint_replicator.ids import Address, Host, Rank
from checkpoint_replicator.messages import Fault
from checkpoint_replicator.placement import Placement
from checkpoint_replicator.records import Member
from checkpoint_replicator.save import Save, ShardKey, shards_of
from checkpoint_replicator.shape import Shape

__all__ = ["UNTAKEN", "Crew", "SaveState", "SaveVerdict", "judge", "protection"]

UNTAKEN: Final = frozenset({"refused", "unsupported"})
"""Kinds of faults of a save that a node could not take: its shard will not come, unless another draft stands."""
MOST_NAMED: Final = 4


class SaveState(StrEnum):
    """Where a save stands."""

    SAVING = "saving"
    REPLICATING = "replicating"
    COMMITTED = "committed"
    INCOMPLETE = "incomplete"
    MUTATED = "mutated"
    SKIPPED = "skipped"
    ABANDONED = "abandoned"


class Crew(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The nodes that save together.

    Attributes:
        shape: of the epoch.
        members: who holds each rank.
        placements: where each rank's copies go.
        live: hosts that are not lost.
    """

    shape: Shape
    members: tuple[Member, ...]
    placements: Mapping[Rank, Placement]
    live: frozenset[Host]

    @cached_property
    def hosts(self) -> Mapping[Rank, Host]:
        """The host of every rank."""
        return {member.rank: member.host for member in self.members}

    @cached_property
    def present(self) -> frozenset[Host]:
        """The members' hosts that are not lost."""
        return frozenset(self.hosts.values()) & self.live

    def host(self, rank: Rank) -> Host | None:
        """Return the host of a rank."""
        return self.hosts.get(rank)

    def required(self, rank: Rank) -> int:
        """Return how many copies a rank's shards must have on other hosts before a save commits."""
        placement = self.placements.get(rank)
        if placement is None:
            return 0
        return min(placement.asked, len(self.present) - (self.host(rank) in self.present))


class SaveVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a save of the running epoch.

    Attributes:
        state: see SaveState.
        reason: who is waited for, or what is wrong; empty when committed.
        shards: shard to the content that counts.
        copies_min: the lowest number of copies beside the own one that any shard has.
        unprotected: some shard has no copy on another host.
    """

    state: SaveState
    reason: str = ""
    shards: Mapping[ShardKey, Address] = {}
    copies_min: int = 0
    unprotected: bool = True


def judge(
    save: Save,
    found: Found | None,
    crew: Crew,
    *,
    faults: Sequence[tuple[Host, Fault]] = (),
) -> SaveVerdict:
    """Judge a save of the running epoch.

    Args:
        save: which.
        found: what hosts hold of it in the epoch's shape; None: nothing yet.
        crew: who saves.
        faults: what hosts could not do for this save.
    """
    shards: dict[ShardKey, Address] = {}
    absent: list[ShardKey] = []
    for key in shards_of(crew.shape):
        tag = found.resolve(key) if found is not None else None
        if tag is None or found is None or not _is_owned(found, key, tag.address, crew):
            absent.append(key)
        if tag is not None:
            shards[key] = tag.address
    short, least = _shortfall(found, shards, crew)
    unprotected = least == 0
    state, reason = _fault_state(save, faults)
    untaken = _untaken(absent, crew, faults) if state is None and absent else []
    if untaken:
        state, reason = SaveState.INCOMPLETE, "; ".join(untaken[:MOST_NAMED])
    if state is None and absent:
        state, reason = SaveState.SAVING, f"{_laggards(absent, crew)} did not save it yet"
    if state is None and short:
        told = [fault.reason for _, fault in faults if fault.kind == "uncopied"]
        state, reason = SaveState.REPLICATING, "; ".join((short, *told[:MOST_NAMED]))
    if state is None:
        state = SaveState.COMMITTED
    return SaveVerdict(state=state, reason=reason, shards=shards, copies_min=least, unprotected=unprotected)


def protection(found: Found, shards: Mapping[ShardKey, Address], live: Collection[Host]) -> int:
    """Return the lowest number of live hosts that hold a shard, less one: how many hosts may be lost."""
    counts = [len(found.hosts(key, address) & frozenset(live)) for key, address in shards.items()]
    return max(0, min(counts, default=0) - 1)


def _is_owned(found: Found, key: ShardKey, address: Address, crew: Crew) -> bool:
    """Tell whether the rank's own host holds it: its trainer saved it there, or it saved it before the rank moved."""
    copies = found.copies.get((key, address), ())
    return any(copy.own or copy.host == crew.host(key.rank) for copy in copies)


def _shortfall(found: Found | None, shards: Mapping[ShardKey, Address], crew: Crew) -> tuple[str, int]:
    """Return who still lacks copies, as a text, and the lowest number of copies of any shard."""
    least: int | None = None
    short: dict[Rank, int] = {}
    for key, address in shards.items():
        hosts = found.hosts(key, address) & crew.live if found is not None else frozenset()
        copies = max(0, len(hosts) - 1)
        least = copies if least is None else min(least, copies)
        lacking = crew.required(key.rank) - copies
        if lacking > 0:
            short[key.rank] = max(short.get(key.rank, 0), lacking)
    if not short:
        return "", least or 0
    names = []
    for rank in sorted(short)[:4]:
        peers = crew.placements[rank].peers
        names.append(f"rank {rank} lacks {short[rank]} of {crew.required(rank)} copies (to {ranks_text(peers)})")
    more = f" and {len(short) - len(names)} more ranks" if len(short) > len(names) else ""
    return "; ".join(names) + more, least or 0


def _laggards(absent: Sequence[ShardKey], crew: Crew) -> str:
    ranks = sorted({key.rank for key in absent})
    names = [f"rank {rank} on {crew.host(rank) or 'no host'}" for rank in ranks[:4]]
    more = f" and {len(ranks) - len(names)} more" if len(ranks) > len(names) else ""
    return ", ".join(names) + more


def _fault_state(save: Save, faults: Sequence[tuple[Host, Fault]]) -> tuple[SaveState | None, str]:
    for kind, state in (("mutated", SaveState.MUTATED), ("skipped", SaveState.SKIPPED)):
        for host, fault in faults:
            if fault.kind == kind:
                return state, f"{host}: {fault.reason or f'save {save} {kind}'}"
    return None, ""


def _untaken(absent: Sequence[ShardKey], crew: Crew, faults: Sequence[tuple[Host, Fault]]) -> list[str]:
    """Say why shards that nobody has will not come; of a shard that stands a draft that was not taken says nothing."""
    hosts = {crew.host(key.rank): key.rank for key in absent}
    return [
        f"rank {hosts[host]} on {host}: {fault.reason}"
        for host, fault in faults
        if fault.kind in UNTAKEN and host in hosts and (fault.key is None or fault.key in absent)
    ]
