import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import zmq
from prometheus_client import CollectorRegistry
from prometheus_client.samples import Sample
from structlog.testing import capture_logs

from checkpoint_replicator import wire
from checkpoint_replicator.bus import Received, Sender, zeromq
from checkpoint_replicator.bus.zeromq import SEND_QUEUE, ZeroMQBus
from checkpoint_replicator.errors import BusyError, ConfigError
from checkpoint_replicator.messages import NotYet, Run, Stored
from support.eventually import eventually
from support.factories import ADDRESS, envelope


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
        self.queue: asyncio.Queue[Received] = asyncio.Queue()

    async def __call__(self, received: Received) -> None:
        await self.queue.put(received)

    async def next(self) -> Received:
        async with asyncio.timeout(10):
            return await self.queue.get()


def faults(registry: CollectorRegistry) -> list[Sample]:
    return [sample for metric in registry.collect() if metric.name.endswith("faults") for sample in metric.samples]


async def until_connected(sender: Sender, wanted: bool = True) -> None:
    await eventually(lambda: sender.connected is wanted)


async def test_a_port_is_chosen_and_told(bus: ZeroMQBus) -> None:
    assert await bus.pull("tcp://127.0.0.1:0", Inbox()) != "tcp://127.0.0.1:0"


async def test_the_directory_of_a_unix_socket_is_made(bus: ZeroMQBus, tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/deep/run/a.sock"
    assert await bus.pull(endpoint, Inbox()) == endpoint
    assert (tmp_path / "deep/run/a.sock").is_socket()


async def test_a_large_body_arrives_as_views_of_the_same_bytes(bus: ZeroMQBus) -> None:
    inbox = Inbox()
    sender = bus.push(await bus.pull("tcp://127.0.0.1:0", inbox))
    await until_connected(sender)
    leaves = [bytes([number]) * (1 << 20) for number in range(4)]
    assert sender.send(envelope(), leaves)
    received = await inbox.next()
    assert received.envelope == envelope()
    assert [bytes(view) for view in received.body] == leaves


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ([b""] * 4097, "expected at most 4096 body frames, found 4097"),
        ([b"12345"], "expected frames of at most 4 bytes, found one of 5"),
        ([b"1234"] * 3, "expected a body of at most 10 bytes, found 12"),
    ],
    ids=["frames", "frame", "body"],
)
async def test_a_body_that_no_reader_takes_is_not_sent_and_says_why(
    bus: ZeroMQBus, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch, body: list[bytes], reason: str
) -> None:
    monkeypatch.setattr(wire, "FRAME_LIMIT", 4)
    monkeypatch.setattr(wire, "BODY_LIMIT", 10)
    inbox = Inbox()
    sender = bus.push(await bus.pull("tcp://127.0.0.1:0", inbox))
    await until_connected(sender)
    with capture_logs() as logs:
        assert not sender.send(envelope(), body)
    assert [line["reason"] for line in logs if line["event"] == "message_unsendable"] == [reason]
    assert registry.get_sample_value("checkpoint_replicator_bus_unsendable_total") == 1
    assert sender.send(envelope(), [b"1234"])
    assert [bytes(view) for view in (await inbox.next()).body] == [b"1234"]


async def test_a_path_that_is_too_long_is_refused(bus: ZeroMQBus) -> None:
    with pytest.raises(ConfigError, match="the path has 121 bytes, expected 1 to 107"):
        await bus.pull("ipc:///" + "x" * 120, Inbox())


@pytest.mark.parametrize("endpoint", ["inproc://x", "tcp://127.0.0.1", "http://127.0.0.1:1", "", "tcp://127.0.0.1:0/x"])
async def test_only_ipc_and_tcp_can_be_bound(bus: ZeroMQBus, endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"expected ipc://<path> or tcp://<address>:<port>"):
        await bus.pull(endpoint, Inbox())


async def test_an_address_of_another_machine_cannot_be_bound(bus: ZeroMQBus) -> None:
    with pytest.raises(ConfigError, match=r"tcp://192.0.2.1:0: cannot be bound"):
        await bus.pull("tcp://192.0.2.1:0", Inbox())


async def test_a_port_that_is_taken_is_busy(bus: ZeroMQBus) -> None:
    taken = await bus.pull("tcp://127.0.0.1:0", Inbox())
    with pytest.raises(BusyError, match="another process listens there"):
        await bus.pull(taken, Inbox())


@pytest.mark.parametrize("endpoint", ["nonsense", "inproc://x", "ipc://", "tcp://[::1:1", "tcp://h:99999999"])
async def test_a_bad_endpoint_from_outside_is_a_counted_fault_and_no_error(
    bus: ZeroMQBus, registry: CollectorRegistry, endpoint: str
) -> None:
    sender = bus.push(endpoint)
    assert not sender.send(envelope())
    assert not sender.connected
    assert registry.get_sample_value("checkpoint_replicator_bus_faults_total", {"event": "endpoint"}) == 1


async def test_s60_nothing_queues_for_a_peer_that_is_not_there(bus: ZeroMQBus, registry: CollectorRegistry) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
    sender = bus.push(f"tcp://127.0.0.1:{port}")
    assert not sender.send(envelope())
    assert registry.get_sample_value("checkpoint_replicator_bus_unsent_total") == 1


async def test_a_peer_that_goes_away_is_seen_and_one_that_comes_back_too(bus: ZeroMQBus, tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/a.sock"
    sender = bus.push(endpoint)
    for _ in range(2):
        peer, inbox = ZeroMQBus(linger=0), Inbox()
        await peer.pull(endpoint, inbox)
        await eventually(lambda: sender.connected and sender.send(envelope()))
        await inbox.next()
        await peer.close()
        await until_connected(sender, False)
        # The monitor tells first; a moment later ZeroMQ takes the queue down, and what was sent in between is lost.
        await eventually(lambda: not sender.send(envelope()))


async def test_garbage_is_counted_and_the_next_message_still_heard(bus: ZeroMQBus, registry: CollectorRegistry) -> None:
    inbox = Inbox()
    endpoint = await bus.pull("tcp://127.0.0.1:0", inbox)
    with zmq.Context() as context, context.socket(zmq.PUSH) as stranger:
        stranger.connect(endpoint)
        stranger.send_multipart([b"garbage"])
        stranger.send_multipart([b"ckpt/1 Leaves", b"\xc1", b""])
        sender = bus.push(endpoint)
        await until_connected(sender)
        await eventually(lambda: registry.get_sample_value("checkpoint_replicator_bus_rejected_total") == 2)
    assert sender.send(envelope())
    assert (await inbox.next()).envelope == envelope()


async def test_a_stranger_that_does_not_speak_zeromq_is_counted(bus: ZeroMQBus, registry: CollectorRegistry) -> None:
    endpoint = await bus.pull("tcp://127.0.0.1:0", Inbox())
    port = int(endpoint.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"BOGUS".ljust(20, b"\0") + bytes(32))
        await eventually(lambda: any(sample.value for sample in faults(registry) if sample.name.endswith("_total")))


async def test_without_a_socket_left_a_peer_is_unreachable_and_the_process_lives(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zeromq, "MAX_SOCKETS", 8)
    bus = ZeroMQBus(registry=registry, linger=0.1)
    inbox = Inbox()
    endpoint = await bus.pull("tcp://127.0.0.1:0", inbox)
    good = bus.push(endpoint)
    strangers = [bus.push("tcp://127.0.0.1:1") for _ in range(12)]
    deafen = await bus.subscribe("tcp://127.0.0.1:1", b"", inbox)
    assert not strangers[-1].send(envelope())
    deafen()
    for stranger in strangers:
        stranger.close()
    assert next(sample.value for sample in faults(registry) if sample.labels.get("event") == "sockets") >= 5
    await until_connected(good)
    assert good.send(envelope())
    await inbox.next()
    await bus.close()


async def test_a_message_that_no_reader_would_take_is_counted_and_not_sent(
    bus: ZeroMQBus, registry: CollectorRegistry
) -> None:
    sender = bus.push(await bus.pull("tcp://127.0.0.1:0", Inbox()))
    await until_connected(sender)
    assert not sender.send(envelope(NotYet(address=ADDRESS, runs=(Run(first=1 << 80, count=1),))))
    (await bus.publisher("tcp://127.0.0.1:0")).publish(b"t", envelope(Stored(address=ADDRESS, tags=(1 << 80,))))  # type: ignore[arg-type]
    assert registry.get_sample_value("checkpoint_replicator_bus_unsendable_total") == 2


async def test_a_flood_of_strangers_is_counted_one_by_one_and_logged_once_a_second(registry: CollectorRegistry) -> None:
    with capture_logs() as lines:
        bus = ZeroMQBus(registry=registry, linger=0.1)
        endpoint = await bus.pull("tcp://127.0.0.1:0", Inbox())
        with zmq.Context() as context, context.socket(zmq.SocketType.PUSH) as stranger:
            stranger.linger = 0
            stranger.connect(endpoint)
            for _ in range(50):
                stranger.send_multipart([b"GET / HTTP/1.1", b"x"])
            await eventually(lambda: registry.get_sample_value("checkpoint_replicator_bus_rejected_total") == 50)
        await bus.close()
    told = [line for line in lines if line["event"] == "message_rejected"]
    assert len(told) < 10
    assert told[0]["reason"] == "expected a frame that begins with b'ckpt/', found b'GET / HT'"


async def test_a_slow_receiver_is_back_pressure_and_never_a_wait(bus: ZeroMQBus) -> None:
    gate = asyncio.Event()

    async def slow(_received: Received) -> None:
        await gate.wait()

    sender = bus.push(await bus.pull("tcp://127.0.0.1:0", slow))
    await until_connected(sender)
    body = [bytes(1 << 16)]
    sent = 0
    while sent < 100 * SEND_QUEUE and sender.send(envelope(), body):
        sent += 1
    assert SEND_QUEUE <= sent < 100 * SEND_QUEUE
    gate.set()


async def test_a_receiver_that_fails_is_told_to_the_process(bus: ZeroMQBus) -> None:
    async def broken(_received: Received) -> None:
        await asyncio.sleep(0)
        raise OSError("no ear")

    sender = bus.push(await bus.pull("tcp://127.0.0.1:0", broken))
    await until_connected(sender)
    sender.send(envelope())
    with pytest.raises(OSError, match="no ear"):
        await asyncio.wait_for(asyncio.shield(bus.failed), 10)


async def test_a_closed_sender_sends_nothing(bus: ZeroMQBus) -> None:
    sender = bus.push(await bus.pull("tcp://127.0.0.1:0", Inbox()))
    await until_connected(sender)
    sender.close()
    sender.close()
    assert not sender.connected
    assert not sender.send(envelope())


async def test_what_is_queued_still_leaves_when_the_bus_closes(bus: ZeroMQBus) -> None:
    inbox = Inbox()
    endpoint = await bus.pull("tcp://127.0.0.1:0", inbox)
    leaving = ZeroMQBus(linger=5)
    sender = leaving.push(endpoint)
    await until_connected(sender)
    for _ in range(20):
        assert sender.send(envelope(), [bytes(1 << 20)])
    await leaving.close()
    for _ in range(20):
        await inbox.next()


async def test_names_with_ipv6_addresses_work(bus: ZeroMQBus) -> None:
    inbox = Inbox()
    try:
        endpoint = await bus.pull("tcp://[::1]:0", inbox)
    except ConfigError:
        pytest.skip("this machine has no IPv6")
    sender = bus.push(endpoint)
    await until_connected(sender)
    sender.send(envelope())
    await inbox.next()


async def test_a_peer_that_comes_and_goes_while_its_sender_is_closed_silences_no_other_socket(bus: ZeroMQBus) -> None:
    came = threading.Semaphore(0)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def turn_away() -> None:
            while True:
                try:
                    listener.accept()[0].close()
                except OSError:  # the test is over
                    return
                came.release()

        threading.Thread(target=turn_away, daemon=True).start()
        sender = bus.push(f"tcp://127.0.0.1:{listener.getsockname()[1]}")
        assert isinstance(sender, zeromq._PushSender)
        assert sender.socket is not None
        parts = bus._sockets[sender.socket]

        class Monitor:
            """Goes, and then the peer is seen to come and go: ZeroMQ's own thread lives."""

            def close(self, linger: int) -> None:
                parts.monitor.close(linger)
                self.lives = all(came.acquire(timeout=5) for _ in range(5))

        monitor = Monitor()
        bus._sockets[sender.socket] = staged = zeromq._Parts(monitor)  # type: ignore[arg-type]
        staged.tasks = parts.tasks
        sender.close()
        assert monitor.lives
        listener.shutdown(socket.SHUT_RDWR)
