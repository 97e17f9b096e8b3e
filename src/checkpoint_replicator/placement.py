"""Which ranks hold the replicas of a rank's shards; pure.

`peer-ranks` names them; `peers-per-node` takes the contract's neighbours: `rank xor 1`, then the farthest on the ring.
Any number of nodes works, odd ones too.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from checkpoint_replicator.ids import Host, Rank

__all__ = ["Placement", "neighbours", "place"]


class Placement(msgspec.Struct, frozen=True):
    """Where a rank's shards go.

    Attributes:
        peers: ranks that get a copy, best first; empty where none was asked or nobody else is there.
        same_host: the copies lie on the rank's own host, since no other host exists: they survive a process, no host.
        asked: how many were asked for.
    """

    peers: tuple[Rank, ...]
    asked: int
    same_host: bool = False


def neighbours(rank: Rank, nodes: int) -> tuple[Rank, ...]:
    """Return all other ranks in the contract's order: `rank xor 1`, then the farthest on the ring first.

    Two ranks of the same distance come in rising order from `rank` on, so every rank takes the same way round and
    the copies spread evenly.
    """
    partner = rank ^ 1
    first = [Rank(partner)] if partner < nodes else []

    def nearness(other: int) -> tuple[int, int]:
        ahead = (other - rank) % nodes
        return (-min(ahead, nodes - ahead), ahead)

    rest = sorted((other for other in range(nodes) if other not in {rank, partner}), key=nearness)
    return (*first, *map(Rank, rest))


def place(
    rank: Rank,
    hosts: Mapping[Rank, Host],
    *,
    peer_ranks: Sequence[Rank] | None = None,
    peers_per_node: int | None = None,
    lost: Collection[Host] = (),
) -> Placement:
    """Choose the ranks that hold copies of `rank`'s shards.

    Args:
        rank: whose shards.
        hosts: the host of every rank of the job.
        peer_ranks: exactly these, in this order; self, duplicates and ranks that do not exist are struck.
        peers_per_node: so many of the contract's neighbours; not looked at where `peer_ranks` is given.
        lost: hosts that are not there now; the next of the contract's neighbours stand in for them.

    Ranks on other hosts come first; those on the own host are taken only where no other host exists, since two copies
    on one machine die together. Of several ranks on one other host only the first counts.
    """
    around = neighbours(rank, len(hosts))
    if peer_ranks is None:
        asked = max(peers_per_node or 0, 0)
        order = around
    else:
        named = tuple(dict.fromkeys(peer for peer in peer_ranks if peer != rank and peer in hosts))
        asked = len(named)
        order = tuple(dict.fromkeys((*named, *around)))
    here = [peer for peer in order if peer in hosts and hosts[peer] not in lost]
    others = _spread([peer for peer in here if hosts[peer] != hosts[rank]], hosts)
    if others:
        return Placement(tuple(others[:asked]), asked)
    own = tuple(here[:asked])
    return Placement(own, asked, same_host=bool(own))


def _spread(peers: Sequence[Rank], hosts: Mapping[Rank, Host]) -> list[Rank]:
    """Keep the first rank of each host: a second copy on the same machine protects nothing more."""
    seen: set[Host] = set()
    kept: list[Rank] = []
    for peer in peers:
        if hosts[peer] not in seen:
            seen.add(hosts[peer])
            kept.append(peer)
    return kept
