"""A transfer's process: what its `service.py` and `disk.py` do around the machine, on the model of a ramdisk."""

from functools import partial
from typing import TYPE_CHECKING

from checkpoint_replicator.errors import CorruptError
from checkpoint_replicator.ids import Address, Job
from checkpoint_replicator.messages import Leaves, Message, Offer, Party, Service, TransferOrders
from checkpoint_replicator.records import Peer
from checkpoint_transfer import effects as do
from checkpoint_transfer.machine import Limits, TransferMachine
from checkpoint_transfer.patience import patience_of
from checkpoint_transfer.source import source_of
from simulation.content import spoil
from simulation.network import Path
from simulation.process import Engine, Process
from simulation.ramdisk import sizes_of

if TYPE_CHECKING:
    from simulation.node import Node
    from simulation.world import World

__all__ = ["Transferring"]


class Transferring(Process):
    """One node's transfer."""

    def __init__(self, world: "World", node: "Node") -> None:
        super().__init__(world, f"{node.host}.transfer", node.host, node.skew)
        self.node = node
        self.machine: TransferMachine

    @property
    def me(self) -> Party:
        return Party(host=self.host, service=Service.TRANSFER, incarnation=self.incarnation)

    def boot(self) -> None:
        times = self.world.times
        name = f"{self.host}:{self.life}"
        self.peer = Peer(host=self.host, incarnation=self.incarnation, control=name, leaves=(name,))
        local = Peer(host=self.host, incarnation=self.incarnation, control="local", leaves=("local",))
        limits = Limits(report_gap=times.report_gap, report=times.orders)
        patience = patience_of(times)
        self.machine = TransferMachine(self.peer, local, limits, patience)
        decides = self.world.inputs.of(
            "transfer", self.machine, me=self.peer, local=local, limits=limits, patience=patience
        )
        self._engine: Engine[do.TransferEvent, do.TransferEffect] = Engine(self, decides, self.perform)
        self._engine.sleep()
        if found := self._found():
            self.soon(0.0, lambda: self._engine.take(do.ShardsFound(found)))

    def _found(self) -> tuple[Address, ...]:
        disk = self.node.disk
        held = (one for one in disk.sidecars.values() if one.committed or not one.own)
        return tuple(sorted({one.tag.address for one in held} & disk.shards.keys()))

    def bury(self) -> None:
        self.node.disk.readers.clear()
        for host in self.world.hosts.values():
            if host is not self.node and host.transferring.running:
                host.transferring.soon(0.1, partial(host.transferring.lose, self.peer))

    # ---- in

    def take_orders(self, sender: Party, job: Job, orders: TransferOrders) -> None:
        self._engine.take(do.MessageCame(sender, job, orders))

    def hear(self, sender: Party, job: Job, message: do.Wire, body: tuple[bytes, ...]) -> None:
        self._engine.take(do.MessageCame(sender, job, message, body))

    def lose(self, peer: Peer) -> None:
        """The connection to a peer ended."""
        self._engine.take(do.PeerLost(source_of(peer), "its connection ended"))

    # ---- out

    def perform(self, effect: do.TransferEffect) -> None:
        node, disk = self.node, self.node.disk
        match effect:
            case do.Tell(peer, job, message):
                self._send(peer, job, message)
            case do.TellUploader(job, message):
                self.world.network.send(
                    Path.LOCAL, self, node.uploading, partial(node.uploading.want, self.me, job, message)
                )
            case do.Report(report):
                self.world.network.send(
                    Path.LOCAL, self, node.watching, partial(node.watching.hear_transfer, self.me, report)
                )
            case do.SendOffer():
                self._later(0.01, lambda: self._offer(effect))
            case do.ServeLeaves():
                self._later(0.02, lambda: self._serve(effect))
            case do.OpenShard(address):
                self._later(0.02, lambda: self._open(effect))
            case do.Close(address):
                disk.readers.discard(address)
            case do.CheckShard(address):
                self._later(0.2, lambda: self._check(effect))
            case do.OpenPartial(address, number):
                self._later(0.02, lambda: self._moved(effect.address, number, self._open_partial(effect)))
            case do.StoreLeaves(address, number):
                self._later(0.02, lambda: self._store(effect, number))
            case do.NameShard(address, number):
                self._later(0.02, lambda: self._name(effect, number))
            case do.TrimPartials(reserve, busy):
                disk.trim(reserve, busy)
            case do.ForgetPeer():
                pass

    def _later(self, most: float, work: "do.TransferEffect | object") -> None:
        self.soon(self.world.chance.uniform(0.0005, most), work)  # type: ignore[arg-type]

    def _moved(self, address: str, number: int, event: "object") -> None:
        self._engine.take(do.FetchMoved(address, number, event))  # type: ignore[arg-type]

    def _open_partial(self, effect: do.OpenPartial) -> object:
        disk = self.node.disk
        fresh, before, rot = effect.address not in disk.partials, disk.resumed, disk.rot_found
        answer = disk.open_partial(effect)
        if disk.resumed > before:
            self.world.hits["partial went on"] += 1
        self.world.hits["rot in a partial found"] += disk.rot_found - rot
        if fresh and effect.reserve is not None and effect.address in disk.partials:
            self.world.court.copy_admitted(self, effect.reserve.size)
        return answer

    def _store(self, effect: do.StoreLeaves, number: int) -> None:
        answer = self.node.disk.store(effect)
        stored, self.world.stored = self.world.stored, None
        if stored is not None:
            stored(self.node, effect.address)
        self._moved(effect.address, number, answer)

    def _name(self, effect: do.NameShard, number: int) -> None:
        answer = self.node.disk.name_received(effect)
        self.world.court.copy_named(self, effect, answer)
        self._moved(effect.address, number, answer)

    def _offer(self, effect: do.SendOffer) -> None:
        tree = self.node.disk.tree(effect.address)
        if tree is None:
            self._engine.take(do.OfferUnsent(effect.address, "is not here"))
            return
        offer = Offer(tags=effect.tags, answer_to=self.peer, address=effect.address)
        self._send(effect.peer, effect.job, offer, (tree.encode(),))

    def _serve(self, effect: do.ServeLeaves) -> None:
        try:
            body = self.node.disk.read(effect.address, effect.runs)
        except CorruptError as error:
            unsent = do.LeavesUnsent(effect.address, effect.peer, effect.runs, effect.size, str(error), gone=True)
            self._engine.take(unsent)
            return
        self._send(effect.peer, effect.job, Leaves(address=effect.address, runs=effect.runs), body)

    def _open(self, effect: do.OpenShard) -> None:
        disk = self.node.disk
        if effect.address not in disk.shards:
            self._engine.take(do.ShardAbsent(effect.address, "is not here"))
            return
        disk.readers.add(effect.address)
        self._engine.take(do.ShardOpened(effect.address, sizes_of(disk.shards[effect.address].tree)))

    def _check(self, effect: do.CheckShard) -> None:
        content = self.node.disk.shards.get(effect.address)
        bad = content.bad() if content is not None else []
        self._engine.take(do.ShardChecked(effect.address, f"{len(bad)} leaves differ" if bad else ""))

    def _send(self, peer: Peer, job: Job, message: Message, body: tuple[bytes, ...] = ()) -> None:
        world = self.world
        node = world.hosts.get(peer.host)
        if node is None or node.transferring.incarnation != peer.incarnation:
            return
        if body and isinstance(message, Leaves) and world.chance.random() < world.network.garbled:
            world.hits["leaf garbled on the way"] += 1
            body = (spoil(world.chance, body[0]), *body[1:])
        receiver = node.transferring
        world.network.send(Path.BYTES, self, receiver, partial(receiver.hear, self.me, job, message, body))  # type: ignore[arg-type]
