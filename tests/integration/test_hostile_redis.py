"""A real Redis into which somebody wrote by hand: every method answers, or says which key is wrong."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from checkpoint_replicator.embedded import EmbeddedRedis
from checkpoint_replicator.errors import ProtocolError, UnreachableError
from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Epoch, Host, Incarnation, Job, Rank
from checkpoint_replicator.records import HostRecord, Lease
from checkpoint_replicator.status import read_cluster
from checkpoint_replicator.store import SetHash
from checkpoint_replicator.store.redis import RedisManifestStore

JOB = Job("job")
HOST = HostRecord(host=Host("a"), incarnation=Incarnation("i"), jobs=(JOB,))
WISH = Lease(incarnation=Incarnation("c1"), token=0, host=Host("head"), reports="tcp://h:1", beacons="tcp://h:2")
NAMES = ("lease", "fence", "keys", "epoch", "keep", "orders", "restore:1", "alive", "node:0", "inventory:0", "step:1.1")
MORE = ("steps", "backup:x", "backups", "lastbackup", "forced", "events")
KEYS = ("ckpt:store", "ckpt:jobs", "ckpt:hosts", "ckpt:host:a", *(f"ckpt:{{{JOB}}}:{name}" for name in (*NAMES, *MORE)))
FIELDS = (b"number", b"token", b"epoch", b"stamp", b"upto", b"decision", b"a", b"n0", b"host", b"state", b"", b"\xff")
VALUES = (b"", b"x", b"\xff\xfe", b"-1", b"nan", b"inf", b"1e300", b"9" * 400, b"{", b"[" * 5000, b"null", b"1.1.1")
ODD = (b'{"token":1e400}', b'{"incarnation":"c1","token":' + b"9" * 30 + b"}", b"x" * (1 << 20))


def tell(url: str, commands: list[tuple[bytes, ...]]) -> None:
    """Send commands past every layer of ours; what the server answers does not matter."""
    host, port = url.removeprefix("redis://").split("/")[0].split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        for words in (*commands, (b"QUIT",)):
            parts = b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
            connection.sendall(b"*%d\r\n" % len(words) + parts)
        while connection.recv(1 << 16):
            pass


def spoilt(kind: str, value: bytes) -> list[tuple[bytes, ...]]:
    """Give every key this type and value."""
    commands: list[tuple[bytes, ...]] = []
    for name in KEYS:
        key = name.encode()
        commands.append((b"DEL", key))
        match kind:
            case "string":
                commands.append((b"SET", key, value))
            case "hash":
                commands += [(b"HSET", key, field, value) for field in FIELDS]
                commands += [
                    (b"HSET", b"ckpt:{job}:keys", other.encode(), b"hash") for other in (*NAMES, *MORE, "../x")
                ]
            case "set":
                commands.append((b"SADD", key, value, b"a", b"job"))
            case "zset":
                commands += [(b"ZADD", key, b"1", value), (b"ZADD", key, b"inf", b"a")]
            case _:
                commands.append((b"RPUSH", key, value))
    return commands


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[RedisManifestStore]:
    store = RedisManifestStore(redis_url, deadline=5, attempt=2, retries=0)
    yield store
    await store.close()


def calls(store: RedisManifestStore, lease: Lease) -> list[Callable[[], Awaitable[object]]]:
    """Return everything that a process asks of Redis."""
    stamp = Stamp(1, Epoch(1), 1)
    return [
        store.store_id,
        store.jobs,
        store.hosts,
        store.check,
        store.time,
        lambda: store.add_job(JOB),
        lambda: store.register(HOST),
        lambda: store.helps(JOB, [Host("a")]),
        lambda: store.view(JOB, Host("a"), Rank(0)),
        lambda: store.view(JOB, Host("a"), None),
        lambda: store.snapshot(JOB),
        lambda: store.acquire(JOB, lease, 0.05),
        lambda: store.renew(JOB, lease, 0.05),
        lambda: store.apply(JOB, lease, stamp, [SetHash("epoch", {"number": "1"})]),
        lambda: store.release(JOB, lease),
        lambda: store.unregister(Host("a"), Incarnation("i")),
        lambda: read_cluster(store),
    ]


@pytest.mark.parametrize("kind", ["string", "hash", "set", "zset", "list"])
async def test_whatever_stands_in_redis_every_call_answers_or_names_what_is_wrong(
    kind: str, redis_url: str, store: RedisManifestStore
) -> None:
    for value in (*VALUES, *ODD):
        if len(value) > 10_000 and kind != "string":
            continue  # once is enough
        await asyncio.to_thread(tell, redis_url, spoilt(kind, value))
        for call in calls(store, WISH):
            try:
                await call()
            except (ProtocolError, UnreachableError) as error:
                assert len(str(error)) < 5000  # noqa: PT017 - most calls are right to answer
    await asyncio.to_thread(tell, redis_url, [(b"FLUSHALL",)])
    lease = await store.acquire(JOB, WISH, 10)
    assert isinstance(lease, Lease)
    assert await store.apply(JOB, lease, Stamp(lease.token, Epoch(1), 1), [SetHash("alive", {"0": "x"})]) is None


async def test_a_spoilt_fence_stops_its_job_is_named_and_may_be_deleted(
    redis_url: str, store: RedisManifestStore
) -> None:
    key = f"ckpt:{{{JOB}}}:fence"
    await asyncio.to_thread(tell, redis_url, [(b"LPUSH", key.encode(), b"junk")])
    with pytest.raises(ProtocolError, match=f"^{re.escape(key)}: .*; delete this key: it is written anew$"):
        await store.acquire(JOB, WISH, 10)
    await asyncio.to_thread(tell, redis_url, [(b"DEL", key.encode())])
    assert isinstance(await store.acquire(JOB, WISH, 10), Lease)


async def test_a_job_or_host_name_that_is_no_text_stops_no_other(redis_url: str, store: RedisManifestStore) -> None:
    await store.add_job(JOB)
    await store.register(HOST)
    await asyncio.to_thread(tell, redis_url, [(b"SADD", b"ckpt:jobs", b"\xff"), (b"SADD", b"ckpt:hosts", b"\xff")])
    assert await store.jobs() == {JOB, "\\xff"}
    assert await store.hosts() == {"a": HOST}


async def test_a_server_that_answers_nonsense_is_unreachable_or_named(redis_server: EmbeddedRedis) -> None:
    """Somebody else listens on the port of the URL."""
    del redis_server
    answers = [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\0" * 100,
        b"*1000000000\r\n",
        b"$-7\r\n",
        b"+OK\r\n" * 100,
        b":x\r\n",
    ]
    for answer in answers:

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: bytes = answer) -> None:
            await reader.read(100)
            writer.write(answer)
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            store = RedisManifestStore(f"redis://127.0.0.1:{port}/0", deadline=1.0, attempt=0.3, retries=0)
            for call in calls(store, WISH):
                with pytest.raises((UnreachableError, ProtocolError)):
                    await call()
            await store.close()
