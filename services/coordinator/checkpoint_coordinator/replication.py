"""Which copy of which shard is missing and who should send it; pure.

New saves are offered by their owners to the peers of their placement. This module is for what that does not cover: a
restored save is seeded by this epoch's placement, and a lost host's copies are made anew. A copy counts on any other
live host, wherever it lies.
"""

from collections.abc import Mapping
from typing import Final

from checkpoint_coordinator.commit import Crew
from checkpoint_coordinator.inventory import Copy, Found, Inventory
from checkpoint_replicator.ids import Address, Host, Rank
from checkpoint_replicator.placement import Placement, place
from checkpoint_replicator.records import Member, Peer, ReplicateOrder
from checkpoint_replicator.save import ShardKey, Tag
from checkpoint_replicator.session import SessionSpec

__all__ = ["missing_copies", "peers_of", "placements"]

MOST_ORDERS: Final = 256
"""So many copies are ordered of one host at once; the rest follows when these lie."""


def placements(
    members: tuple[Member, ...], specs: Mapping[Rank, SessionSpec], lost: frozenset[Host] = frozenset()
) -> dict[Rank, Placement]:
    """Place every rank's copies by what its own yaml asks for."""
    hosts = {member.rank: member.host for member in members}
    placed: dict[Rank, Placement] = {}
    for member in members:
        spec = specs.get(member.rank)
        if spec is not None:
            placed[member.rank] = place(
                member.rank, hosts, peer_ranks=spec.peer_ranks, peers_per_node=spec.peers_per_node, lost=lost
            )
    return placed


def peers_of(placement: Placement, members: tuple[Member, ...], peers: Mapping[Host, Peer | None]) -> tuple[Peer, ...]:
    """Resolve a placement into endpoints; a peer whose transfer is away is left out until it is back."""
    hosts = {member.rank: member.host for member in members}
    found = (peers.get(hosts[rank]) for rank in placement.peers if rank in hosts)
    return tuple(peer for peer in found if peer is not None)


def missing_copies(
    found: Found, tags: Mapping[ShardKey, Tag], crew: Crew, stock: Inventory, peers: Mapping[Host, Peer | None]
) -> dict[Host, tuple[ReplicateOrder, ...]]:
    """Say which host is to give which shard to whom, so that every shard of a save has its copies.

    Args:
        found: what is known of the save.
        tags: the content of each shard.
        crew: the running epoch.
        stock: who holds which address.
        peers: how each live host's transfer is reached.
    """
    orders: dict[Host, list[ReplicateOrder]] = {}
    for key, tag in sorted(tags.items()):
        holders = [copy for copy in stock.holders.get(tag.address, ()) if copy.host in crew.live]
        source = _source(holders, crew.host(key.rank), peers)
        if source is None:
            continue
        rank = key.rank if key.rank in crew.placements else _some_rank(crew, source)
        lacking = (crew.required(rank) if rank is not None else 0) - (_spread(found, key, tag.address, crew) - 1)
        if lacking <= 0 or rank is None:
            continue
        targets = _targets(rank, crew, {copy.host for copy in holders}, peers)[:lacking]
        if targets and len(orders.setdefault(source, [])) < MOST_ORDERS:
            orders[source].append(ReplicateOrder(tag=tag, to=tuple(targets)))
    return {host: tuple(listed) for host, listed in orders.items() if listed}


def _source(holders: list[Copy], wanted: Host | None, peers: Mapping[Host, Peer | None]) -> Host | None:
    """Choose who gives: the rank's own host, else the first that can be reached."""
    able = sorted(copy.host for copy in holders if peers.get(copy.host) is not None)
    return wanted if wanted in able else next(iter(able), None)


def _some_rank(crew: Crew, host: Host) -> Rank | None:
    """Return the rank of a host: for shards of a rank that the job no longer has."""
    return next((one.rank for one in crew.members if one.host == host and one.rank in crew.placements), None)


def _spread(found: Found, key: ShardKey, address: Address, crew: Crew) -> int:
    return len(found.hosts(key, address) & crew.live)


def _targets(rank: Rank, crew: Crew, holders: set[Host], peers: Mapping[Host, Peer | None]) -> list[Peer]:
    """Return who gets a copy, by the rank's placement and then by the next of its neighbours."""
    hosts = {member.rank: member.host for member in crew.members}
    own = hosts.get(rank)
    placed = crew.placements.get(rank)
    wide = place(rank, hosts, peer_ranks=[*(placed.peers if placed is not None else ()), *sorted(hosts)])
    targets: dict[Host, Peer] = {}
    for peer_rank in wide.peers:
        host = hosts[peer_rank]
        peer = peers.get(host)
        if host != own and host in crew.live and host not in holders and peer is not None:
            targets[host] = peer
    return list(targets.values())
