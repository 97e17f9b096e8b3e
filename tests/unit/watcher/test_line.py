"""The way to the coordinators."""

from collections.abc import AsyncIterator

import msgspec
import pytest

from checkpoint_replicator.bus import Received
from checkpoint_replicator.ids import Host, Incarnation
from checkpoint_replicator.messages import NodeReport, Party, Service
from checkpoint_replicator.times import Times
from checkpoint_watcher.line import Lines
from support.clock import ManualClock
from support.eventually import eventually
from support.memory_bus import MemoryBus, MemoryNetwork
from support.watcher_shell import LEASE
from support.watcher_story import JOB

ME = Party(host=Host("node-0"), service=Service.WATCHER, incarnation=Incarnation("w1"))


class Coordinator:
    """Hears reports."""

    def __init__(self) -> None:
        self.heard: list[Received] = []

    async def hear(self, received: Received) -> None:
        self.heard.append(received)

    @property
    def versions(self) -> list[int]:
        return [one.envelope.message.version for one in self.heard if isinstance(one.envelope.message, NodeReport)]


@pytest.fixture
async def bus() -> AsyncIterator[MemoryBus]:
    bus = MemoryBus(MemoryNetwork())
    yield bus
    await bus.close()


def lines(bus: MemoryBus, clock: ManualClock) -> Lines:
    async def hear(_: Received) -> None:
        """Nobody speaks here."""

    return Lines(bus, ME, Times(), hear, clock)


async def test_a_report_without_a_coordinator_goes_out_when_there_is_one(bus: MemoryBus) -> None:
    clock, coordinator = ManualClock(), Coordinator()
    ours = lines(bus, clock)
    ours.report(JOB, NodeReport(version=1))
    lease = msgspec.structs.replace(LEASE, reports=await bus.pull("tcp://127.0.0.1:*", coordinator.hear))
    await ours.follow(JOB, lease)
    ours.beat()
    await eventually(lambda: coordinator.versions == [1])
    assert coordinator.heard[0].envelope.receiver.incarnation == LEASE.incarnation


async def test_what_was_said_is_said_again_only_when_it_is_late(bus: MemoryBus) -> None:
    clock, coordinator = ManualClock(), Coordinator()
    ours = lines(bus, clock)
    lease = msgspec.structs.replace(LEASE, reports=await bus.pull("tcp://127.0.0.1:*", coordinator.hear))
    await ours.follow(JOB, lease)
    ours.report(JOB, NodeReport(version=1))
    clock.advance(2.4)
    ours.beat()
    clock.advance(0.2)
    ours.beat()
    ours.beat()
    await eventually(lambda: len(coordinator.versions) == 2)
    assert coordinator.versions == [1, 1]


async def test_a_new_coordinator_hears_the_last_report_at_once_and_the_old_no_more(bus: MemoryBus) -> None:
    clock, old, new = ManualClock(), Coordinator(), Coordinator()
    ours = lines(bus, clock)
    first = msgspec.structs.replace(LEASE, reports=await bus.pull("tcp://127.0.0.1:*", old.hear))
    second = msgspec.structs.replace(LEASE, reports=await bus.pull("tcp://127.0.0.1:*", new.hear))
    await ours.follow(JOB, first)
    ours.report(JOB, NodeReport(version=1))
    await eventually(lambda: old.versions == [1])
    await ours.follow(JOB, second)
    ours.beat()
    ours.report(JOB, NodeReport(version=2))
    await eventually(lambda: new.versions == [1, 2])
    assert old.versions == [1]


async def test_a_line_that_is_left_says_nothing_any_more(bus: MemoryBus) -> None:
    clock = ManualClock()
    coordinator = Coordinator()
    endpoint = await bus.pull("tcp://127.0.0.1:0", coordinator.hear)
    beacons = (await bus.publisher("tcp://127.0.0.1:0")).endpoint
    line = lines(bus, clock)
    await line.follow(JOB, msgspec.structs.replace(LEASE, reports=endpoint, beacons=beacons))
    line.report(JOB, NodeReport(version=1))
    await eventually(lambda: coordinator.versions == [1])
    line.leave(JOB)
    line.leave(JOB)
    clock.advance(60)
    line.beat()
    assert coordinator.versions == [1]
