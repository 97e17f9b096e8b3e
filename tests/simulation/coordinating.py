"""A coordinator's process: what `Office` does around the machine, against the model of Redis."""

from functools import partial
from typing import TYPE_CHECKING, Final

from checkpoint_coordinator.desk import Options
from checkpoint_coordinator.machine import CoordinatorMachine
from checkpoint_coordinator.words import (
    AcquireLease,
    Effect,
    Event,
    HostsRead,
    JobRemoved,
    LeaseAnswered,
    LeaseRenewed,
    Note,
    Publish,
    ReadHosts,
    ReadSnapshot,
    ReleaseLease,
    RemoveJob,
    RenewLease,
    ReportReceived,
    SnapshotRead,
    StoreFailed,
    WishReceived,
    Write,
    Written,
)
from checkpoint_replicator.ids import Host, Job
from checkpoint_replicator.messages import NodeReport, Party, Service, Wish
from checkpoint_replicator.records import Lease
from simulation.network import Lane, Path, Request, Then
from simulation.process import Engine, Process

if TYPE_CHECKING:
    from simulation.world import World

__all__ = ["Coordinating"]

POLL: Final = 1.0
"""Seconds between two looks whether the job is known."""
NEVER: Final = float("-inf")
SILENCE: Final = 0.8


class Coordinating(Process):
    """One coordinator's part for one job; a stand-by until it gets the lease."""

    def __init__(self, world: "World", name: str, job: Job, skew: float) -> None:
        super().__init__(world, f"{name}.{job}", Host(name), skew)
        self.job = job
        self.machine: CoordinatorMachine | None = None
        self.heard: dict[Host, float] = {}
        self.missed: dict[Host, float] = {}
        """When a host was heard again after it may have counted as lost."""
        self.witnessed: dict[str, bool] = {}
        """Sessions of which a report came in this tenure, and whether a complete one."""

    @property
    def me(self) -> Party:
        return Party(host=self.host, service=Service.COORDINATOR, incarnation=self.incarnation)

    @property
    def remembered(self) -> frozenset[Host]:
        """Hosts that it may know of: those that it heard, and those that Redis names."""
        heard = self.machine.desk.hearing.voices if self.machine is not None else {}
        return frozenset(heard) | frozenset(self.world.redis.model.hosts())

    def silent(self, host: Host, part: float) -> bool:
        """Whether a host said nothing for this part of the time after which it is lost, or did so a moment ago."""
        now, lost = self.world.now, self.world.times.lost
        return now - self.heard.get(host, NEVER) > part * lost

    def counts(self, host: Host) -> bool:
        """Whether a host must have counted as there when a write was decided that comes to Redis now."""
        return not self.silent(host, SILENCE) and self.world.now - self.missed.get(host, NEVER) > self.world.times.lost

    def boot(self) -> None:
        self.machine = None
        self.witnessed.clear()
        self.heard.clear()
        self.missed.clear()
        self.soon(0.0, self._look)

    def _look(self) -> None:
        """Wait until the job is known."""
        world = self.world

        def there() -> Then:
            known = self.job in world.redis.model.jobs()
            return self._open if known else lambda: self.soon(POLL, self._look)

        world.redis.ask(self, there, lambda _: self.soon(POLL, self._look), writes=False)

    def _open(self) -> None:
        world = self.world
        me = Lease(incarnation=self.incarnation, token=0, host=self.host, reports=self.name, beacons=self.name)
        options = Options(backup=world.root)
        self.machine = CoordinatorMachine(
            self.job,
            me,
            times=world.times,
            options=options,
            new_id=world.inputs.drawing(world.new_id),
            chance=world.inputs.drawing(world.chance.random),
        )
        decides = world.inputs.of("coordinator", self.machine, job=self.job, me=me, times=world.times, options=options)
        self._lane = Lane(self, world.redis)
        self._renewals = Lane(self, world.redis)
        self._engine: Engine[Event, Effect] = Engine(self, decides, self.perform)
        self._engine.sleep()

    def hear(self, sender: Party, report: NodeReport) -> None:
        """Take a watcher's report."""
        machine = self.machine
        if machine is None or (not machine.active and machine.lease is None):
            return
        if self.silent(sender.host, SILENCE):
            self.missed[sender.host] = self.world.now
        self.heard[sender.host] = self.world.now
        if report.session is not None:
            known = self.witnessed.get(report.session.id, False)
            self.witnessed[report.session.id] = known or report.complete
        self._engine.take(ReportReceived(sender, report))

    def order(self, wish: Wish) -> None:
        """Take an order of people, as the one that decides."""
        if self.machine is not None and self.machine.active:
            self._engine.take(WishReceived(wish))

    def perform(self, effect: Effect) -> None:
        world, model = self.world, self.world.redis.model
        job = self.job
        match effect:
            case Publish(beacon):
                for host in world.hosts.values():
                    if host.watching.follows(self):
                        world.network.send(
                            Path.BEACONS, self, host.watching, partial(host.watching.hear_beacon, self.me, job, beacon)
                        )
            case Note(event, fields):
                world.noted(self, event, fields)
            case AcquireLease(began, patient):

                def acquire() -> Then:
                    assert self.machine is not None
                    lease = model.acquire(job, self.machine.me, world.times.lease_ttl, patient=patient)
                    if isinstance(lease, Lease):
                        world.court.of(job).lease_taken(self)
                    return lambda: self._engine.take(LeaseAnswered(began, lease))

                self._ask("acquire", acquire)
            case RenewLease(began, lease):

                def renew() -> Then:
                    renewal, unix = model.renew(job, lease, world.times.lease_ttl), model.time()
                    return lambda: self._engine.take(LeaseRenewed(began, renewal, unix))

                self._ask("renew", renew)
            case ReleaseLease(lease):

                def release() -> Then:
                    model.release(job, lease)
                    return lambda: None

                self._ask("release", release)
            case RemoveJob():

                def remove() -> Then:
                    model.remove_job(job)
                    return self._leave

                self._ask("remove", remove)
            case ReadSnapshot(token):

                def snapshot() -> Then:
                    answer = SnapshotRead(token, model.snapshot(job), model.time())
                    return lambda: self._engine.take(answer)

                self._ask("snapshot", snapshot)
            case ReadHosts(silent):

                def hosts() -> Then:
                    answer = HostsRead(model.hosts(), model.helps(job, silent))
                    return lambda: self._engine.take(answer)

                self._ask("hosts", hosts)
            case Write(lease, stamp, changes, after):

                def write() -> Then:
                    seen = model.apply(job, lease, stamp, changes, after)
                    if seen is None:
                        world.court.of(job).written(self, changes)
                    else:
                        world.hits["write refused"] += 1
                    return lambda: self._engine.take(Written(stamp, seen))

                self._ask("write", write)

    def _leave(self) -> None:
        """The job is forgotten: wait until somebody names it again."""
        self._engine.take(JobRemoved())
        self.machine = None
        self.soon(POLL, self._look)

    def _ask(self, name: str, call: Request) -> None:
        lane = self._renewals if name == "renew" else self._lane

        def failed(reason: str) -> None:
            if name != "release":
                self._engine.take(StoreFailed(name, reason))

        lane.put(call, failed, writes=name not in {"snapshot", "hosts"})
