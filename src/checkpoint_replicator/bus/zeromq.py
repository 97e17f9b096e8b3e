"""The bus over ZeroMQ; the one door to pyzmq.

Why it is built this way:

- A PUSH has exactly one peer, since PUSH deals round-robin also to a peer that died. It is `IMMEDIATE` (nothing queues
  for a peer that is not there) and never waits: EAGAIN is the back-pressure.
- One reader task a socket, and no time-out around a `recv`: both firing in one turn of the loop loses the message.
- Whether a peer is there, and why not, comes from the socket monitor.
- Bodies are sent without a copy. ZeroMQ keeps the buffer until it is written; the sender must not touch it before the
  receiver's acknowledgement.

Not thread-safe: everything runs in the event loop that made it.
"""

import asyncio
import re
from collections.abc import Callable, Coroutine
from itertools import count
from pathlib import Path
from typing import Any, Final

import structlog
import zmq
import zmq.asyncio
from prometheus_client import CollectorRegistry, Counter
from zmq.utils.monitor import parse_monitor_message

from checkpoint_replicator.bus import Body, Publisher, Received, Receiver, Sender
from checkpoint_replicator.errors import BusyError, ConfigError, ProtocolError
from checkpoint_replicator.logs import Log
from checkpoint_replicator.messages import Envelope
from checkpoint_replicator.quote import quote
from checkpoint_replicator.wire import FRAME_LIMIT, check_body, decode, encode

__all__ = ["ZeroMQBus"]

SEND_QUEUE: Final = 256
"""Messages that a PUSH holds for its peer. Credit bounds the bytes of leaves, this bounds the rest."""
RECEIVE_QUEUE: Final = 32
"""Messages that a socket holds per peer before the peer sees back-pressure."""
PUBLISH_QUEUE: Final = 1000
TOPIC_LIMIT: Final = 1024
"""Bytes of what a subscriber may say; it says only topics."""
MAX_SOCKETS: Final = 8192
"""Sockets of a process; a peer takes two for each channel, one of them its monitor."""
REPORTED_EVERY: Final = 1.0
"""Seconds between two log lines about one kind of fault that strangers can cause; each is counted."""
PATH_LIMIT: Final = 107
GONE_MS: Final = 20_000
"""A connection whose bytes stay unacknowledged this long is closed (`TCP_USER_TIMEOUT`)."""

_IPC: Final = "ipc://"
_TCP: Final = re.compile(r"tcp://(?:\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_.*-]+):(?:[0-9]{1,5}|\*)")
_UP: Final = zmq.Event.HANDSHAKE_SUCCEEDED
_DOWN: Final = zmq.Event.DISCONNECTED | zmq.Event.CLOSED
_FAULTS: Final = (
    zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
    | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
    | zmq.Event.HANDSHAKE_FAILED_AUTH
    | zmq.Event.BIND_FAILED
    | zmq.Event.ACCEPT_FAILED
)


_Socket = zmq.Socket[Any]


class _Parts:
    """What belongs to one socket."""

    def __init__(self, monitor: zmq.asyncio.Socket) -> None:
        self.monitor = monitor
        self.tasks: list[asyncio.Task[None]] = []


class ZeroMQBus:
    """One process's ZeroMQ sockets.

    Args:
        log: where faults are reported.
        registry: gets the bus' counters.
        linger: seconds that queued messages are still sent after `close`.
    """

    def __init__(self, log: Log | None = None, registry: CollectorRegistry | None = None, linger: float = 1.0) -> None:
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets the exception of a receiver that failed: the process cannot hear any more and must end."""
        self._log: Log = log or structlog.get_logger()
        self._linger_ms = round(linger * 1000)
        self._context = zmq.asyncio.Context()
        self._context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
        self._blocking: zmq.Context[_Socket] = zmq.Context.shadow(self._context)
        self._sockets: dict[_Socket, _Parts] = {}
        self._numbers = count()
        self._quiet: dict[str, tuple[float, int]] = {}
        registry = registry or CollectorRegistry()
        self._rejected = Counter(
            "checkpoint_replicator_bus_rejected_total", "Messages that did not parse", registry=registry
        )
        self._faults = Counter(
            "checkpoint_replicator_bus_faults_total", "Connections that failed", ["event"], registry=registry
        )
        self._unpackable = Counter(
            "checkpoint_replicator_bus_unsendable_total", "Messages that no reader would take", registry=registry
        )
        self._refused = Counter(
            "checkpoint_replicator_bus_unsent_total", "Sends that found no room or no peer", registry=registry
        )

    async def pull(self, endpoint: str, receiver: Receiver) -> str:
        """Bind a PULL and feed what comes to the receiver; returns the endpoint with the port that was chosen.

        Raises:
            ConfigError: the endpoint cannot be bound.
            BusyError: somebody else has it.
        """
        socket = self._context.socket(zmq.SocketType.PULL)
        self._adopt(socket, endpoint)
        socket.rcvhwm = RECEIVE_QUEUE
        chosen = self._bind(socket, endpoint)
        self._spawn(socket, self._read(socket, receiver, skip=0), f"pull {chosen}")
        return chosen

    def push(self, endpoint: str) -> Sender:
        """Connect a PUSH to one peer; at once. An endpoint that is none stays unconnected for ever.

        So does one for which this process has no socket or file left.
        """
        sender = _PushSender(self)
        try:
            socket = self._blocking.socket(zmq.SocketType.PUSH)
            sender.socket = socket
            self._adopt(socket, endpoint, sender.watch)
        except zmq.ZMQError as error:
            self._lack(sender.socket, endpoint, error)
            return sender
        socket.sndhwm = SEND_QUEUE
        socket.immediate = True
        self._connect(socket, endpoint)
        return sender

    async def publisher(self, endpoint: str) -> Publisher:
        """Bind a PUB.

        Raises:
            ConfigError: the endpoint cannot be bound.
            BusyError: somebody else has it.
        """
        socket = self._blocking.socket(zmq.SocketType.PUB)
        self._adopt(socket, endpoint)
        socket.sndhwm = PUBLISH_QUEUE
        socket.maxmsgsize = TOPIC_LIMIT
        return _PubPublisher(self, socket, self._bind(socket, endpoint))

    async def subscribe(self, endpoint: str, topic: bytes, receiver: Receiver) -> Callable[[], None]:
        """Connect a SUB; returns what closes it. Without a socket or file left nothing is heard."""
        socket: zmq.asyncio.Socket | None = None
        try:
            socket = self._context.socket(zmq.SocketType.SUB)
            self._adopt(socket, endpoint)
        except zmq.ZMQError as error:
            self._lack(socket, endpoint, error)
            return lambda: None
        socket.rcvhwm = PUBLISH_QUEUE
        socket.subscribe(topic)
        self._connect(socket, endpoint)
        self._spawn(socket, self._read(socket, receiver, skip=1), f"sub {endpoint}")
        return lambda: self.drop(socket)

    async def close(self) -> None:
        """Close all sockets; what is queued to peers gets `linger` seconds first."""
        tasks = [task for parts in self._sockets.values() for task in parts.tasks]
        for socket in tuple(self._sockets):
            self.drop(socket, self._linger_ms)
        await asyncio.gather(*tasks, return_exceptions=True)
        if not self.failed.done():
            self.failed.cancel()
        await asyncio.to_thread(self._context.term)

    def drop(self, socket: _Socket, linger_ms: int = 0) -> None:
        """Close one socket and end its tasks."""
        parts = self._sockets.pop(socket, None)
        if parts is None:
            return
        for task in parts.tasks:
            task.cancel()
        # ZeroMQ's I/O thread waits for ever for whoever takes an event that it tells; without a reader it, and with it
        # every socket of this process, would hang. So it is told to tell no more before the reader goes.
        socket.disable_monitor()
        parts.monitor.close(linger=0)
        socket.close(linger=linger_ms)

    def note_unsent(self) -> None:
        """Count a send that found no room or no peer."""
        self._refused.inc()

    def pack(self, envelope: Envelope, body: Body = ()) -> list[bytes] | None:
        """Return a message's first frames; None, counted and logged, where no reader would take it with this body."""
        try:
            check_body(body)
            return encode(envelope)
        except ProtocolError as error:
            self._unpackable.inc()
            self._warn("message_unsendable", peer=envelope.receiver.host, reason=str(error))
            return None

    def _lack(self, socket: _Socket | None, endpoint: str, error: zmq.ZMQError) -> None:
        if socket is not None:
            self.drop(socket)
            socket.close(linger=0)
        self._faults.labels("sockets").inc()
        self._warn("socket_refused", endpoint=quote(endpoint), reason=str(error))

    def _warn(self, event: str, **fields: str) -> None:
        """Log, but not more often than once a second and event: a stranger may come a thousand times a second."""
        now = asyncio.get_running_loop().time()
        until, silent = self._quiet.get(event, (0.0, 0))
        if now < until:
            self._quiet[event] = (until, silent + 1)
            return
        self._quiet[event] = (now + REPORTED_EVERY, 0)
        self._log.warning(event, **fields, unreported=silent)

    def _adopt(self, socket: _Socket, endpoint: str, watch: Callable[[bool], None] | None = None) -> None:
        socket.linger = 0
        socket.maxmsgsize = FRAME_LIMIT
        socket.ipv6 = "[" in endpoint
        socket.tcp_keepalive = 1
        socket.tcp_keepalive_idle = 5
        socket.tcp_keepalive_intvl = 2
        socket.tcp_keepalive_cnt = 3
        socket.set(zmq.TCP_MAXRT, GONE_MS)
        socket.reconnect_ivl = 50
        socket.reconnect_ivl_max = 1000
        # Here, before bind and connect, is the place of CURVE: server key, own key pair and ZAP domain by endpoint.
        events = f"inproc://monitor-{next(self._numbers)}"
        socket.monitor(events, int(_UP | _DOWN | _FAULTS))
        monitor = self._context.socket(zmq.SocketType.PAIR)
        monitor.connect(events)
        self._sockets[socket] = _Parts(monitor)
        self._spawn(socket, self._watch(monitor, endpoint, watch), f"monitor {endpoint}")

    def _spawn(self, socket: _Socket, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._sockets[socket].tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or self.failed.done():
            return
        if (error := task.exception()) is not None:
            self.failed.set_exception(error)

    def _bind(self, socket: _Socket, endpoint: str) -> str:
        try:
            _check(endpoint)
            if endpoint.startswith(_IPC):
                _make_parent(Path(endpoint.removeprefix(_IPC)))
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            self.drop(socket)
            if error.errno == zmq.EADDRINUSE:
                raise BusyError(f"{endpoint}: another process listens there") from error
            raise ConfigError(f"{endpoint}: cannot be bound: {error.strerror}") from error
        except ConfigError:
            self.drop(socket)
            raise
        return _last(socket)

    def _connect(self, socket: _Socket, endpoint: str) -> None:
        """Connect; an endpoint came from a peer or from Redis, so a bad one is a fault to report and no exception."""
        try:
            _check(endpoint)
            socket.connect(endpoint)
        except (zmq.ZMQError, ConfigError) as error:
            self._faults.labels("endpoint").inc()
            self._warn("endpoint_refused", endpoint=quote(endpoint), reason=quote(str(error)))

    async def _read(self, socket: zmq.asyncio.Socket, receiver: Receiver, skip: int) -> None:
        while True:  # the only recv on this socket
            frames = await socket.recv_multipart(copy=False)
            try:
                envelope, body = decode([frame.buffer for frame in frames[skip:]])
            except ProtocolError as error:
                self._rejected.inc()
                self._warn("message_rejected", endpoint=_last(socket), reason=str(error))
                continue
            del frames
            await receiver(Received(envelope, body))

    async def _watch(self, monitor: zmq.asyncio.Socket, endpoint: str, changed: Callable[[bool], None] | None) -> None:
        while True:
            event = parse_monitor_message(await monitor.recv_multipart())["event"]
            if event & _FAULTS:
                name = (zmq.Event(event).name or str(event)).lower()
                self._faults.labels(name).inc()
                self._warn("connection_failed", endpoint=quote(endpoint), reason=name)
            elif event == zmq.Event.MONITOR_STOPPED:
                return
            elif changed is not None:
                changed(event == _UP)


def _last(socket: _Socket) -> str:
    endpoint = socket.get(zmq.LAST_ENDPOINT)
    return endpoint.rstrip(b"\0").decode() if isinstance(endpoint, bytes) else str(endpoint)


def _check(endpoint: str) -> None:
    if endpoint.startswith(_IPC):
        length = len(endpoint.removeprefix(_IPC).encode())
        if not 0 < length <= PATH_LIMIT:
            raise ConfigError(f"{endpoint}: the path has {length} bytes, expected 1 to {PATH_LIMIT}")
    elif _TCP.fullmatch(endpoint) is None:
        raise ConfigError(f"{endpoint}: expected ipc://<path> or tcp://<address>:<port>")


def _make_parent(path: Path) -> None:
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"ipc://{path}: {path.parent} cannot be made: {error.strerror}") from error


class _PushSender:
    """A PUSH with its one peer."""

    def __init__(self, bus: ZeroMQBus) -> None:
        self.socket: _Socket | None = None
        self._bus = bus
        self._connected = False

    @property
    def connected(self) -> bool:
        return self._connected

    def watch(self, connected: bool) -> None:
        self._connected = connected

    def send(self, envelope: Envelope, body: Body = ()) -> bool:
        socket = self.socket
        if socket is None or socket.closed or (head := self._bus.pack(envelope, body)) is None:
            return False
        frames = [*head, *body]
        for _ in range(2):
            try:
                socket.send_multipart(frames, flags=zmq.DONTWAIT, copy=False)
            except zmq.Again:
                # Asking for the events makes ZeroMQ notice a connection made since; sends look only now and then.
                if not socket.poll(0, zmq.POLLOUT):
                    break
            else:
                return True
        self._bus.note_unsent()
        return False

    def close(self) -> None:
        self._connected = False
        if self.socket is not None:
            self._bus.drop(self.socket)


class _PubPublisher:
    """A PUB."""

    def __init__(self, bus: ZeroMQBus, socket: _Socket, endpoint: str) -> None:
        self._bus = bus
        self._socket = socket
        self.endpoint = endpoint

    def publish(self, topic: bytes, envelope: Envelope) -> None:
        if not self._socket.closed and (head := self._bus.pack(envelope)) is not None:
            self._socket.send_multipart([topic, *head], flags=zmq.DONTWAIT)
