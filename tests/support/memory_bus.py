"""The bus without sockets: what `ZeroMQBus` promises, and on wish less.

Messages pass through the wire format, so a receiver gets views of bytes and never the sender's objects. `loss`,
`duplication` and `delay` come from one seeded source; with a delay messages also overtake each other, which ZeroMQ
would not do, but which the protocol must bear.
"""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress

from checkpoint_replicator.bus import Body, Publisher, Received, Receiver, Sender
from checkpoint_replicator.errors import BusyError, ConfigError
from checkpoint_replicator.messages import Envelope
from checkpoint_replicator.wire import decode, encode

QUEUE = 32
"""Messages that wait for one receiver before its senders see back-pressure."""


class Ear:
    """A receiver with its queue and its one reader."""

    def __init__(self, receiver: Receiver, topic: bytes = b"") -> None:
        self.topic = topic
        self._receiver = receiver
        self._queue: asyncio.Queue[list[bytes]] = asyncio.Queue(QUEUE)
        self._reader = asyncio.create_task(self._read(), name="memory-bus")

    @property
    def full(self) -> bool:
        return self._queue.full()

    def hear(self, frames: list[bytes]) -> None:
        with suppress(asyncio.QueueFull):  # a delayed message that finds the queue full is lost, as on a broken line
            self._queue.put_nowait(frames)

    async def _read(self) -> None:
        while True:
            envelope, body = decode(await self._queue.get())
            await self._receiver(Received(envelope, body))

    async def close(self) -> None:
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    def forget(self) -> None:
        self._reader.cancel()


class MemoryNetwork:
    """All endpoints of a test.

    Args:
        seed: of the chance below.
        loss: share of messages that get lost.
        duplication: share of messages that come twice.
        delay: longest delay of a message in seconds.
    """

    def __init__(self, seed: int = 0, loss: float = 0, duplication: float = 0, delay: float = 0) -> None:
        self.chance = random.Random(seed)
        self.loss = loss
        self.duplication = duplication
        self.delay = delay
        self.pulls: dict[str, Ear] = {}
        self.subscribers: dict[str, list[Ear]] = {}
        self.publishers: set[str] = set()
        self._ports = iter(range(40000, 65536))

    def claim(self, endpoint: str) -> str:
        """Choose the port of an endpoint that is to be bound."""
        check(endpoint)
        if endpoint in self.pulls or endpoint in self.publishers:
            raise BusyError(f"{endpoint}: another process listens there")
        base, _, port = endpoint.rpartition(":")
        return f"{base}:{next(self._ports)}" if endpoint.startswith("tcp://") and port in {"0", "*"} else endpoint

    def carry(self, ear: Ear, frames: list[bytes]) -> None:
        """Bring a message to an ear, as well as this network does."""
        if self.chance.random() < self.loss:
            return
        for _ in range(2 if self.chance.random() < self.duplication else 1):
            if self.delay:
                asyncio.get_running_loop().call_later(self.chance.uniform(0, self.delay), ear.hear, frames)
            else:
                ear.hear(frames)


class MemorySender:
    """A PUSH with its one peer."""

    def __init__(self, network: MemoryNetwork, endpoint: str) -> None:
        self._network = network
        self._endpoint = endpoint
        self._closed = False

    @property
    def connected(self) -> bool:
        return not self._closed and self._endpoint in self._network.pulls

    def send(self, envelope: Envelope, body: Body = ()) -> bool:
        ear = self._network.pulls.get(self._endpoint)
        if self._closed or ear is None or ear.full:
            return False
        self._network.carry(ear, [*encode(envelope), *(bytes(frame) for frame in body)])
        return True

    def close(self) -> None:
        self._closed = True


class MemoryPublisher:
    """A PUB."""

    def __init__(self, network: MemoryNetwork, endpoint: str) -> None:
        self._network = network
        self.endpoint = endpoint

    def publish(self, topic: bytes, envelope: Envelope) -> None:
        if self.endpoint in self._network.publishers:
            for ear in tuple(self._network.subscribers.get(self.endpoint, ())):
                if topic.startswith(ear.topic):
                    self._network.carry(ear, encode(envelope))


class MemoryBus:
    """One process's sockets on a network."""

    def __init__(self, network: MemoryNetwork) -> None:
        self._network = network
        self._pulls: list[str] = []
        self._publishers: list[str] = []
        self._ears: list[tuple[str, Ear]] = []
        self._senders: list[MemorySender] = []

    async def pull(self, endpoint: str, receiver: Receiver) -> str:
        chosen = self._network.claim(endpoint)
        self._network.pulls[chosen] = Ear(receiver)
        self._pulls.append(chosen)
        return chosen

    def push(self, endpoint: str) -> Sender:
        sender = MemorySender(self._network, endpoint)
        self._senders.append(sender)
        return sender

    async def publisher(self, endpoint: str) -> Publisher:
        chosen = self._network.claim(endpoint)
        self._network.publishers.add(chosen)
        self._publishers.append(chosen)
        return MemoryPublisher(self._network, chosen)

    async def subscribe(self, endpoint: str, topic: bytes, receiver: Receiver) -> Callable[[], None]:
        ear = Ear(receiver, topic)
        self._ears.append((endpoint, ear))
        self._network.subscribers.setdefault(endpoint, []).append(ear)

        def close() -> None:
            with suppress(ValueError):
                self._network.subscribers[endpoint].remove(ear)
            ear.forget()

        return close

    async def close(self) -> None:
        for sender in self._senders:
            sender.close()
        self._network.publishers.difference_update(self._publishers)
        for endpoint in self._pulls:
            await self._network.pulls.pop(endpoint).close()
        self._pulls.clear()
        for endpoint, ear in self._ears:
            with suppress(ValueError):
                self._network.subscribers[endpoint].remove(ear)
            await ear.close()


def check(endpoint: str) -> None:
    """Take ipc and tcp only, as the real bus does."""
    if not endpoint.startswith(("ipc://", "tcp://")):
        raise ConfigError(f"{endpoint}: expected ipc://<path> or tcp://<address>:<port>")
