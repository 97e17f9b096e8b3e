"""An uploader's process: its two machines and the real archive, on a backup store in memory."""

from functools import partial
from typing import TYPE_CHECKING

from checkpoint_replicator.errors import ReplicatorError, TransientError
from checkpoint_replicator.ids import Job
from checkpoint_replicator.messages import Leaves, Message, NotYet, Offer, Party, Service, UploaderOrders, Want
from checkpoint_replicator.records import Peer
from checkpoint_uploader import holder as reading
from checkpoint_uploader.archive import Archive
from checkpoint_uploader.machine import (
    Begin,
    Cancel,
    Effect,
    Event,
    Failed,
    Finished,
    Limits,
    Ordered,
    Quit,
    Report,
    Uploader,
)
from checkpoint_uploader.progress import Progress
from checkpoint_uploader.source import BackupShard, open_backup_shard
from simulation.network import Path
from simulation.process import Engine, KilledError, Process

if TYPE_CHECKING:
    from simulation.node import Node
    from simulation.world import World

__all__ = ["Uploading"]


class Uploading(Process):
    """One node's uploader."""

    def __init__(self, world: "World", node: "Node") -> None:
        super().__init__(world, f"{node.host}.uploader", node.host, node.skew)
        self.node = node

    @property
    def me(self) -> Party:
        return Party(host=self.host, service=Service.UPLOADER, incarnation=self.incarnation)

    def boot(self) -> None:
        times = self.world.times
        limits = Limits(
            retry_least=times.retry_least, retry_most=times.retry_most, silent=times.store_silent, report=times.orders
        )
        self._cancelled: set[tuple[Job, str]] = set()
        self._shards: dict[reading.ShardId, BackupShard] = {}
        self._orders: Engine[Event, Effect] = Engine(
            self,
            self.world.inputs.of("uploader", Uploader(self.world.root, limits), root=self.world.root, limits=limits),
            self.perform,
        )
        self._reads: Engine[reading.HolderEvent, reading.HolderEffect] = Engine(
            self, reading.Holder(reading.Bounds()), self.serve
        )

    # ---- in

    def take_orders(self, sender: Party, job: Job, orders: UploaderOrders) -> None:
        self._orders.take(Ordered(sender.incarnation, job, orders.version, orders.orders))

    def want(self, sender: Party, job: Job, want: Want) -> None:
        self._reads.take(reading.Wanted(job, sender, want))

    # ---- out

    def perform(self, effect: Effect) -> None:
        match effect:
            case Begin():
                self._cancelled.discard((effect.job, effect.order.id))
                self.soon(self.world.chance.uniform(0.05, self.world.bucket.slow), lambda: self._carry_out(effect))
            case Cancel(job, ident):
                self.world.hits["backup order cancelled"] += 1
                self._cancelled.add((job, ident))
            case Report(job, report):
                watching = self.node.watching
                self.world.network.send(
                    Path.LOCAL, self, watching, partial(watching.hear_uploader, self.me, job, report)
                )
            case Quit():
                self.world.hits["uploader quit a stuck call"] += 1
                raise KilledError

    def _carry_out(self, effect: Begin) -> None:
        world, job, order = self.world, effect.job, effect.order
        if (job, order.id) in self._cancelled:
            self._orders.take(Failed(job, order.id, "given up", again=True))
            return
        if world.root is None:
            self._orders.take(Failed(job, order.id, "no backup root is configured", again=False))
            return
        archive = Archive(world.bucket.store, self.node.disk, threads=1)
        try:
            with world.bucket.used():
                result = archive.perform(job, order, Progress())
        except TransientError as error:
            self._orders.take(Failed(job, order.id, str(error), again=True))
        except (ReplicatorError, FileNotFoundError) as error:
            self._orders.take(Failed(job, order.id, str(error), again=False))
        else:
            self._orders.take(Finished(job, result))

    def serve(self, effect: reading.HolderEffect) -> None:
        match effect:
            case reading.OpenShard(shard):
                self.soon(self.world.chance.uniform(0.01, 0.5), lambda: self._open(shard))
            case reading.CloseShard(shard):
                self._shards.pop(shard, None)
            case reading.SendTree(shard, to):
                here = Peer(host=self.host, incarnation=self.incarnation, control="local", leaves=())
                offer = Offer(tags=(), answer_to=here, address=shard.address)
                self._send(to, shard.job, offer, (self._shards[shard].tree.encode(),))
            case reading.ReadLeaves():
                self.soon(self.world.chance.uniform(0.01, 0.2), lambda: self._read(effect))
            case reading.SayNotYet(shard, to, runs, gone, reason):
                self._send(to, shard.job, NotYet(address=shard.address, runs=runs, gone=gone, reason=reason), ())

    def _open(self, shard: reading.ShardId) -> None:
        world = self.world
        try:
            with world.bucket.used():
                found = open_backup_shard(world.bucket.store, shard.job, shard.backup, shard.address, Progress())
        except TransientError as error:
            self._reads.take(reading.Absent(shard, str(error), gone=False))
        except (ReplicatorError, FileNotFoundError) as error:
            self._reads.take(reading.Absent(shard, str(error), gone=True))
        else:
            self._shards[shard] = found
            self._reads.take(reading.Opened(shard, found.sizes))

    def _read(self, effect: reading.ReadLeaves) -> None:
        world, shard = self.world, effect.shard
        source = self._shards.get(shard)
        try:
            if source is None:
                raise FileNotFoundError(shard.address)
            with world.bucket.used():
                body = tuple(source.read(effect.runs, Progress()))
        except TransientError as error:
            self._reads.take(reading.LeavesFailed(shard, effect.runs, str(error), gone=False))
        except (ReplicatorError, FileNotFoundError) as error:
            self._reads.take(reading.LeavesFailed(shard, effect.runs, str(error), gone=True))
        else:
            self._send(effect.to, shard.job, Leaves(address=shard.address, runs=effect.runs), body)
            self._reads.take(reading.LeavesSent(shard, effect.runs))

    def _send(self, to: Party, job: Job, message: Message, body: tuple[bytes, ...]) -> None:
        transferring = self.node.transferring
        if to.incarnation == transferring.incarnation:
            hear = partial(transferring.hear, self.me, job, message, body)  # type: ignore[arg-type]
            self.world.network.send(Path.LOCAL, self, transferring, hear)
