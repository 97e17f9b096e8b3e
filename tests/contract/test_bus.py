"""What services rely on, whichever bus they have."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from checkpoint_replicator.bus import Bus, Received
from checkpoint_replicator.bus.zeromq import ZeroMQBus
from checkpoint_replicator.errors import BusyError, ConfigError
from checkpoint_replicator.fence import ZERO
from checkpoint_replicator.ids import StoreId
from checkpoint_replicator.messages import Beacon, Envelope, NotYet
from support.eventually import eventually
from support.factories import ADDRESS, envelope
from support.memory_bus import MemoryBus, MemoryNetwork

TCP = "tcp://127.0.0.1:0"
MakeBus = Callable[[], Bus]


@pytest.fixture(params=["memory", "zeromq"])
async def make_bus(request: pytest.FixtureRequest) -> AsyncIterator[MakeBus]:
    network = MemoryNetwork()
    made: list[Bus] = []

    def make() -> Bus:
        bus: Bus = MemoryBus(network) if request.param == "memory" else ZeroMQBus(linger=0)
        made.append(bus)
        return bus

    yield make
    for bus in made:
        await bus.close()


@pytest.fixture
async def bus(make_bus: MakeBus) -> Bus:
    return make_bus()


@pytest.fixture(params=["tcp", "ipc"])
def endpoint(request: pytest.FixtureRequest) -> str:
    if request.param == "tcp":
        return TCP
    return f"ipc://{tempfile.mkdtemp(dir=request.getfixturevalue('short_path'))}/a.sock"


@pytest.fixture
def short_path() -> Iterator[Path]:  # pytest's own paths can be too long for a socket
    with tempfile.TemporaryDirectory(prefix="bus-") as path:
        yield Path(path)


class Inbox:
    def __init__(self) -> None:
        self.all: list[Received] = []

    async def __call__(self, received: Received) -> None:
        await asyncio.sleep(0)
        self.all.append(received)

    async def grown_to(self, length: int) -> list[Received]:
        await eventually(lambda: len(self.all) >= length)
        return self.all


def numbered(number: int) -> Envelope:
    return envelope(NotYet(address=ADDRESS, reason=str(number)))


def beacon(number: int) -> Envelope:
    return envelope(Beacon(stamp=ZERO, token=number, store=StoreId("s")))


async def test_messages_and_bodies_arrive_whole_and_in_order(bus: Bus, endpoint: str) -> None:
    inbox = Inbox()
    sender = bus.push(await bus.pull(endpoint, inbox))
    await eventually(lambda: sender.connected)
    for number in range(20):
        assert sender.send(numbered(number), [b"leaf", memoryview(bytes([number]) * 70_000)])
    for number, received in enumerate(await inbox.grown_to(20)):
        assert received.envelope == numbered(number)
        assert [bytes(view) for view in received.body] == [b"leaf", bytes([number]) * 70_000]


async def test_s59_a_sender_whose_peer_is_not_there_says_so(bus: Bus) -> None:
    sender = bus.push("tcp://127.0.0.1:1")
    assert not sender.connected
    assert not sender.send(envelope())


async def test_a_peer_that_comes_later_is_found(make_bus: MakeBus, short_path: Path) -> None:
    endpoint = f"ipc://{short_path}/late.sock"
    sender = make_bus().push(endpoint)
    assert not sender.send(numbered(0))
    inbox = Inbox()
    await make_bus().pull(endpoint, inbox)
    await eventually(lambda: sender.connected and sender.send(numbered(1)))
    assert (await inbox.grown_to(1))[0].envelope == numbered(1)


async def test_a_peer_that_goes_and_comes_back_gets_only_what_is_sent_then(make_bus: MakeBus, short_path: Path) -> None:
    endpoint = f"ipc://{short_path}/again.sock"
    sender = make_bus().push(endpoint)
    first, first_inbox = make_bus(), Inbox()
    await first.pull(endpoint, first_inbox)
    await eventually(lambda: sender.connected and sender.send(numbered(1)))
    await first_inbox.grown_to(1)
    await first.close()
    await eventually(lambda: not sender.connected)
    assert not sender.send(numbered(2))
    second_inbox = Inbox()
    await make_bus().pull(endpoint, second_inbox)
    await eventually(lambda: sender.connected and sender.send(numbered(3)))
    assert [received.envelope for received in await second_inbox.grown_to(1)] == [numbered(3)]


async def test_an_endpoint_has_one_owner(make_bus: MakeBus) -> None:
    chosen = await make_bus().pull(TCP, Inbox())
    with pytest.raises(BusyError, match="another process listens there"):
        await make_bus().pull(chosen, Inbox())


async def test_an_endpoint_of_another_kind_cannot_be_bound(bus: Bus) -> None:
    with pytest.raises(ConfigError, match=r"expected ipc://<path> or tcp://<address>:<port>"):
        await bus.pull("udp://127.0.0.1:1", Inbox())
    with pytest.raises(ConfigError, match=r"expected ipc://<path> or tcp://<address>:<port>"):
        await bus.publisher("udp://127.0.0.1:1")


async def test_a_bad_endpoint_from_outside_is_a_peer_that_is_never_there(bus: Bus) -> None:
    sender = bus.push("nonsense")
    assert not sender.connected
    assert not sender.send(envelope())
    (await bus.subscribe("nonsense", b"", Inbox()))()


async def test_a_slow_receiver_is_back_pressure_and_loses_nothing(bus: Bus) -> None:
    gate, heard = asyncio.Event(), Inbox()

    async def slow(received: Received) -> None:
        await gate.wait()
        await heard(received)

    sender = bus.push(await bus.pull(TCP, slow))
    await eventually(lambda: sender.connected)
    body = [bytes(1 << 16)]
    taken = 0
    while taken < 50_000 and sender.send(numbered(taken), body):
        taken += 1
    assert taken < 50_000
    gate.set()
    found = await heard.grown_to(taken)
    assert [received.envelope for received in found] == [numbered(number) for number in range(taken)]
    await eventually(lambda: sender.send(numbered(taken)))


async def test_a_receiver_gets_one_message_at_a_time(bus: Bus) -> None:
    inside, most, done = 0, 0, Inbox()

    async def receive(received: Received) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        inside -= 1
        await done(received)

    sender = bus.push(await bus.pull(TCP, receive))
    await eventually(lambda: sender.connected)
    for number in range(10):
        assert sender.send(numbered(number))
    await done.grown_to(10)
    assert most == 1


async def test_several_senders_reach_one_pull(make_bus: MakeBus) -> None:
    inbox = Inbox()
    chosen = await make_bus().pull(TCP, inbox)
    senders = [make_bus().push(chosen) for _ in range(3)]
    for number, sender in enumerate(senders):
        await eventually(lambda sender=sender: sender.connected)  # type: ignore[misc]
        assert sender.send(numbered(number))
    reasons = {received.envelope.message for received in await inbox.grown_to(3)}
    assert reasons == {numbered(number).message for number in range(3)}


async def test_a_closed_sender_sends_nothing_and_can_be_closed_again(bus: Bus) -> None:
    inbox = Inbox()
    chosen = await bus.pull(TCP, inbox)
    closed, open_ = bus.push(chosen), bus.push(chosen)
    await eventually(lambda: closed.connected and open_.connected)
    closed.close()
    closed.close()
    assert not closed.connected
    assert not closed.send(numbered(0))
    assert open_.send(numbered(1))
    assert [received.envelope for received in await inbox.grown_to(1)] == [numbered(1)]


async def test_subscribers_hear_the_topics_that_begin_with_theirs(bus: Bus) -> None:
    publisher = await bus.publisher(TCP)
    all_, ranks, other = Inbox(), Inbox(), Inbox()
    await bus.subscribe(publisher.endpoint, b"job\0", all_)
    await bus.subscribe(publisher.endpoint, b"job\x003\0", ranks)
    await bus.subscribe(publisher.endpoint, b"job2\0", other)

    def heard(*inboxes: Inbox) -> Callable[[], bool]:
        def publish() -> bool:
            publisher.publish(b"job\0", beacon(1))
            publisher.publish(b"job\x003\0", beacon(2))
            return all(inbox.all for inbox in inboxes)

        return publish

    await eventually(heard(all_, ranks))
    await eventually(lambda: beacon(1).message in [received.envelope.message for received in all_.all])
    assert {received.envelope.message.token for received in ranks.all} == {2}  # type: ignore[union-attr]
    assert other.all == []


async def test_publishing_to_nobody_never_waits(bus: Bus) -> None:
    publisher = await bus.publisher(TCP)
    for number in range(5000):
        publisher.publish(b"job\0", beacon(number))


async def test_a_closed_subscription_hears_nothing_more(bus: Bus) -> None:
    publisher = await bus.publisher(TCP)
    ended, going_on = Inbox(), Inbox()
    close = await bus.subscribe(publisher.endpoint, b"", ended)
    await bus.subscribe(publisher.endpoint, b"", going_on)

    def publish() -> bool:
        publisher.publish(b"t", beacon(1))
        return bool(ended.all and going_on.all)

    await eventually(publish)
    close()
    close()
    before, others = len(ended.all), len(going_on.all)
    publisher.publish(b"t", beacon(2))
    await going_on.grown_to(others + 1)
    await eventually(lambda: beacon(2).message in [received.envelope.message for received in going_on.all])
    assert beacon(2).message not in [received.envelope.message for received in ended.all]
    assert len(ended.all) - before <= 1


async def test_a_memory_network_loses_repeats_and_delays_the_same_way_for_a_seed() -> None:
    async def run(seed: int) -> list[str]:
        bus, inbox = MemoryBus(MemoryNetwork(seed, loss=0.3, duplication=0.3)), Inbox()
        sender = bus.push(await bus.pull(TCP, inbox))
        for number in range(20):
            assert sender.send(numbered(number))
            await asyncio.sleep(0)
        await eventually(lambda: not any(ear._queue.qsize() for ear in bus._network.pulls.values()))
        await bus.close()
        return [received.envelope.message.reason for received in inbox.all]  # type: ignore[union-attr]

    first, again, other = await run(1), await run(1), await run(2)
    assert first == again != other
    assert len(set(first)) < 20
    assert len(set(first)) < len(first)
