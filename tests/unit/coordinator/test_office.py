"""An office on a model of Redis: effects are done, answers come back, nothing is lost on the way."""

import asyncio
from collections.abc import Callable

import pytest
import structlog
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from checkpoint_coordinator.desk import Options
from checkpoint_coordinator.gauges import Gauges
from checkpoint_coordinator.machine import CoordinatorMachine
from checkpoint_coordinator.office import Office
from checkpoint_replicator.ids import Host, Incarnation, Job, new_id
from checkpoint_replicator.messages import Beacon, Envelope, NodeReport, Party, Service
from checkpoint_replicator.records import Lease
from checkpoint_replicator.shape import Shape
from checkpoint_replicator.times import Times
from support.eventually import eventually
from support.fake_nodes import FakeNode
from support.memory_store import MemoryManifestStore, StoreModel

JOB = Job("run")


class Ears:
    """A publisher that remembers."""

    endpoint = "tcp://h:2"

    def __init__(self) -> None:
        self.heard: list[tuple[bytes, Envelope]] = []

    def publish(self, topic: bytes, envelope: Envelope) -> None:
        self.heard.append((topic, envelope))


class Scene:
    def __init__(self) -> None:
        self.model = StoreModel(lambda: asyncio.get_running_loop().time())
        self.ears = Ears()
        self.stopping = asyncio.Event()
        self.registry = CollectorRegistry()
        lease = Lease(
            incarnation=Incarnation("me"), token=0, host=Host("head"), reports="tcp://h:1", beacons="tcp://h:2"
        )
        machine = CoordinatorMachine(JOB, lease, times=Times(), options=Options(), new_id=new_id, chance=lambda: 0.0)
        self.office = Office(
            JOB,
            machine,
            store=MemoryManifestStore(self.model),
            publisher=self.ears,
            me=Party(host=Host("head"), service=Service.COORDINATOR, incarnation=Incarnation("me")),
            log=structlog.get_logger(),
            gauges=Gauges(self.registry),
        )

    async def played(self, true: Callable[[], bool]) -> None:
        """Run the office until something holds, then stop it."""
        task = asyncio.create_task(self.office.run(self.stopping))
        await eventually(true)
        self.stopping.set()
        await task


async def test_it_takes_the_lease_wakes_nodes_and_gives_the_lease_back() -> None:
    scene = Scene()
    await scene.played(lambda: bool(scene.ears.heard))
    topic, envelope = scene.ears.heard[0]
    assert topic == b"run\0"
    assert isinstance(envelope.message, Beacon)
    assert envelope.message.token == 1
    assert scene.model.view(JOB, Host("a"), None).lease is None


async def test_reports_reach_the_machine() -> None:
    scene = Scene()
    node = FakeNode(JOB, "a", {})
    node.open(0, Shape(1, 1, 1, "pytorch"))

    def released() -> bool:
        if scene.office.machine.active:
            scene.office.hear(node.sender, node.report())
        epoch = scene.model.view(JOB, Host("a"), None).epoch
        return epoch is not None and epoch.released

    await scene.played(released)
    assert scene.registry.get_sample_value("checkpoint_replicator_reports_total", {"result": "taken"})


async def test_a_stand_by_hears_nothing() -> None:
    scene = Scene()
    node = FakeNode(JOB, "a", {})
    scene.office.hear(node.sender, node.report())
    assert scene.registry.get_sample_value("checkpoint_replicator_reports_total", {"result": "standby"}) == 1


async def test_a_redis_that_is_away_is_asked_again() -> None:
    scene = Scene()
    scene.model.down = "connection refused"

    def failed() -> bool:
        if scene.office.machine.fault:
            scene.model.down = None
        return scene.office.machine.active

    await scene.played(failed)
    assert scene.registry.get_sample_value("checkpoint_replicator_store_failures_total")


async def test_what_strangers_can_cause_is_counted_each_time_and_logged_now_and_then() -> None:
    scene = Scene()

    def refused() -> float:
        name = "checkpoint_replicator_coordinator_events_total"
        return scene.registry.get_sample_value(name, {"event": "report_refused"}) or 0.0

    def shout() -> bool:
        if scene.office.machine.active:
            for _ in range(20):
                party = Party(host=Host("x\n" * 1000), service=Service.TRANSFER, incarnation=Incarnation("1"))
                scene.office.hear(party, NodeReport(version=1))
        return refused() >= 100

    with capture_logs() as lines:
        await scene.played(shout)
    told = [line for line in lines if line["event"] == "report_refused"]
    assert 1 <= len(told) < 10
    assert told[0]["reason"] == "a NodeReport from a transfer, expected from a watcher"
    assert len(told[0]["node"]) < 1000


async def test_an_answer_of_redis_that_nobody_foresaw_ends_the_office_and_not_only_its_decisions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(MemoryManifestStore, "acquire", broken)
    scene = Scene()
    with pytest.raises(ZeroDivisionError):
        async with asyncio.timeout(10):
            await scene.office.run(scene.stopping)
