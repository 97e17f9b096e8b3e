"""The real store over a network and a server that misbehave: it answers or says so in time, and does nothing twice."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from checkpoint_replicator.embedded import EmbeddedRedis
from checkpoint_replicator.errors import UnreachableError
from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Epoch, Host, Incarnation, Job, StoreId
from checkpoint_replicator.records import Lease
from checkpoint_replicator.store import AddEvent, SetHash
from checkpoint_replicator.store.redis import RedisManifestStore
from support.keys import read
from support.proxy import FaultProxy
from support.redis import command

JOB = Job("job")
EVENTS = "ckpt:{job}:events"
WISH = Lease(incarnation=Incarnation("c1"), token=0, host=Host("head"), reports="tcp://h:1", beacons="tcp://h:2")
BOUND = 20.0
"""Seconds for whole tests; the store's own deadline below is far shorter, so a hang is seen."""


def stamp(number: int) -> Stamp:
    return Stamp(1, Epoch(1), number)


def quick(port: int, *, hold: bool = True, retries: int = 4) -> RedisManifestStore:
    url = f"redis://127.0.0.1:{port}/0"
    return RedisManifestStore(url, deadline=1.5, attempt=0.3, retries=retries, hold=hold)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND):
        while not true():  # what another process does has no event
            await asyncio.sleep(0.002)


@pytest.fixture
async def proxy(redis_server: EmbeddedRedis, redis_url: str) -> AsyncIterator[FaultProxy]:
    del redis_url  # emptied
    async with FaultProxy(redis_server.port) as proxy:
        yield proxy


@pytest.fixture
async def store(proxy: FaultProxy) -> AsyncIterator[RedisManifestStore]:
    store = quick(proxy.port)
    yield store
    proxy.heal()
    await store.close()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedRedis]:
    """A server of the test's own, to be killed and paused."""
    with EmbeddedRedis(tmp_path) as server:
        yield server


async def lead(store: RedisManifestStore) -> Lease:
    lease = await store.acquire(JOB, WISH, 60)
    assert isinstance(lease, Lease)
    return lease


# ---- the network


async def test_s112_a_silent_network_is_unreachable_by_the_deadline_and_works_again_after(
    proxy: FaultProxy, store: RedisManifestStore
) -> None:
    first = await store.store_id()
    proxy.blackhole()
    async with asyncio.timeout(BOUND):
        with pytest.raises(UnreachableError, match=f"127.0.0.1:{proxy.port}"):
            await store.store_id()
    proxy.heal()
    assert await store.store_id() == first


async def test_a_store_that_is_made_in_a_silent_network_is_unreachable_by_the_deadline(proxy: FaultProxy) -> None:
    proxy.blackhole()
    store = quick(proxy.port, hold=False)
    async with asyncio.timeout(BOUND):
        with pytest.raises(UnreachableError):
            await store.jobs()
    await store.close()


async def test_s111_connections_that_are_dropped_are_made_again(proxy: FaultProxy, store: RedisManifestStore) -> None:
    proxy.drop = 2
    assert await store.jobs() == frozenset()
    assert len(proxy.links) == 3


async def test_retries_are_bounded(proxy: FaultProxy) -> None:
    proxy.drop = 100
    store = quick(proxy.port, retries=2)
    with pytest.raises(UnreachableError):
        await store.jobs()
    assert len(proxy.links) == 3
    await store.close()


async def test_a_connection_that_was_reset_between_calls_is_made_again(
    proxy: FaultProxy, store: RedisManifestStore
) -> None:
    await store.add_job(JOB)
    proxy.reset()
    assert await store.jobs() == {JOB}


async def test_an_answer_that_is_cut_off_is_asked_for_again(proxy: FaultProxy, store: RedisManifestStore) -> None:
    await store.add_job(JOB)
    before = len(proxy.links)
    for link in proxy.links:
        link.down.cut_after = link.down.passed + 5
    assert await store.jobs() == {JOB}
    assert len(proxy.links) > before


async def test_answers_in_single_bytes_are_read(proxy: FaultProxy, store: RedisManifestStore) -> None:
    proxy.up.piece = proxy.down.piece = 1
    lease = await lead(store)
    assert await store.apply(JOB, lease, stamp(1), [SetHash("epoch", {"reason": "ü" * 50})]) is None
    assert (await store.snapshot(JOB)).hashes["epoch"] == {"reason": "ü" * 50}


async def test_s105_a_write_whose_answer_was_held_back_is_done_once(
    proxy: FaultProxy, store: RedisManifestStore, redis_url: str
) -> None:
    lease = await lead(store)
    proxy.links[-1].down.hold()  # the answer to the first attempt never comes; the next attempt takes a new connection
    assert await store.apply(JOB, lease, stamp(1), [AddEvent({"event": "save_committed"})]) is None
    assert len(proxy.links) > 1
    assert read(redis_url)[EVENTS] == [{"event": "save_committed"}]


async def test_s105_a_lease_whose_answer_was_held_back_has_one_token(
    proxy: FaultProxy, store: RedisManifestStore
) -> None:
    await store.store_id()
    proxy.links[-1].down.hold()
    lease = await lead(store)
    assert len(proxy.links) > 1
    assert lease.token == 1
    assert (await store.renew(JOB, lease, 60)).held


async def test_a_write_that_arrives_late_does_not_undo_a_later_one(
    proxy: FaultProxy, store: RedisManifestStore, redis_url: str
) -> None:
    lease = await lead(store)
    slow = proxy.links[-1]
    slow.up.hold()
    old, new = SetHash("alive", {"0": "old"}), SetHash("alive", {"0": "new"})
    assert await store.apply(JOB, lease, stamp(1), [old, AddEvent({"event": "old"})]) is None  # by a second connection
    assert await store.apply(JOB, lease, stamp(1), [new]) is None  # the same stamp: the fence alone would let it pass
    executed = int(await _calls(redis_url))
    slow.up.release()
    await _until_more(redis_url, executed)
    contents = read(redis_url)
    assert contents["ckpt:{job}:alive"] == {"0": "new"}
    assert contents[EVENTS] == [{"event": "old"}]


async def test_a_write_given_up_by_its_caller_does_not_undo_a_later_one(
    proxy: FaultProxy, store: RedisManifestStore, redis_url: str
) -> None:
    lease = await lead(store)
    proxy.up.hold()
    for link in proxy.links:
        link.up.hold()
    with pytest.raises(UnreachableError):
        await store.apply(JOB, lease, stamp(1), [SetHash("alive", {"0": "old"})])
    proxy.up.release()  # new connections pass, the held ones are late
    assert await store.apply(JOB, lease, stamp(1), [SetHash("alive", {"0": "new"})]) is None
    executed = int(await _calls(redis_url))
    proxy.heal()
    await _until_more(redis_url, executed)
    assert read(redis_url)["ckpt:{job}:alive"] == {"0": "new"}


async def test_s101_a_wake_up_is_lost_in_a_silent_network_and_waiting_still_ends(
    proxy: FaultProxy, store: RedisManifestStore, redis_url: str
) -> None:
    other = RedisManifestStore(redis_url)
    assert not await store.job_added(0.01)
    proxy.blackhole()
    await other.add_job(JOB)
    async with asyncio.timeout(BOUND):
        assert not await store.job_added(0.1)
    proxy.heal()
    assert await store.jobs() == {JOB}  # who asks each second finds what the wake-up would have told
    await other.close()


async def test_s75_a_name_that_resolves_late_and_then_to_another_address_is_followed(
    redis_server: EmbeddedRedis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    del redis_url  # emptied
    place: list[int] = []
    real = socket.getaddrinfo

    def resolve(host: str, *arguments: object, **words: object) -> object:
        if host != "redis.example":
            return real(host, *arguments, **words)  # type: ignore[arg-type]
        if not place:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", place[-1]))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    store = RedisManifestStore("redis://redis.example:6379/0", deadline=1.5, attempt=0.3, hold=True)
    try:
        async with FaultProxy(redis_server.port) as first, FaultProxy(redis_server.port) as second:
            with pytest.raises(UnreachableError, match=r"redis\.example"):
                await store.add_job(JOB)
            place.append(first.port)
            await store.add_job(JOB)
            place.append(second.port)
            first.reset()
            first.drop = 100
            assert await store.jobs() == {JOB}
    finally:
        await store.close()


# ---- the server


async def test_a_server_that_comes_back_empty_has_another_id_and_no_lease(server: EmbeddedRedis) -> None:
    store = quick(server.port)
    before = await store.store_id()
    lease = await lead(store)
    server.kill()
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1"):
        await store.renew(JOB, lease, 60)
    server.start()
    renewal = await store.renew(JOB, lease, 60)
    assert not renewal.held
    assert renewal.store != before
    await store.close()


async def test_a_paused_server_is_unreachable_by_the_deadline(server: EmbeddedRedis) -> None:
    store = quick(server.port)
    await store.store_id()
    server.pause()
    async with asyncio.timeout(BOUND):
        with pytest.raises(UnreachableError):
            await store.jobs()
    server.resume()
    assert await store.jobs() == frozenset()
    await store.close()


async def test_listening_for_jobs_goes_on_after_a_restart(server: EmbeddedRedis) -> None:
    store, other = quick(server.port), quick(server.port)
    assert not await store.job_added(0.01)
    server.kill()
    assert not await store.job_added(0.05)
    server.start()
    assert not await store.job_added(0.01)
    waiting = asyncio.create_task(store.job_added(BOUND))
    await other.add_job(JOB)
    assert await waiting
    await store.close()
    await other.close()


async def test_a_demoted_server_is_unreachable_for_writes_until_it_is_master_again(server: EmbeddedRedis) -> None:
    store = quick(server.port)
    lease = await lead(store)
    command(server.url, "REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(UnreachableError, match=r"(?i)read only replica"):
        await store.apply(JOB, lease, stamp(1), [SetHash("epoch", {"number": "1"})])
    assert any(problem.startswith("role") for problem in await store.check())
    command(server.url, "REPLICAOF", "NO", "ONE")
    assert await store.apply(JOB, lease, stamp(2), [SetHash("epoch", {"number": "1"})]) is None
    await store.close()


async def test_a_write_goes_through_when_the_server_becomes_master_between_two_attempts(server: EmbeddedRedis) -> None:
    store = RedisManifestStore(server.url, deadline=BOUND, retries=200)
    lease = await lead(store)
    command(server.url, "REPLICAOF", "127.0.0.1", "1")
    writing = asyncio.create_task(store.apply(JOB, lease, stamp(1), [SetHash("epoch", {"number": "1"})]))
    adding = asyncio.create_task(store.add_job(JOB))
    await until(lambda: b"errorstat_READONLY:count=" in command(server.url, "INFO", "errorstats"))
    command(server.url, "REPLICAOF", "NO", "ONE")
    assert await writing is None
    await adding
    assert await store.jobs() == {JOB}
    await store.close()


async def test_s104_a_full_server_refuses_writes_and_still_answers(server: EmbeddedRedis) -> None:
    store = quick(server.port)
    lease = await lead(store)
    assert await store.apply(JOB, lease, stamp(1), [SetHash("alive", {"0": "ok"})]) is None
    assert (await store.renew(JOB, lease, 60)).held
    command(server.url, "CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(UnreachableError, match="maxmemory"):
        await store.apply(JOB, lease, stamp(2), [SetHash("epoch", {"number": "1"})])
    assert (await store.view(JOB, Host("h"), None)).lease == lease
    assert (await store.snapshot(JOB)).hashes == {"alive": {"0": "ok"}}
    assert await store.jobs() == frozenset()
    assert await store.hosts() == {}
    assert (await store.renew(JOB, lease, 60)).held  # so nobody else decides meanwhile, and what was decided stands
    assert any(problem.startswith("maxmemory:") for problem in await store.check())
    await store.close()


async def test_a_password_that_is_missing_or_wrong_is_told(server: EmbeddedRedis) -> None:
    command(server.url, "CONFIG", "SET", "requirepass", "secret")
    for url in (server.url, server.url.replace("//", "//:wrong@")):
        store = RedisManifestStore(url, deadline=1.5)
        with pytest.raises(UnreachableError, match=r"(?i)auth|password") as caught:
            await store.jobs()
        assert "wrong@" not in str(caught.value)
        await store.close()
    store = RedisManifestStore(server.url.replace("//", "//:secret@"))
    assert await store.jobs() == frozenset()
    await store.close()


async def test_a_fit_server_has_no_problem_and_one_that_evicts_has(server: EmbeddedRedis) -> None:
    store = quick(server.port)
    assert await store.check() == ()
    command(server.url, "CONFIG", "SET", "maxmemory-policy", "volatile-lru")
    [problem] = await store.check()
    assert problem.startswith("maxmemory-policy: expected noeviction, found volatile-lru")
    await store.close()


async def test_a_node_leaves_no_connection_open_and_a_coordinator_keeps_one(server: EmbeddedRedis) -> None:
    node, coordinator = quick(server.port, hold=False), quick(server.port, hold=True)
    await asyncio.gather(*(node.jobs() for _ in range(5)))
    await until(lambda: b"connected_clients:1\r\n" in command(server.url, "INFO", "clients"))
    await coordinator.jobs()
    await coordinator.jobs()
    await until(lambda: b"connected_clients:2\r\n" in command(server.url, "INFO", "clients"))
    await node.close()
    await coordinator.close()


async def _calls(url: str) -> bytes:
    """Return how many scripts the server has run."""
    _, _, rest = command(url, "INFO", "commandstats").partition(b"cmdstat_eval:calls=")
    return rest.partition(b",")[0]


async def _until_more(url: str, before: int) -> None:
    async with asyncio.timeout(BOUND):
        while int(await _calls(url)) <= before:  # what another process does has no event
            await asyncio.sleep(0.002)


async def test_s113_a_cancelled_question_ends_its_task(redis_url: str) -> None:
    store = RedisManifestStore(redis_url, hold=True)

    async def ask() -> None:
        while True:
            await store.time()

    for number in range(40):
        task = asyncio.create_task(ask())
        await asyncio.sleep(0.01 + number * 0.0003)
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=5)
        assert done
    await store.close()


async def test_a_job_that_is_written_all_the_time_is_shown_to_people_and_never_taken_up_by_a_coordinator(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = RedisManifestStore(redis_url), RedisManifestStore(redis_url)
    lease, honest, count = await lead(writer), reader.store_id, iter(range(1, 1000))

    async def overtaken() -> StoreId:
        number = next(count)
        assert await writer.apply(JOB, lease, stamp(number), [SetHash("alive", {"0": str(number)})]) is None
        return await honest()

    monkeypatch.setattr(reader, "store_id", overtaken)
    with pytest.raises(UnreachableError, match="job was written 10 times while it was read"):
        await reader.snapshot(JOB)
    found = await reader.snapshot(JOB, mixed=True)
    assert found.mixed
    assert found.hashes["alive"]["0"].isdigit()
    await writer.close()
    await reader.close()
