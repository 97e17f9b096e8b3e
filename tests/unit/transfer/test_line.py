import asyncio
from collections.abc import Callable

from checkpoint_replicator.bus import Body, Publisher, Receiver, Sender
from checkpoint_replicator.messages import Envelope
from checkpoint_transfer.line import WAITING, Line
from support.clock import ManualClock
from support.factories import envelope

ENDPOINT = "tcp://b:1"
ONE = envelope()


class PaperSender:
    """A PUSH whose peer comes and goes as a test wants."""

    def __init__(self) -> None:
        self.connected = False
        self.taken: list[tuple[Envelope, Body]] = []
        self.closed = False
        self.tried = asyncio.Event()

    def send(self, envelope: Envelope, body: Body = ()) -> bool:
        self.tried.set()
        if self.connected:
            self.taken.append((envelope, body))
        return self.connected

    def close(self) -> None:
        self.closed = True


class PaperBus:
    def __init__(self) -> None:
        self.senders: list[PaperSender] = []

    def push(self, endpoint: str) -> Sender:
        assert endpoint == ENDPOINT
        self.senders.append(PaperSender())
        return self.senders[-1]

    async def pull(self, endpoint: str, receiver: Receiver) -> str:
        raise NotImplementedError

    async def publisher(self, endpoint: str) -> Publisher:
        raise NotImplementedError

    async def subscribe(self, endpoint: str, topic: bytes, receiver: Receiver) -> Callable[[], None]:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError


def line(clock: ManualClock | None = None) -> tuple[Line, PaperBus]:
    bus = PaperBus()
    return Line(bus, ENDPOINT, 5.0, clock or ManualClock()), bus


async def tried(sender: PaperSender) -> None:
    sender.tried.clear()
    await sender.tried.wait()


async def test_the_socket_is_opened_at_the_first_message() -> None:
    one, bus = line()
    assert bus.senders == []
    one.send(ONE)
    assert len(bus.senders) == 1
    one.close()


async def test_a_message_for_a_connected_peer_goes_at_once() -> None:
    one, bus = line()
    one.send(ONE)
    [sender] = bus.senders
    sender.connected = True
    await tried(sender)
    one.send(ONE, [b"x"])
    assert sender.taken == [(ONE, ()), (ONE, [b"x"])]


async def test_messages_wait_for_the_peer_in_their_order() -> None:
    one, bus = line()
    for number in range(3):
        one.send(ONE, [b"%d" % number])
    [sender] = bus.senders
    await tried(sender)
    sender.connected = True
    await tried(sender)
    assert [body for _, body in sender.taken] == [[b"0"], [b"1"], [b"2"]]


async def test_a_message_that_waited_too_long_is_told() -> None:
    clock = ManualClock()
    one, bus = line(clock)
    told = asyncio.Event()
    one.send(ONE, unsent=told.set)
    await tried(bus.senders[0])
    assert not told.is_set()
    clock.advance(5.0)
    await told.wait()
    one.close()


async def test_only_so_many_messages_wait() -> None:
    one, _ = line()
    told: list[int] = []
    for number in range(WAITING + 1):
        one.send(ONE, unsent=lambda number=number: told.append(number))  # type: ignore[misc]
    assert told == [WAITING]
    one.close()
    assert len(told) == WAITING + 1


async def test_a_connection_that_ended_is_noticed_once() -> None:
    one, bus = line()
    one.send(ONE)
    [sender] = bus.senders
    assert not one.is_lost()
    sender.connected = True
    assert not one.is_lost()
    sender.connected = False
    assert one.is_lost()
    assert not one.is_lost()
    one.close()


async def test_a_closed_line_opens_anew_at_the_next_message() -> None:
    one, bus = line()
    one.send(ONE)
    one.close()
    assert bus.senders[0].closed
    one.send(ONE)
    assert len(bus.senders) == 2
    one.close()
