"""One or more coordinator machines, a model of Redis and fake nodes, on a clock that a test moves."""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

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
from checkpoint_replicator.errors import ProtocolError, UnreachableError
from checkpoint_replicator.ids import Epoch, Host, Incarnation, Job, Step
from checkpoint_replicator.machine import Ticked
from checkpoint_replicator.messages import NodeReport, Wish
from checkpoint_replicator.records import Help, Lease, NodeView, RestoreRecord
from checkpoint_replicator.save import Save
from checkpoint_replicator.shape import Shape
from checkpoint_replicator.store.fields import from_json
from checkpoint_replicator.times import Times
from checkpoint_replicator.wishes import WishAnswer
from support.clock import ManualClock
from support.fake_nodes import Bucket, FakeNode
from support.memory_store import StoreModel

JOB = Job("run")
TICK = 0.1


class Coordinator:
    """A machine and what a shell does for it, each effect at once."""

    def __init__(self, bench: "Bench", name: str, options: Options) -> None:
        self.bench = bench
        self.name = name
        self.paused = False
        self.late: list[LeaseRenewed] | None = None
        """Takes the answers to renewals instead of the machine, while it is a list."""
        self.notes: list[Note] = []
        self._queue: deque[Event] = deque()
        self._ids = 0
        me = Lease(incarnation=Incarnation(name), token=0, host=Host(name), reports=f"tcp://{name}:1", beacons="")
        self.machine = CoordinatorMachine(
            JOB, me, times=bench.times, options=options, new_id=self._new_id, chance=lambda: 0.5
        )

    def _new_id(self) -> str:
        self._ids += 1
        return f"{self.name}-{self._ids}"

    def hear(self, event: Event) -> None:
        if self.paused:
            return
        self._queue.append(event)
        self.drain()

    def drain(self) -> None:
        while self._queue:
            for effect in self.machine.handle(self._queue.popleft(), self.bench.clock.now):
                self.perform(effect)

    def tick(self) -> None:
        deadline = self.machine.next_deadline()
        if not self.paused and deadline is not None and deadline <= self.bench.clock.now:
            self.hear(Ticked())

    def perform(self, effect: Effect) -> None:
        store, times = self.bench.store, self.bench.times
        requests: dict[type, str] = {
            AcquireLease: "acquire",
            RenewLease: "renew",
            ReadSnapshot: "snapshot",
            ReadHosts: "hosts",
            Write: "write",
            RemoveJob: "remove",
        }
        try:
            match effect:
                case AcquireLease(began, patient):
                    lease = store.acquire(JOB, self.machine.me, times.lease_ttl, patient=patient)
                    self._queue.append(LeaseAnswered(began, lease))
                case RenewLease(began, lease):
                    renewal = store.renew(JOB, lease, times.lease_ttl)
                    answer = LeaseRenewed(began, renewal, store.time())
                    (self._queue if self.late is None else self.late).append(answer)
                case ReleaseLease(lease):
                    store.release(JOB, lease)
                case ReadSnapshot(token):
                    self._queue.append(SnapshotRead(token, store.snapshot(JOB), store.time()))
                case ReadHosts(silent):
                    self._queue.append(HostsRead(store.hosts(), store.helps(JOB, silent)))
                case Write(lease, stamp, changes, after):
                    self._queue.append(Written(stamp, store.apply(JOB, lease, stamp, changes, after)))
                case RemoveJob():
                    store.remove_job(JOB)
                    self._queue.append(JobRemoved())
                case Publish():
                    self.bench.woken = True
                case Note():
                    self.notes.append(effect)
        except (UnreachableError, ProtocolError) as error:
            if type(effect) in requests:
                self._queue.append(StoreFailed(requests[type(effect)], str(error)))

    def said(self, event: str) -> list[Note]:
        return [note for note in self.notes if note.event == event]


class Bench:
    """The whole scene."""

    def __init__(
        self, *, bucket: Bucket | None = None, options: Options | None = None, times: Times | None = None
    ) -> None:
        self.clock = ManualClock()
        self.times = times or Times()
        self.skew = 0.0
        """Seconds by which the clock of Redis was moved."""
        self.store = StoreModel(lambda: self.clock.now + 1_700_000_000 + self.skew)
        self.nodes: dict[Host, FakeNode] = {}
        self.bucket = bucket
        self.options = options or Options()
        self.coordinators: list[Coordinator] = []
        self.woken = False
        self.cut_off: set[Host] = set()
        """Hosts that reach Redis and no coordinator."""
        self._reported: dict[Host, tuple[NodeReport, float]] = {}
        self._registered: dict[Host, tuple[str, Incarnation]] = {}
        self._wishes = 0
        self.laws: list[Callable[[], None]] = []

    def coordinator(self, name: str = "c1") -> Coordinator:
        one = Coordinator(self, name, self.options)
        self.coordinators.append(one)
        return one

    def node(self, host: str) -> FakeNode:
        node = FakeNode(JOB, host, self.nodes, self.bucket)
        self.store.register(node.record)
        return node

    def cluster(self, nodes: int, workers: int = 1, *, peers_per_node: int | None = 1) -> Sequence[FakeNode]:
        """Return nodes that have each just seen a yaml."""
        shape = Shape(nodes, workers, 1, "pytorch")
        made = [self.node(f"node-{rank}") for rank in range(nodes)]
        for rank, node in enumerate(made):
            node.open(rank, shape, peers_per_node=peers_per_node)
        return made

    def restart(self, *, peers_per_node: int | None = 1) -> None:
        """Every trainer writes a new yaml."""
        for node in self.nodes.values():
            if node.session is not None and node.alive:
                spec = node.session.spec
                node.open(spec.rank, spec.shape, peers_per_node=peers_per_node)

    def wish(self, kind: str, **more: object) -> str:
        """Order something as a command does; returns the order's id."""
        self._wishes += 1
        wish = Wish(id=f"wish-{self._wishes}", kind=kind, until=self.store.time() + 20, **more)  # type: ignore[arg-type]
        for coordinator in self.coordinators:
            if coordinator.machine.active:
                coordinator.hear(WishReceived(wish))
        return wish.id

    def answer(self, ident: str) -> WishAnswer | None:
        """Return what Redis says of an order."""
        text = self.store.snapshot(JOB).hashes.get("wishes", {}).get(ident)
        return None if text is None else from_json(WishAnswer, text, "wishes")

    def ordered(self, kind: str, **more: object) -> WishAnswer:
        """Order something and wait until it is done or refused."""
        ident = self.wish(kind, **more)
        self.run(20, lambda: (answer := self.answer(ident)) is not None and answer.state != "taken")
        answer = self.answer(ident)
        assert answer is not None
        return answer

    def view(self, node: FakeNode) -> NodeView:
        rank = node.session.spec.rank if node.session is not None else None
        return self.store.view(JOB, node.host, rank)

    @property
    def epoch(self) -> dict[str, str]:
        """The record of the epoch, as it stands in Redis."""
        return self.hashes()["epoch"]

    @property
    def restore(self) -> RestoreRecord:
        restore = self.store.view(JOB, Host(""), None).restore
        assert restore is not None
        return restore

    def run(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        """Let time pass; True as soon as `until` holds."""
        for _ in range(round(seconds / TICK)):
            self.clock.advance(TICK)
            for coordinator in self.coordinators:
                coordinator.tick()
            for node in self.nodes.values():
                if node.alive:
                    self._live(node)
            for law in self.laws:
                law()
            if until is not None and until():
                return True
        return until is None

    def _live(self, node: FakeNode) -> None:
        with suppress(UnreachableError, ProtocolError):
            registration = self.store.store_id(), node.incarnation
            if registration != self._registered.get(node.host):
                self.store.register(node.record)
                self._registered[node.host] = registration
                if node.knows:
                    self.store.add_job(JOB)
            node.obey(self.view(node))
            if node.host in self.cut_off:
                cry = Help(host=node.host, incarnation=node.incarnation, reason="no beacon for 5 s")
                self.store.call_help(JOB, cry, 2 * self.times.beacon_silent)
        if not node.knows and self._idle():
            return  # nothing to tell, and nobody to tell it to
        report = node.report()
        if node.host in self.cut_off:
            return
        before, at = self._reported.get(node.host, (None, float("-inf")))
        same = before is not None and _without_version(before) == _without_version(report)
        if same and self.clock.now - at < self.times.report:
            return
        self._reported[node.host] = (report, self.clock.now)
        for coordinator in self.coordinators:
            if coordinator.machine.lease is not None:
                coordinator.hear(ReportReceived(node.sender, report))

    def _idle(self) -> bool:
        with suppress(UnreachableError):
            return self.store.view(JOB, Host(""), None).lease is None
        return False

    def hashes(self) -> dict[str, dict[str, str]]:
        """Return all keys of the job, without their prefix."""
        return self.store.snapshot(JOB).hashes

    def all_running(self) -> bool:
        return all(
            node.session is not None and node.session.state == "running" for node in self.nodes.values() if node.alive
        )

    def committed(self) -> list[str]:
        """Return the saves that Redis calls committed, oldest first."""
        snapshot = self.store.snapshot(JOB).hashes
        steps = [
            key for key, fields in snapshot.items() if key.startswith("step:") and fields.get("state") == "committed"
        ]
        return sorted((key.removeprefix("step:") for key in steps), key=lambda text: tuple(map(int, text.split("."))))


def _without_version(report: NodeReport) -> tuple[object, ...]:
    return tuple(getattr(report, name) for name in report.__struct_fields__ if name != "version")


def restored_pair() -> Bench:
    """Return two nodes that restored 1.5 and hold a torn 1.6."""
    shape = Shape(2, 1, 1, "pytorch")
    bench = Bench()
    bench.coordinator()
    nodes = bench.cluster(2)
    for rank, node in enumerate(nodes):
        node.hold(Save(Epoch(1), Step(4)), rank, 0, shape, own=True)
        node.hold(Save(Epoch(1), Step(5)), rank, 0, shape, own=True)
    nodes[0].hold(Save(Epoch(1), Step(6)), 0, 0, shape, own=True)
    assert bench.run(5, bench.all_running)
    bench.run(3)
    return bench
