"""The bus as services see it: PUB/SUB and PUSH/PULL, one reader a socket, one peer a PUSH.

`ZeroMQBus` speaks ZeroMQ, `MemoryBus` (tests) does not; both pass `tests/contract/test_bus.py`.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from checkpoint_replicator.messages import Envelope

__all__ = ["Body", "Bus", "Publisher", "Received", "Receiver", "Sender"]

Body = Sequence[bytes | memoryview]
"""Body frames. A buffer given to `send` is never touched again before the receiver's acknowledgement of its bytes."""


class Received(msgspec.Struct, frozen=True):
    """A parsed message and its body frames, in the order in which they came."""

    envelope: Envelope
    body: tuple[memoryview, ...] = ()


Receiver = Callable[[Received], Awaitable[None]]
"""Takes a message; while it waits the socket is not read, which is the back-pressure."""


class Sender(Protocol):
    """A PUSH socket with exactly one peer."""

    def send(self, envelope: Envelope, body: Body = ()) -> bool:
        """Hand over without waiting; False: the peer is not connected or its queue is full (EAGAIN)."""
        ...

    @property
    def connected(self) -> bool:
        """Whether the socket monitor last saw a finished handshake."""
        ...

    def close(self) -> None:
        """Forget the peer; what is queued is dropped."""
        ...


class Publisher(Protocol):
    """A PUB socket."""

    endpoint: str

    def publish(self, topic: bytes, envelope: Envelope) -> None:
        """Send to whoever subscribed a prefix of the topic; never waits."""
        ...


class Bus(Protocol):
    """One process's sockets. Faults (`ProtocolError`, failed handshakes) are counted and logged, never raised."""

    async def pull(self, endpoint: str, receiver: Receiver) -> str:
        """Bind a PULL and feed what comes to the receiver; returns the endpoint with the port that was chosen."""
        ...

    def push(self, endpoint: str) -> Sender:
        """Connect a PUSH to one peer; at once, without waiting for the connection."""
        ...

    async def publisher(self, endpoint: str) -> Publisher:
        """Bind a PUB."""
        ...

    async def subscribe(self, endpoint: str, topic: bytes, receiver: Receiver) -> Callable[[], None]:
        """Connect a SUB; returns what closes it."""
        ...

    async def close(self) -> None:
        """Close all sockets; what is queued to peers gets `linger` seconds first."""
        ...
