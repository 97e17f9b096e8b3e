"""The proxy misbehaves as ordered, and only so."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from support.proxy import FaultProxy


class Echo:
    """Sends back what it gets; remembers it."""

    def __init__(self) -> None:
        self.got = bytearray()
        self.port = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._echo(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                self.got += data
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    echo = Echo()
    await echo.start()
    yield echo
    await echo.stop()


@pytest.fixture
async def proxy(echo: Echo) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(echo.port) as proxy:
        yield proxy


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, data: bytes) -> bytes:
        self.writer.write(data)
        return await self.reader.readexactly(len(data))


@pytest.fixture
async def client(proxy: FaultProxy) -> AsyncIterator[Client]:
    client = Client(*await asyncio.open_connection("127.0.0.1", proxy.port))
    yield client
    client.writer.close()
    with contextlib.suppress(OSError):  # some tests reset the connection
        await client.writer.wait_closed()  # else the socket outlives the loop, and warns in a later test


async def eventually(true: Callable[[], bool], seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not true():  # another process's state has no event
            await asyncio.sleep(0.001)


async def test_without_orders_all_bytes_pass_both_ways(client: Client, proxy: FaultProxy) -> None:
    data = bytes(range(256)) * 4096
    assert await client.ask(data) == data
    assert proxy.links[0].up.passed == proxy.links[0].down.passed == len(data)


async def test_the_end_of_the_stream_passes(client: Client) -> None:
    client.writer.write(b"last")
    client.writer.write_eof()
    assert await client.reader.read() == b"last"


async def test_pieces_of_one_byte_arrive_whole_and_in_order(client: Client, proxy: FaultProxy) -> None:
    await client.ask(b"x")
    proxy.links[0].up.piece = proxy.links[0].down.piece = 1
    assert await client.ask(b"0123456789" * 20) == b"0123456789" * 20


async def test_latency_and_bandwidth_delay_but_lose_nothing(client: Client, proxy: FaultProxy) -> None:
    await client.ask(b"x")
    link = proxy.links[0]
    link.up.latency, link.down.bandwidth = 0.02, 100_000
    loop = asyncio.get_running_loop()
    begun = loop.time()
    assert await client.ask(b"y" * 1000) == b"y" * 1000
    assert loop.time() - begun >= 0.02


async def test_a_blackhole_is_silent_and_delivers_when_it_heals(client: Client, proxy: FaultProxy, echo: Echo) -> None:
    await client.ask(b"before")
    proxy.blackhole()
    client.writer.write(b"within")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await client.reader.read(1)
    assert echo.got == b"before"
    proxy.heal()
    assert await client.reader.readexactly(6) == b"within"


async def test_a_new_connection_into_a_blackhole_stands_and_is_silent(proxy: FaultProxy) -> None:
    proxy.blackhole()
    client = Client(*await asyncio.open_connection("127.0.0.1", proxy.port))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await client.ask(b"x")
    client.writer.close()


async def test_what_was_held_arrives_although_its_sender_hung_up(client: Client, proxy: FaultProxy, echo: Echo) -> None:
    await client.ask(b"before ")
    proxy.links[0].up.hold()
    client.writer.write(b"late")
    await client.writer.drain()
    client.writer.close()
    await client.writer.wait_closed()
    proxy.links[0].up.release()
    await eventually(lambda: bytes(echo.got) == b"before late")


async def test_a_reset_is_a_reset_and_no_end(client: Client, proxy: FaultProxy) -> None:
    await client.ask(b"x")
    proxy.reset()
    with pytest.raises(ConnectionResetError):
        await client.reader.readexactly(1)


async def test_a_connection_is_cut_after_so_many_bytes(client: Client, proxy: FaultProxy, echo: Echo) -> None:
    await client.ask(b"x")
    proxy.links[0].up.cut_after = 5
    client.writer.write(b"0123456789")
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await client.reader.readexactly(10)
    await eventually(lambda: len(echo.got) <= 5)


async def test_the_next_connections_are_dropped_and_the_one_after_works(proxy: FaultProxy) -> None:
    proxy.drop = 2
    for _ in range(2):
        lost = Client(*await asyncio.open_connection("127.0.0.1", proxy.port))
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await lost.ask(b"x")
        lost.writer.close()
    client = Client(*await asyncio.open_connection("127.0.0.1", proxy.port))
    assert await client.ask(b"x") == b"x"
    client.writer.close()


async def test_a_server_that_is_away_closes_the_connection() -> None:
    async with FaultProxy(1) as proxy:
        client = Client(*await asyncio.open_connection("127.0.0.1", proxy.port))
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await client.ask(b"x")
        client.writer.close()
