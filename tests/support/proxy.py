"""A TCP proxy that misbehaves on order: delay, thin bandwidth, small pieces, silence, cuts and resets.

Orders hold for what passes from then on. Silence is that of a network which drops packets: connections stand, nothing
is reset, and what was sent meanwhile arrives when the silence ends, even if its sender has hung up long ago.
"""

import asyncio
import contextlib
import socket
import struct
from types import TracebackType
from typing import Self


class Path:
    """One direction of one connection, and what is wrong with it."""

    def __init__(self, like: "Path | None" = None) -> None:
        self.latency: float = like.latency if like else 0.0
        """Seconds that each piece is late."""
        self.bandwidth: float | None = like.bandwidth if like else None
        """Bytes a second; None: as fast as it goes."""
        self.piece: int = like.piece if like else 1 << 16
        """Most bytes that are passed on at once."""
        self.cut_after: int | None = like.cut_after if like else None
        """The connection is reset when so many bytes were passed on; None: never."""
        self.passed = 0
        """Bytes passed on so far."""
        self._open = asyncio.Event()
        if like is None or like.is_open:
            self._open.set()

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    def hold(self) -> None:
        """Pass nothing on until `release`."""
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    async def pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> bool:
        """Pass on until the source ends; False when the connection is to be reset."""
        while data := await source.read(self.piece):
            if self.latency:
                await asyncio.sleep(self.latency)
            await self._open.wait()
            left = len(data) if self.cut_after is None else max(0, self.cut_after - self.passed)
            sink.write(data[:left])
            await sink.drain()
            self.passed += min(left, len(data))
            if left < len(data) or self.passed == self.cut_after:
                return False
            if self.bandwidth is not None:
                await asyncio.sleep(len(data) / self.bandwidth)
        await self._open.wait()
        if sink.can_write_eof():
            sink.write_eof()
        return True


class Link:
    """One connection through the proxy: `up` to the server, `down` to the client."""

    def __init__(self, up: Path, down: Path) -> None:
        self.up = Path(up)
        self.down = Path(down)
        self._writers: list[asyncio.StreamWriter] = []

    async def carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int, *, drop: bool
    ) -> None:
        self._writers.append(writer)
        try:
            if drop:
                self.reset()
                return
            server_reader, server_writer = await asyncio.open_connection(host, port)
            self._writers.append(server_writer)
            await asyncio.gather(
                self._one_way(self.up, reader, server_writer), self._one_way(self.down, server_reader, writer)
            )
        except OSError:
            pass  # one side went away: the other is told by the close
        finally:
            await self._close()

    def reset(self) -> None:
        """Break both sides with RST, as a machine that lost its state does."""
        for writer in self._writers:
            peer = writer.get_extra_info("socket")
            if peer is not None and peer.fileno() >= 0:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def _one_way(self, path: Path, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            if not await path.pump(source, sink):
                self.reset()
        except OSError:
            self.reset()

    async def _close(self) -> None:
        for writer in self._writers:
            writer.close()
        for writer in self._writers:
            with contextlib.suppress(OSError):
                await writer.wait_closed()


class FaultProxy:
    """Listens on a free loopback port and carries each connection to a server.

    Attributes:
        up: the pattern of new connections' way to the server; a fault set here holds for connections made afterwards.
        down: the same for the way back.
        drop: so many of the next connections are reset as soon as they are made.
        links: every connection that was made, in order.
    """

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._server_address = (host, port)
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.up = Path()
        self.down = Path()
        self.drop = 0
        self.links: list[Link] = []
        self.port = 0

    def blackhole(self) -> None:
        """Fall silent both ways, for connections that stand and for new ones."""
        for path in self._paths():
            path.hold()

    def heal(self) -> None:
        """Deliver what was held, and pass on from now."""
        for path in self._paths():
            path.release()

    def reset(self) -> None:
        """Break all connections with RST."""
        for link in self.links:
            link.reset()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def _paths(self) -> list[Path]:
        return [self.up, self.down, *(path for link in self.links for path in (link.up, link.down))]

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(self.up, self.down)
        self.links.append(link)
        drop = self.drop > 0
        self.drop -= drop
        task = asyncio.create_task(link.carry(reader, writer, *self._server_address, drop=drop))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
