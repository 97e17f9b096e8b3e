"""A watcher's process: what `service.py` does around the machine, on the model of a ramdisk."""

from functools import partial
from typing import TYPE_CHECKING

from checkpoint_replicator.ids import NO_JOB, Job, StoreId
from checkpoint_replicator.messages import (
    Beacon,
    NodeReport,
    Party,
    Service,
    TransferReport,
    UploaderReport,
)
from checkpoint_replicator.records import Help, HostRecord, Lease
from checkpoint_watcher import effects as do
from checkpoint_watcher import events as did
from checkpoint_watcher.machine import WatcherMachine
from simulation.network import Path, Then
from simulation.process import Engine, Process

if TYPE_CHECKING:
    from simulation.coordinating import Coordinating
    from simulation.node import Node
    from simulation.world import World

__all__ = ["Watching"]


class Watching(Process):
    """One node's watcher."""

    def __init__(self, world: "World", node: "Node") -> None:
        super().__init__(world, f"{node.host}.watcher", node.host, node.skew)
        self.node = node
        self.machine: WatcherMachine
        self._leases: dict[Job, Lease] = {}

    @property
    def me(self) -> Party:
        return Party(host=self.host, service=Service.WATCHER, incarnation=self.incarnation)

    def boot(self) -> None:
        world = self.world
        self._leases.clear()
        self._lane_free = 0.0
        self._registering = False
        self._registration: do.Register | None = None
        self._scanning = False
        new_id = world.inputs.drawing(world.new_id)
        made_of = {"host": self.host, "incarnation": self.incarnation, "times": world.times, "backup_root": world.root}
        self.machine = WatcherMachine(self.host, self.incarnation, world.times, new_id, world.root)
        decides = world.inputs.of("watcher", self.machine, **made_of)
        self._engine: Engine[did.Event, do.Effect] = Engine(self, decides, self.perform)
        self.soon(0.01, self._begin)

    def _begin(self) -> None:
        self._engine.take(self.node.disk.begin())
        self._scan_again()

    def follows(self, coordinator: "Coordinating") -> bool:
        """Whether it hears this coordinator's beacons."""
        lease = self._leases.get(coordinator.job)
        return self.running and lease is not None and lease.incarnation == coordinator.incarnation

    # ---- in

    def look(self) -> None:
        """The kernel says that something changed: scan soon."""
        if self.running and not self._scanning:
            self._scanning = True
            self.soon(self.world.chance.uniform(0.005, 0.05), self._scan)

    def _scan(self) -> None:
        self._scanning = False
        self._engine.take(did.Scanned(self.node.disk.snapshot()))

    def _scan_again(self) -> None:
        self.look()
        self.soon(self.world.times.scan, self._scan_again)

    def hear_beacon(self, sender: Party, job: Job, beacon: Beacon) -> None:
        self._engine.take(did.BeaconHeard(job, sender.incarnation, beacon))

    def hear_transfer(self, sender: Party, report: TransferReport) -> None:
        self._engine.take(did.TransferReported(sender.incarnation, report))

    def hear_uploader(self, sender: Party, job: Job, report: UploaderReport) -> None:
        self._engine.take(did.UploaderReported(job, sender.incarnation, report))

    # ---- out

    def perform(self, effect: do.Effect) -> None:
        world, node = self.world, self.node
        match effect:
            case do.Announce(event, fields):
                world.noted(self, event, fields)
            case do.SendReport(job, report):
                self._report(job, report)
            case do.SendTransfer(orders):
                job = self.machine.node.job or NO_JOB
                world.network.send(
                    Path.LOCAL, self, node.transferring, partial(node.transferring.take_orders, self.me, job, orders)
                )
            case do.SendUploader(job, orders):
                world.network.send(
                    Path.LOCAL, self, node.uploading, partial(node.uploading.take_orders, self.me, job, orders)
                )
            case do.Follow(job, lease):
                self._leases[job] = lease
            case do.ReadView(job, rank):

                def view() -> Then:
                    answer = did.ViewRead(job, world.redis.model.view(job, self.host, rank))
                    return lambda: self._engine.take(answer)

                world.redis.ask(self, view, lambda reason: self._engine.take(did.ViewFailed(job, reason)), writes=False)
            case do.CallHelp(job, reason, seconds):

                def call() -> Then:
                    cry = Help(host=self.host, incarnation=self.incarnation, reason=reason)
                    world.redis.model.call_help(job, cry, seconds)
                    return lambda: None

                world.redis.ask(self, call, lambda _: None)
            case do.Register():
                self._registration = effect
                self._register()
            case do.HashClaim() | do.VerifyShard():
                self.soon(world.chance.uniform(0.005, 0.3), lambda: self._do(effect))
            case _:
                if isinstance(effect, do.DropSaves | do.PublishMarkers | do.Quarantine):
                    world.court.intended(self, effect)
                self._in_turn(effect)

    def _in_turn(self, effect: do.Effect) -> None:
        """One thread does them one after another."""
        self._lane_free = max(self._lane_free, self.world.now) + self.world.chance.uniform(0.0005, 0.01)
        self.soon(self._lane_free - self.world.now, lambda: self._do(effect))

    def _do(self, effect: do.Effect) -> None:
        disk = self.node.disk
        self.world.court.doing(self, effect)
        answer = disk.watch(effect)
        self.world.court.done(self, effect, answer)
        if answer is not None:
            self._engine.take(answer)

    def _report(self, job: Job, report: NodeReport) -> None:
        self.world.court.reported(self, report)
        lease = self._leases.get(job)
        if lease is None:
            return
        coordinator = self.world.coordinator(lease.incarnation)
        if coordinator is not None:
            self.world.network.send(Path.REPORTS, self, coordinator, partial(coordinator.hear, self.me, report))

    def _register(self) -> None:
        if self._registering or self._registration is None:
            return
        self._registering = True
        wish, self._registration = self._registration, None
        model = self.world.redis.model

        def over(store: StoreId, reason: str) -> None:
            self._registering = False
            self._engine.take(did.Registered(store, reason))
            self._register()

        def there() -> Then:
            store = model.store_id()
            for job in wish.jobs:
                model.add_job(job)
            model.register(
                HostRecord(host=self.host, incarnation=self.incarnation, transfer=wish.transfer, jobs=tuple(wish.jobs))
            )
            return lambda: over(store, "")

        self.world.redis.ask(self, there, lambda reason: over(StoreId(""), reason))
