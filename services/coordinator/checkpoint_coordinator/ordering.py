"""What every host is to do: its peers, the copies that are missing, its part of a backup; pure."""

import msgspec

from checkpoint_coordinator.commit import Crew
from checkpoint_coordinator.desk import Desk
from checkpoint_coordinator.inventory import Line
from checkpoint_coordinator.rendezvous import Rendezvous
from checkpoint_coordinator.replication import missing_copies, peers_of
from checkpoint_coordinator.restore import whole
from checkpoint_coordinator.saves import Saves
from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Host
from checkpoint_replicator.records import BackupOrder, Orders, Peer, ReplicateOrder
from checkpoint_replicator.save import ShardKey, Tag

__all__ = ["Ordering"]


class Ordering:
    """The orders of one job's hosts."""

    def __init__(self, desk: Desk, saves: Saves, rendezvous: Rendezvous) -> None:
        self._desk = desk
        self._saves = saves
        self._rendezvous = rendezvous

    def advance(self, crew: Crew | None) -> None:
        """Say anew what is ordered, where it is something else."""
        desk = self._desk
        peers = desk.peers()
        backup = desk.archive.orders()
        replicate = self._replicate(crew, peers)
        settling = crew is None and desk.running and desk.patient
        wanted: dict[Host, Orders] = {}
        for host in sorted(desk.live | desk.state.orders.keys() if settling else desk.live):
            wanted[host] = self._orders_of(host, crew, peers, backup.get(host, ()), replicate.get(host, ()))
            before = desk.state.orders.get(host)
            if settling and before is not None:  # a new coordinator that has not heard all yet stops no transfer
                wanted[host] = msgspec.structs.replace(wanted[host], peers=before.peers, replicate=before.replicate)
        for host, orders in wanted.items():
            before = desk.state.orders.get(host)
            if before is not None and _same(before, orders):
                wanted[host] = before
        if wanted != desk.state.orders:
            stamp = desk.next_stamp()
            desk.state.orders = {
                host: orders if orders is desk.state.orders.get(host) else _stamped(orders, stamp)
                for host, orders in wanted.items()
            }

    def _orders_of(
        self,
        host: Host,
        crew: Crew | None,
        peers: dict[Host, Peer | None],
        backup: tuple[BackupOrder, ...],
        replicate: tuple[ReplicateOrder, ...],
    ) -> Orders:
        chosen: tuple[Peer, ...] = ()
        if crew is not None:
            for member in crew.members:
                if member.host == host and member.rank in crew.placements:
                    chosen = (*chosen, *peers_of(crew.placements[member.rank], crew.members, peers))
        last = self._desk.archive.last
        return Orders(
            stamp=self._desk.stamp,
            peers=chosen,
            replicate=replicate,
            backup=backup,
            last_backup=last.name if last is not None else "",
        )

    def _replicate(self, crew: Crew | None, peers: dict[Host, Peer | None]) -> dict[Host, tuple[ReplicateOrder, ...]]:
        """Make the newest committed save's copies complete again; not while a fault of the network looks like loss."""
        desk = self._desk
        save = self._saves.committed()
        if crew is None or save is None or desk.common_fault:
            return {}
        tags: dict[ShardKey, Tag]
        choice = self._rendezvous.choice()
        if self._saves.own() is None and choice is not None and choice.line is not None:
            found, tags = desk.stock.lines.get(choice.line), dict(choice.tags)
        else:
            found = desk.stock.lines.get(Line(save, crew.shape))
            tags = whole(found) if found is not None else {}
        return missing_copies(found, tags, crew, desk.stock, peers) if found is not None else {}


def _same(one: Orders, other: Orders) -> bool:
    return msgspec.structs.replace(one, stamp=other.stamp) == other


def _stamped(orders: Orders, stamp: Stamp) -> Orders:
    return msgspec.structs.replace(orders, stamp=stamp)
