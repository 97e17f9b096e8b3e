"""Rows about ZeroMQ: real sockets of one process, and peers that are paused, gone or strange."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import zmq
from prometheus_client import CollectorRegistry

from checkpoint_replicator import wire
from checkpoint_replicator.bus import Received, zeromq
from checkpoint_replicator.bus.zeromq import ZeroMQBus
from checkpoint_replicator.ids import Host, Incarnation, Job
from checkpoint_replicator.messages import Envelope, NodeReport, NotYet, Party, Service
from checkpoint_transfer.buffers import Buffers
from support.eventually import eventually
from support.factories import ADDRESS, envelope

TCP = "tcp://127.0.0.1:0"
MIB = 1 << 20


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
async def bus(registry: CollectorRegistry) -> AsyncIterator[ZeroMQBus]:
    bus = ZeroMQBus(registry=registry, linger=0.1)
    yield bus
    await bus.close()


class Inbox:
    def __init__(self) -> None:
        self.all: list[Received] = []

    async def __call__(self, received: Received) -> None:
        self.all.append(received)


async def test_s58_no_buffer_changes_under_a_message_that_is_still_on_its_way(bus: ZeroMQBus) -> None:
    """Lent buffers are written again as soon as they are free; the receiver must find what was sent."""
    wrong: list[int] = []
    heard = 0

    async def receive(received: Received) -> None:
        nonlocal heard
        await asyncio.sleep(0)
        number = int(received.envelope.message.reason)  # type: ignore[union-attr]
        expected = bytes([number % 251])
        if any(bytes(view) != expected * len(view) for view in received.body):
            wrong.append(number)
        heard += 1

    buffers = Buffers(4 * MIB, 4)
    sender = bus.push(await bus.pull(TCP, receive))
    await eventually(lambda: sender.connected)
    for number in range(60):
        small, big = buffers.lend(300 << 10), buffers.lend(4 * MIB)  # the big middle frame is what is late
        for view in (small, big):
            view[:] = bytes([number % 251]) * len(view)
        await eventually(
            lambda number=number, small=small, big=big: sender.send(  # type: ignore[misc]
                envelope(NotYet(address=ADDRESS, reason=str(number))), [small, big, small[:10]]
            )
        )
        del small, big, view
        await asyncio.sleep(0)
    await eventually(lambda: heard == 60)
    assert wrong == []


async def test_s62_a_new_life_is_heard_while_the_old_ones_connection_lingers(bus: ZeroMQBus, tmp_path: Path) -> None:
    inbox = Inbox()
    endpoint = await bus.pull(TCP, inbox)

    def says(incarnation: str) -> bool:
        return any(received.envelope.sender.incarnation == incarnation for received in inbox.all)

    environment = os.environ | {"PYTHONPATH": os.fspath(Path(__file__).parents[1])}
    with (tmp_path / "log").open("wb") as log:
        old = subprocess.Popen([sys.executable, __file__, endpoint], stdout=log, stderr=log, env=environment)  # noqa: ASYNC220
    try:
        await eventually(lambda: says("old"))
        old.send_signal(signal.SIGSTOP)
        sender = bus.push(endpoint)
        await eventually(lambda: sender.send(report("new")), 5)
        await eventually(lambda: says("new"), 5)
    finally:
        old.kill()
        old.wait()


def report(incarnation: str) -> Envelope:
    me = Party(host=Host("node-1"), service=Service.WATCHER, incarnation=Incarnation(incarnation))
    return Envelope(sender=me, receiver=me, job=Job("job"), message=NodeReport(version=1))


async def test_s65_a_frame_over_the_limit_is_not_sent_and_smaller_ones_go_on(
    bus: ZeroMQBus, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "FRAME_LIMIT", MIB)
    inbox = Inbox()
    sender = bus.push(await bus.pull(TCP, inbox))
    await eventually(lambda: sender.connected)
    assert sender.send(envelope(), [bytes(MIB)])
    assert not sender.send(envelope(), [b"", bytes(2 * MIB)])
    assert sender.send(envelope(), [b"after"])
    await eventually(lambda: len(inbox.all) == 2)
    assert sender.connected
    assert registry.get_sample_value("checkpoint_replicator_bus_unsendable_total") == 1


async def test_s65_a_strangers_frame_over_the_limit_costs_it_its_connection_and_nobody_elses(
    bus: ZeroMQBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zeromq, "FRAME_LIMIT", MIB)
    inbox = Inbox()
    endpoint = await bus.pull(TCP, inbox)
    sender = bus.push(endpoint)
    await eventually(lambda: sender.connected)
    with zmq.Context() as context, context.socket(zmq.SocketType.PUSH) as stranger:
        stranger.linger = 0
        stranger.connect(endpoint)
        events = stranger.get_monitor_socket(int(zmq.Event.DISCONNECTED))
        stranger.send(bytes(2 * MIB))
        assert await asyncio.to_thread(events.poll, 5000)  # it is told
        assert sender.send(envelope())
        await eventually(lambda: len(inbox.all) == 1)
        stranger.disable_monitor()
        events.close()
    assert sender.connected


if __name__ == "__main__":

    async def old_life() -> None:
        """Report until the end."""
        sender = ZeroMQBus().push(sys.argv[1])
        while True:
            sender.send(report("old"))
            await asyncio.sleep(0.05)

    asyncio.run(old_life())
