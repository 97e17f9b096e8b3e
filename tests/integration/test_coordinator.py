"""Real coordinator processes on a real Redis and real sockets; the nodes are fakes that speak the bus."""

import asyncio
import contextlib
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from checkpoint_replicator.bus import Received
from checkpoint_replicator.bus.zeromq import ZeroMQBus
from checkpoint_replicator.errors import ProtocolError
from checkpoint_replicator.ids import Host, Job
from checkpoint_replicator.messages import Beacon, Envelope, Party, Service
from checkpoint_replicator.records import EpochState, Outcome
from checkpoint_replicator.shape import Shape
from checkpoint_replicator.store.redis import RedisManifestStore
from support.fake_nodes import FakeNode
from support.hostile import annoy_http, frames, shout, talk_tcp
from support.keys import dump, load, read, undocumented
from support.redis import command

pytestmark = pytest.mark.timeout(120)  # processes start slowly on a busy machine
JOB = Job("run")
SHAPE = Shape(2, 1, 1, "pytorch")


class Process:
    """One `checkpoint-coordinator`."""

    def __init__(self, process: asyncio.subprocess.Process, run: Path) -> None:
        self.process = process
        self.run = run

    @property
    def health(self) -> str:
        return (self.run / "coordinator.health").read_text().strip()

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)
        return await asyncio.wait_for(self.process.wait(), 15)


class Scene:
    """Redis, nodes that live in tasks of this process, and coordinators that the test starts."""

    def __init__(self, url: str, tmp_path: Path, bus: ZeroMQBus) -> None:
        self.url = url
        self.store = RedisManifestStore(url, hold=True)
        self.nodes: dict[Host, FakeNode] = {}
        self.processes: list[Process] = []
        self.woken = 0
        self._tmp = tmp_path
        self._bus = bus
        self._tasks: list[asyncio.Task[None]] = []

    async def coordinator(self, name: str, *flags: str) -> Process:
        run = self._tmp / name
        command = [sys.executable, "-m", "checkpoint_coordinator", "--redis", self.url, "--host", name]
        with (self._tmp / f"{name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command, "--run", str(run), *flags, stdout=asyncio.subprocess.DEVNULL, stderr=log
            )
        self.processes.append(Process(process, run))
        return self.processes[-1]

    async def start(self, *names: str) -> list[FakeNode]:
        nodes = [FakeNode(JOB, name, self.nodes) for name in names]
        await self.store.add_job(JOB)
        for rank, node in enumerate(nodes):
            await self.store.register(node.record)
            node.open(rank, SHAPE)
            self._tasks.append(asyncio.create_task(self._live(node)))
        return nodes

    async def _live(self, node: FakeNode) -> None:
        """Read, obey and report, as a watcher does."""
        lease, sender = None, None
        while True:
            rank = node.session.spec.rank if node.session is not None else None
            try:
                view = await self.store.view(JOB, node.host, rank)
            except ProtocolError:  # a key that a test spoilt
                await asyncio.sleep(0.1)
                continue
            node.obey(view)
            if view.lease is not None and view.lease != lease:
                lease = view.lease
                if sender is not None:
                    sender.close()
                sender = self._bus.push(lease.reports)
                await self._bus.subscribe(lease.beacons, f"{JOB}\0".encode(), self._wake)
            if sender is not None and node.alive:
                sender.send(self.envelope(node))
            await asyncio.sleep(0.1)

    async def _wake(self, received: Received) -> None:
        self.woken += isinstance(received.envelope.message, Beacon)

    def envelope(self, node: FakeNode) -> Envelope:
        receiver = Party(host=Host(""), service=Service.COORDINATOR)
        return Envelope(sender=node.sender, receiver=receiver, job=JOB, message=node.report())

    def running(self) -> bool:
        return all(node.session is not None and node.session.state == "running" for node in self.nodes.values())

    def log(self, name: str) -> str:
        return (self._tmp / f"{name}.log").read_text()

    async def state(self, key: str) -> dict[str, str]:
        return (await self.store.snapshot(JOB)).hashes.get(key, {})

    async def committed(self, save: str) -> bool:
        return (await self.state(f"step:{save}")).get("state") == "committed"

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for process in self.processes:
            await process.stop(signal.SIGKILL)
        await self.store.close()


@pytest.fixture
async def scene(redis_url: str, tmp_path: Path) -> AsyncIterator[Scene]:
    bus = ZeroMQBus()
    made = Scene(redis_url, tmp_path, bus)
    yield made
    await made.close()
    await bus.close()


async def until(true: Callable[[], object], seconds: float = 20) -> float:
    """Wait for something, plain or awaited; returns how long it took."""
    begun = time.monotonic()
    while True:
        found = true()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return time.monotonic() - begun
        assert time.monotonic() - begun < seconds, f"not true within {seconds} s"
        await asyncio.sleep(0.05)


async def save(scene: Scene, step: int) -> None:
    for node in scene.nodes.values():
        node.save(step)
    await until(lambda: scene.committed(f"1.{step}"))


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - our own health server
        return str(answer.read().decode())


async def test_a_job_starts_saves_commits_and_drops_what_is_old(scene: Scene) -> None:
    process = await scene.coordinator("c1")
    nodes = await scene.start("a", "b")
    await until(scene.running)
    view = await scene.store.view(JOB, Host("a"), nodes[0].session.spec.rank if nodes[0].session else None)
    assert view.restore is not None
    assert view.restore.outcome is Outcome.NONE
    assert view.epoch is not None
    assert view.epoch.state is EpochState.RUNNING
    await save(scene, 1)
    await save(scene, 2)
    await until(lambda: all({str(tag.save) for tag in node.held} == {"1.2"} for node in nodes))
    assert scene.woken > 0
    assert undocumented(read(scene.url)) == []
    assert get(f"{process.health}/readyz")
    metrics = get(f"{process.health}/metrics")
    assert 'checkpoint_replicator_lease_held{job="run"} 1.0' in metrics
    assert 'checkpoint_replicator_copies_min{job="run"} 1.0' in metrics


async def test_s117_a_killed_coordinator_is_replaced_and_trainers_notice_nothing(scene: Scene) -> None:
    first = await scene.coordinator("c1")
    nodes = await scene.start("a", "b")
    await until(scene.running)
    await save(scene, 1)
    await scene.coordinator("c2")
    await until(lambda: _ready(scene.processes[1]))
    await first.stop(signal.SIGKILL)
    took = await until(lambda: _holder(scene, "c2"))
    assert took < 12
    await save(scene, 2)
    assert [len(node.restored) for node in nodes] == [1, 1]
    assert (await scene.state("epoch"))["number"] == "1"


async def test_s117_sigterm_hands_over_at_once(scene: Scene) -> None:
    first = await scene.coordinator("c1")
    await scene.start("a", "b")
    await until(scene.running)
    await scene.coordinator("c2")
    await until(lambda: _ready(scene.processes[1]))
    await asyncio.sleep(1)
    begun = time.monotonic()
    assert await first.stop() == 0
    assert time.monotonic() - begun < 2
    assert await until(lambda: _holder(scene, "c2")) < 2


async def test_s107_a_paused_holder_is_refused_when_it_comes_back(scene: Scene) -> None:
    first = await scene.coordinator("c1", "--times", "lease-ttl=4s,lease-renewed=1s,lease-margin=1s")
    await scene.start("a", "b")
    await until(scene.running)
    await save(scene, 1)
    await scene.coordinator("c2")
    await until(lambda: _ready(scene.processes[1]))
    first.process.send_signal(signal.SIGSTOP)
    await until(lambda: _holder(scene, "c2"))
    await save(scene, 2)
    token = (await scene.store.view(JOB, Host("a"), None)).lease
    first.process.send_signal(signal.SIGCONT)
    await asyncio.sleep(2)
    assert (await scene.store.view(JOB, Host("a"), None)).lease == token
    await save(scene, 3)
    assert first.process.returncode is None


async def test_s102_flushall_in_mid_run_never_starts_a_restore(scene: Scene) -> None:
    await scene.coordinator("c1")
    nodes = await scene.start("a", "b")
    await until(scene.running)
    await save(scene, 1)
    assert command(scene.url, "FLUSHALL") == b"+OK\r\n"
    await scene.store.add_job(JOB)
    for node in nodes:
        await scene.store.register(node.record)
    await save(scene, 2)
    assert [len(node.restored) for node in nodes] == [1, 1]
    assert (await scene.state("epoch"))["number"] == "1"


async def test_fault_37_strangers_on_the_reports_port_harm_nobody(scene: Scene) -> None:
    """The original's coordinator died of one message, and all nodes waited for ever."""
    process = await scene.coordinator("c1")
    nodes = await scene.start("a", "b")
    await until(scene.running)
    lease = (await scene.store.view(JOB, Host("a"), None)).lease
    assert lease is not None
    await shout(lease.reports, frames("c1", Service.COORDINATOR, lease.reports, JOB))
    for endpoint in (lease.reports, lease.beacons):
        await asyncio.to_thread(talk_tcp, "127.0.0.1", int(endpoint.rpartition(":")[2]))
    await asyncio.to_thread(annoy_http, process.health)
    await save(scene, 1)
    metrics = await asyncio.to_thread(get, f"{process.health}/metrics")
    assert 'checkpoint_replicator_reports_total{result="foreign"} 0.0' not in metrics
    assert "checkpoint_replicator_bus_rejected_total 0.0" not in metrics
    assert 'checkpoint_replicator_coordinator_events_total{event="report_refused"}' in metrics
    assert process.process.returncode is None
    assert [len(node.restored) for node in nodes] == [1, 1]
    log = scene.log("c1")
    assert "Traceback" not in log
    assert "message_rejected" in log
    assert "report_refused" in log
    assert len(log) < 1 << 20


async def test_s102_an_old_snapshot_of_redis_is_written_over_and_starts_no_restore(scene: Scene) -> None:
    await scene.coordinator("c1")
    nodes = await scene.start("a", "b")
    await until(scene.running)
    await save(scene, 1)
    before = dump(scene.url)
    await save(scene, 2)
    await save(scene, 3)
    await until(lambda: all({str(tag.save) for tag in node.held} == {"1.3"} for node in nodes))
    dropped = [len(node.dropped) for node in nodes]
    load(scene.url, before)
    await until(lambda: _upto(scene, "1.3"), 30)
    assert [len(node.dropped) for node in nodes] == dropped
    await save(scene, 4)
    assert [len(node.restored) for node in nodes] == [1, 1]
    assert (await scene.state("epoch"))["number"] == "1"
    assert undocumented(read(scene.url)) == []


async def test_keys_that_somebody_spoilt_are_named_and_written_anew(scene: Scene) -> None:
    await scene.coordinator("c1", "--times", "repair=1s")
    await scene.start("a", "b")
    await until(scene.running)
    await save(scene, 1)
    for key in ("epoch", "keep", "events", "steps", "keys"):
        assert command(scene.url, "SET", f"ckpt:{{{JOB}}}:{key}", "by hand") == b"+OK\r\n"
    await until(lambda: undocumented(read(scene.url)) == [] and len(read(scene.url)) > 10)
    await save(scene, 2)


async def test_a_coordinator_without_redis_waits_and_says_so(tmp_path: Path) -> None:
    scene_bus = ZeroMQBus()
    scene = Scene("redis://127.0.0.1:1", tmp_path, scene_bus)
    try:
        process = await scene.coordinator("c1")
        await until((process.run / "coordinator.health").exists)
        await until(lambda: "127.0.0.1:1" in _not_ready(process))
        assert await process.stop() == 0
    finally:
        await scene.close()
        await scene_bus.close()


async def _upto(scene: Scene, save: str) -> bool:
    return (await scene.state("keep")).get("upto") == save


async def _holder(scene: Scene, host: str) -> bool:
    lease = (await scene.store.view(JOB, Host("a"), None)).lease
    return lease is not None and lease.host == host


def _ready(process: Process) -> bool:
    with contextlib.suppress(OSError):
        return not _not_ready(process)
    return False


def _not_ready(process: Process) -> str:
    """Return why a process is not ready, empty when it is."""
    try:
        get(f"{process.health}/readyz")
    except urllib.error.HTTPError as error:
        with error:
            return str(error.read().decode())
    return ""
