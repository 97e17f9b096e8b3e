"""What every ManifestStore must do: the model and the real thing give the same answers."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from itertools import chain
from typing import Protocol

import msgspec
import pytest

from checkpoint_replicator.embedded import EmbeddedRedis
from checkpoint_replicator.errors import ProtocolError
from checkpoint_replicator.fence import ZERO, Stamp
from checkpoint_replicator.ids import Address, Epoch, Host, Incarnation, Job, Rank, SessionId, Step, StoreId, Worker
from checkpoint_replicator.records import (
    BackupOrder,
    EpochRecord,
    EpochState,
    FetchPlan,
    Help,
    HostRecord,
    KeepList,
    Lease,
    Member,
    Orders,
    Outcome,
    Peer,
    RestoreRecord,
    ShardPlan,
)
from checkpoint_replicator.save import Save, ShardKey, Tag
from checkpoint_replicator.shape import Shape
from checkpoint_replicator.store import AddEvent, Change, Delete, Denial, ManifestStore, SetHash, SetScores
from checkpoint_replicator.store.fields import to_fields, to_json
from checkpoint_replicator.store.redis import RedisManifestStore
from checkpoint_replicator.wishes import WishAnswer, WishState
from support.memory_store import MemoryManifestStore, StoreModel
from support.redis import command, until

JOB = Job("llama-3.1_8b")
HOST = Host("node-0")
TTL = 10.0
SHAPE = Shape(2, 1, 1, "pytorch")
SAVE = Save(Epoch(1), Step(3))
TAG = Tag(JOB, SAVE, SHAPE, ShardKey(Rank(0), Worker(0)), Address("ab" * 32), 7)
PEER = Peer(
    host=Host("node-1"), incarnation=Incarnation("p1"), control="tcp://10.0.0.2:7000", leaves=("tcp://10.0.0.2:7001",)
)


class Rig(Protocol):
    """One data set, and what a test does to it behind the stores' backs."""

    def open(self) -> ManifestStore: ...
    async def put(self, key: str, value: str | dict[str, str]) -> None: ...
    async def lease_left(self, job: Job) -> float: ...
    async def expire_lease(self, job: Job) -> None: ...
    async def prolong_lease(self, job: Job, seconds: float) -> None: ...
    async def flush(self) -> None: ...
    async def close(self) -> None: ...


class MemoryRig:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0
        self.model = StoreModel(lambda: self.now)

    def open(self) -> ManifestStore:
        return MemoryManifestStore(self.model)

    async def put(self, key: str, value: str | dict[str, str]) -> None:
        self.model.put(key, value)

    async def lease_left(self, job: Job) -> float:
        return self.model.ttl(f"ckpt:{{{job}}}:lease") or 0.0

    async def expire_lease(self, job: Job) -> None:
        assert f"ckpt:{{{job}}}:lease" in self.model.contents()
        self.now += TTL

    async def prolong_lease(self, job: Job, seconds: float) -> None:
        key = f"ckpt:{{{job}}}:lease"
        self.model.put(key, self.model.contents()[key], seconds)

    async def flush(self) -> None:
        self.model.flush()

    async def close(self) -> None:
        pass


class RedisRig:
    def __init__(self, url: str) -> None:
        self.url = url
        self.stores: list[RedisManifestStore] = []

    def open(self) -> ManifestStore:
        self.stores.append(RedisManifestStore(self.url, hold=bool(len(self.stores) % 2)))
        return self.stores[-1]

    async def put(self, key: str, value: str | dict[str, str]) -> None:
        command(self.url, "DEL", key)
        words = ("SET", key, value) if isinstance(value, str) else ("HSET", key, *chain.from_iterable(value.items()))
        assert not command(self.url, *words).startswith(b"-")

    async def lease_left(self, job: Job) -> float:
        return int(command(self.url, "PTTL", f"ckpt:{{{job}}}:lease")[1:]) / 1000

    async def expire_lease(self, job: Job) -> None:
        lease = f"ckpt:{{{job}}}:lease"
        assert command(self.url, "PEXPIRE", lease, "1") == b":1\r\n"
        until(lambda: command(self.url, "EXISTS", lease) == b":0\r\n")

    async def prolong_lease(self, job: Job, seconds: float) -> None:
        lease = f"ckpt:{{{job}}}:lease"
        assert command(self.url, "PEXPIRE", lease, str(round(seconds * 1000))) == b":1\r\n"

    async def flush(self) -> None:
        command(self.url, "FLUSHALL")

    async def close(self) -> None:
        for store in self.stores:
            await store.close()


@pytest.fixture(scope="session")
def cluster_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    """One server that is a whole Redis Cluster: it refuses commands and scripts whose keys lie in several slots."""
    options = ("--cluster-enabled", "yes", "--cluster-require-full-coverage", "no")
    with EmbeddedRedis(tmp_path_factory.mktemp("cluster"), extra=options) as server:
        assert command(server.url, "CLUSTER", "ADDSLOTSRANGE", "0", "16383") == b"+OK\r\n"
        until(lambda: b"cluster_state:ok" in command(server.url, "CLUSTER", "INFO"))  # it takes two seconds
        yield server


@pytest.fixture(params=["memory", "redis", "cluster"])
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    rig: Rig
    match request.param:
        case "memory":
            rig = MemoryRig()
        case "redis":
            rig = RedisRig(request.getfixturevalue("redis_url"))
        case _:
            rig = RedisRig(request.getfixturevalue("cluster_server").url)
            await rig.flush()
    yield rig
    await rig.close()


@pytest.fixture
async def store(rig: Rig) -> AsyncIterator[ManifestStore]:
    store = rig.open()
    yield store
    await store.close()


def wish(name: str = "c1") -> Lease:
    return Lease(
        incarnation=Incarnation(name),
        token=0,
        host=Host("head"),
        reports="tcp://10.0.0.9:7100",
        beacons="tcp://10.0.0.9:7101",
    )


async def lead(store: ManifestStore, name: str = "c1") -> Lease:
    lease = await store.acquire(JOB, wish(name), TTL)
    assert isinstance(lease, Lease)
    return lease


async def write(store: ManifestStore, lease: Lease, stamp: Stamp, *changes: Change) -> Stamp | None:
    return await store.apply(JOB, lease, stamp, changes)


def stamp(token: int, number: int = 1, epoch: int = 1) -> Stamp:
    return Stamp(token, Epoch(epoch), number)


EPOCH = EpochRecord(
    number=Epoch(1),
    stamp=stamp(1),
    state=EpochState.RESTORING,
    reason='rank 1 is at "40 %"',
    shape=SHAPE,
    members=(Member(rank=Rank(0), host=HOST, session=SessionId("s0")),),
    refused={"s9": "shape differs: 2 nodes, 4 nodes"},
)
RESTORE = RestoreRecord(stamp=stamp(1), outcome=Outcome.RESTORE, save=SAVE, reason="newest that is whole")
PLAN = FetchPlan(stamp=stamp(1), shards=(ShardPlan(key=TAG.key, tag=TAG, holders=(PEER,)),))
KEEP = KeepList(stamp=stamp(1), upto=SAVE, keep=(SAVE,), drop=(Save(Epoch(1), Step(4)),))
ORDERS = Orders(stamp=stamp(1), peers=(PEER,), backup=(BackupOrder(id="b1", kind="list"),))


def everything() -> tuple[Change, ...]:
    return (
        SetHash("restore:1", {"decision": to_json(RESTORE), "n0": to_json(PLAN)}, replace=True),
        SetHash("keep", to_fields(KEEP), replace=True),
        SetHash("orders", {str(HOST): to_json(ORDERS)}, replace=True),
        SetHash("epoch", to_fields(EPOCH), replace=True),
    )


# ---- who cannot reach the coordinator


async def test_who_calls_for_help_is_heard_until_the_call_ends(store: ManifestStore) -> None:
    cry = Help(host=HOST, incarnation=Incarnation("w1"), reason="no beacon for 5 s")
    await store.call_help(JOB, cry, TTL)
    await store.call_help(JOB, cry, TTL)
    other = Host("node-1")
    assert await store.helps(JOB, (HOST, other)) == {HOST: cry}
    assert await store.helps(JOB, (other,)) == {}
    assert await store.helps(Job("other"), (HOST,)) == {}
    assert await store.helps(JOB, ()) == {}
    await store.call_help(JOB, cry, 0.001)
    while await store.helps(JOB, (HOST,)):
        if isinstance(store, MemoryManifestStore):
            break  # its clock stands still


async def test_a_call_for_help_is_no_part_of_what_the_coordinator_keeps(store: ManifestStore) -> None:
    await store.call_help(JOB, Help(host=HOST, incarnation=Incarnation("w1"), reason="?"), TTL)
    assert (await store.snapshot(JOB)).hashes == {}


# ---- Redis that went back


async def test_a_write_onto_older_data_than_the_writer_saw_is_refused(store: ManifestStore) -> None:
    lease = await lead(store)
    assert await write(store, lease, stamp(1, 3), SetHash("epoch", {"number": "1"})) is None
    changes = [SetHash("epoch", {"reason": "differs"})]
    assert await store.apply(JOB, lease, stamp(1, 9), changes, stamp(1, 4)) == stamp(1, 3)
    assert (await store.snapshot(JOB)).hashes["epoch"] == {"number": "1"}
    assert await store.apply(JOB, lease, stamp(1, 9), changes, stamp(1, 3)) is None


# ---- the life of the data set, jobs and hosts


async def test_the_store_id_is_set_once_and_every_client_reads_the_same(rig: Rig, store: ManifestStore) -> None:
    other = rig.open()
    first = await store.store_id()
    assert first
    assert await other.store_id() == await store.store_id() == first
    await other.close()


async def test_a_flush_is_seen_as_another_store_id(rig: Rig, store: ManifestStore) -> None:
    before = await store.store_id()
    await rig.flush()
    assert await store.store_id() != before


async def test_time_is_wall_time(store: ManifestStore) -> None:
    assert await store.time() > 1_600_000_000


async def test_jobs_are_added_once(store: ManifestStore) -> None:
    assert await store.jobs() == frozenset()
    for job in ("a", "b", "a"):
        await store.add_job(Job(job))
    assert await store.jobs() == {"a", "b"}


async def test_adding_a_job_wakes_who_waits_for_one(rig: Rig, store: ManifestStore) -> None:
    other = rig.open()
    assert not await other.job_added(0.01)  # and from here on it listens
    waiting = asyncio.create_task(other.job_added(20))
    await asyncio.sleep(0)
    await store.add_job(JOB)
    assert await waiting
    await other.close()


async def test_a_host_is_found_as_it_registered(store: ManifestStore) -> None:
    record = HostRecord(host=HOST, incarnation=Incarnation("w1"), transfer=PEER, jobs=("a", "b"))
    await store.register(record)
    assert await store.hosts() == {HOST: record}


async def test_a_later_registration_replaces_the_whole_earlier_one(store: ManifestStore) -> None:
    await store.register(HostRecord(host=HOST, incarnation=Incarnation("w1"), transfer=PEER, jobs=("a",)))
    plain = HostRecord(host=HOST, incarnation=Incarnation("w2"))
    await store.register(plain)
    assert await store.hosts() == {HOST: plain}


async def test_only_the_incarnation_that_registered_a_host_can_remove_it(store: ManifestStore) -> None:
    await store.register(HostRecord(host=HOST, incarnation=Incarnation("w2")))
    await store.unregister(HOST, Incarnation("w1"))
    assert set(await store.hosts()) == {HOST}
    await store.unregister(HOST, Incarnation("w2"))
    assert await store.hosts() == {}


# ---- the lease


async def test_the_first_lease_has_token_one_and_nobody_else_gets_it(rig: Rig, store: ManifestStore) -> None:
    lease = await lead(store)
    assert lease == msgspec.structs.replace(wish(), token=1)
    assert await rig.open().acquire(JOB, wish("c2"), TTL) is Denial.HELD


async def test_leases_of_different_jobs_are_independent(store: ManifestStore) -> None:
    await lead(store)
    other = await store.acquire(Job("other"), wish("c2"), TTL)
    assert isinstance(other, Lease)
    assert other.token == 1


async def test_a_patient_stand_by_leaves_the_lease_of_an_empty_redis_to_who_remembers_the_job(
    rig: Rig, store: ManifestStore
) -> None:
    assert await store.acquire(JOB, wish("c2"), TTL, patient=True) is Denial.EMPTY
    first = await lead(store)
    assert await store.acquire(JOB, wish("c2"), TTL, patient=True) is Denial.HELD
    await rig.expire_lease(JOB)
    second = await store.acquire(JOB, wish("c2"), TTL, patient=True)
    assert isinstance(second, Lease)
    assert second.token > first.token


async def test_who_has_the_lease_gets_the_same_one_when_it_asks_again(store: ManifestStore) -> None:
    first = await lead(store)
    assert await lead(store) == first


async def test_a_lease_taken_after_expiry_has_a_higher_token(rig: Rig, store: ManifestStore) -> None:
    first = await lead(store)
    await rig.expire_lease(JOB)
    second = await lead(store, "c2")
    assert second.token > first.token


async def test_s108_a_lease_without_an_end_belongs_to_nobody(rig: Rig, store: ManifestStore) -> None:
    first = await lead(store)
    await rig.put(f"ckpt:{{{JOB}}}:lease", '{"incarnation":"by hand","token":1,"host":"h","reports":"","beacons":""}')
    second = await lead(store, "c2")
    assert second.token > first.token


async def test_a_lease_that_a_clock_that_went_back_made_endless_belongs_to_nobody(
    rig: Rig, store: ManifestStore
) -> None:
    first = await lead(store)
    await rig.prolong_lease(JOB, 24 * 3600.0)
    second = await lead(store, "c2")
    assert second.token > first.token
    assert await rig.lease_left(JOB) <= TTL
    assert not (await store.renew(JOB, first, TTL)).held


async def test_a_lease_that_another_coordinator_holds_for_longer_is_respected(rig: Rig, store: ManifestStore) -> None:
    await lead(store)
    await rig.prolong_lease(JOB, 5 * TTL)
    assert await store.acquire(JOB, wish("c2"), TTL) is Denial.HELD


async def test_a_lease_taken_after_a_release_has_a_higher_token(store: ManifestStore) -> None:
    first = await lead(store)
    await store.release(JOB, first)
    second = await lead(store)
    assert second.token > first.token


async def test_taking_a_lease_raises_the_fence_to_its_token_and_keeps_epoch_and_number(store: ManifestStore) -> None:
    first = await lead(store)
    assert await write(store, first, stamp(1, number=7, epoch=4)) is None
    await store.release(JOB, first)
    second = await lead(store, "c2")
    assert (await store.renew(JOB, second, TTL)).fence == stamp(2, number=7, epoch=4)


async def test_a_renewal_tells_store_and_fence(store: ManifestStore) -> None:
    lease = await lead(store)
    await write(store, lease, stamp(1, number=5))
    renewal = await store.renew(JOB, lease, TTL)
    assert renewal.held
    assert renewal.store == await store.store_id()
    assert renewal.fence == stamp(1, number=5)


async def test_renewing_prolongs(rig: Rig, store: ManifestStore) -> None:
    lease = await lead(store)
    assert 0 < await rig.lease_left(JOB) <= TTL
    assert (await store.renew(JOB, lease, 9 * TTL)).held
    assert 8 * TTL < await rig.lease_left(JOB) <= 9 * TTL


async def test_s108_neither_another_incarnation_nor_another_token_can_renew(store: ManifestStore) -> None:
    lease = await lead(store)
    stranger = msgspec.structs.replace(lease, incarnation=Incarnation("c2"))
    stale = msgspec.structs.replace(lease, token=lease.token - 1)
    assert not (await store.renew(JOB, stranger, TTL)).held
    assert not (await store.renew(JOB, stale, TTL)).held
    assert (await store.renew(JOB, lease, TTL)).held


async def test_s108_neither_another_incarnation_nor_another_token_can_release(store: ManifestStore) -> None:
    lease = await lead(store)
    await store.release(JOB, msgspec.structs.replace(lease, incarnation=Incarnation("c2")))
    await store.release(JOB, msgspec.structs.replace(lease, token=lease.token + 1))
    assert (await store.renew(JOB, lease, TTL)).held
    assert (await store.view(JOB, HOST, None)).lease == lease
    await store.release(JOB, lease)
    assert (await store.view(JOB, HOST, None)).lease is None


async def test_after_a_flush_a_renewal_finds_no_lease_another_store_and_no_fence(
    rig: Rig, store: ManifestStore
) -> None:
    lease = await lead(store)
    before = (await store.renew(JOB, lease, TTL)).store
    await rig.flush()
    renewal = await store.renew(JOB, lease, TTL)
    assert not renewal.held
    assert renewal.store != before
    assert renewal.fence == ZERO


# ---- writes under lease and fence


async def test_what_was_applied_is_in_the_snapshot(store: ManifestStore) -> None:
    lease = await lead(store)
    written = await write(
        store,
        lease,
        stamp(1),
        SetScores("steps", {"1.3": 1.0, "1.4": 2.5}),
        SetHash("step:1.3", {"state": "committed", "n0/w0": "ab" * 32}),
        AddEvent({"event": "committed", "step": "3"}),
    )
    assert written is None
    snapshot = await store.snapshot(JOB)
    assert snapshot.fence == stamp(1)
    assert snapshot.store == await store.store_id()
    assert snapshot.hashes == {
        "steps": {"1.3": "1", "1.4": "2.5"},
        "step:1.3": {"state": "committed", "n0/w0": "ab" * 32},
    }


async def test_a_job_that_is_removed_is_not_listed_any_more(store: ManifestStore) -> None:
    await store.add_job(JOB)
    await store.add_job(Job("other"))
    await store.remove_job(JOB)
    await store.remove_job(JOB)
    assert await store.jobs() == {Job("other")}


async def test_a_job_may_lose_every_key_and_keeps_its_fence(store: ManifestStore) -> None:
    lease = await lead(store)
    first = (SetHash("keep", {"upto": "1.1"}), SetScores("steps", {"1.1": 1.0}), AddEvent({"event": "x"}))
    assert await store.apply(JOB, lease, stamp(lease.token, 1), first) is None
    last = (Delete("keep"), Delete("steps"), Delete("events"))
    assert await store.apply(JOB, lease, stamp(lease.token, 2), last) is None
    snapshot = await store.snapshot(JOB)
    assert (snapshot.hashes, snapshot.fence) == ({}, stamp(lease.token, 2))


async def test_fields_are_added_unless_the_whole_is_replaced(store: ManifestStore) -> None:
    lease = await lead(store)
    await write(
        store, lease, stamp(1), SetHash("alive", {"0": "a", "1": "b"}), SetScores("steps", {"1.1": 1, "1.2": 2})
    )
    await write(store, lease, stamp(1), SetHash("alive", {"1": "c"}), SetScores("steps", {"1.3": 3}))
    assert (await store.snapshot(JOB)).hashes == {
        "alive": {"0": "a", "1": "c"},
        "steps": {"1.1": "1", "1.2": "2", "1.3": "3"},
    }
    await write(
        store,
        lease,
        stamp(1),
        SetHash("alive", {"2": "d"}, replace=True),
        SetScores("steps", {"1.4": 4}, replace=True),
    )
    assert (await store.snapshot(JOB)).hashes == {"alive": {"2": "d"}, "steps": {"1.4": "4"}}


async def test_a_deleted_key_and_one_replaced_by_nothing_are_gone(store: ManifestStore) -> None:
    lease = await lead(store)
    await write(store, lease, stamp(1), SetHash("a", {"x": "1"}), SetHash("b", {"x": "1"}), SetHash("c", {"x": "1"}))
    await write(store, lease, stamp(1), Delete("a"), SetHash("b", {}, replace=True), Delete("never"))
    assert set((await store.snapshot(JOB)).hashes) == {"c"}


async def test_texts_come_back_as_they_went_in(store: ManifestStore) -> None:
    lease = await lead(store)
    fields = {"": "", "ü {x} *": 'line\nbreak "quoted" \x00 \\', "sp ace": "ß" * 1000}
    await write(store, lease, stamp(1), SetHash("odd", fields))
    assert (await store.snapshot(JOB)).hashes["odd"] == fields


async def test_s34_a_write_with_an_older_stamp_changes_nothing_and_tells_the_newer_one(store: ManifestStore) -> None:
    lease = await lead(store)
    await write(store, lease, stamp(1, number=5), SetHash("a", {"x": "new"}))
    assert await write(store, lease, stamp(1, number=4), SetHash("a", {"x": "old"})) == stamp(1, number=5)
    assert (await store.snapshot(JOB)).hashes == {"a": {"x": "new"}}


async def test_stamps_are_ordered_by_token_then_epoch_then_number(store: ManifestStore) -> None:
    lease = await lead(store)
    for newer in (stamp(1, 9, 1), stamp(1, 1, 2), stamp(1, 10, 2), stamp(2, 0, 0)):
        assert await write(store, lease, newer) is None
    for older in (stamp(1, 99, 99), stamp(1, 11, 2)):
        assert await write(store, lease, older) == stamp(2, 0, 0)


async def test_a_write_with_the_same_stamp_is_taken(store: ManifestStore) -> None:
    lease = await lead(store)
    assert await write(store, lease, stamp(1), SetHash("a", {"x": "1"})) is None
    assert await write(store, lease, stamp(1), SetHash("a", {"x": "2"})) is None
    assert (await store.snapshot(JOB)).hashes == {"a": {"x": "2"}}


async def test_two_stores_of_one_leader_do_not_swallow_each_others_writes(rig: Rig, store: ManifestStore) -> None:
    lease = await lead(store)
    second = rig.open()
    for number in range(3):
        assert await write(store, lease, stamp(1), SetHash("a", {"x": str(number)})) is None
    assert await write(second, lease, stamp(1), SetHash("a", {"x": "second"})) is None
    assert (await store.snapshot(JOB)).hashes == {"a": {"x": "second"}}
    await second.close()


async def test_s107_a_holder_that_was_paused_past_its_lease_writes_nothing(rig: Rig, store: ManifestStore) -> None:
    paused = await lead(store)
    await rig.expire_lease(JOB)
    other = rig.open()
    new = await lead(other, "c2")
    assert await write(other, new, stamp(2), SetHash("a", {"x": "new"})) is None
    assert await write(store, paused, stamp(1, number=99), SetHash("a", {"x": "old"})) == stamp(2)
    assert await write(store, paused, stamp(9), SetHash("a", {"x": "old"})) == stamp(2)
    assert not (await store.renew(JOB, paused, TTL)).held
    await store.release(JOB, paused)
    assert (await other.renew(JOB, new, TTL)).held
    assert (await store.snapshot(JOB)).hashes == {"a": {"x": "new"}}
    await other.close()


async def test_without_any_lease_nothing_is_written(rig: Rig, store: ManifestStore) -> None:
    lease = await lead(store)
    await rig.expire_lease(JOB)
    assert await write(store, lease, stamp(5), SetHash("a", {"x": "1"})) == stamp(1, 0, 0)
    await rig.flush()
    assert await write(store, lease, stamp(5), SetHash("a", {"x": "1"})) == ZERO
    assert (await store.snapshot(JOB)).hashes == {}


async def test_after_a_flush_the_fence_can_be_raised_above_all_that_nodes_have_seen(
    rig: Rig, store: ManifestStore
) -> None:
    lease = await lead(store)
    await write(store, lease, stamp(1, number=40, epoch=6))
    await rig.flush()
    anew = await lead(store)
    assert await write(store, anew, stamp(8, number=41, epoch=6)) is None
    await store.release(JOB, anew)
    assert (await lead(store)).token == 9


async def test_a_write_of_more_than_one_script_can_take_arrives_whole(store: ManifestStore) -> None:
    lease = await lead(store)
    fields = {f"n{rank}/w{worker}": f"{rank:032x}{worker:032x}" for rank in range(1200) for worker in range(8)}
    scores = {f"1.{step}": float(step) for step in range(5000)}
    await write(store, lease, stamp(1), SetHash("big", {"old": "x"}))
    changes = (SetHash("big", fields, replace=True), SetScores("steps", scores), SetHash("last", {"x": "1"}))
    assert await write(store, lease, stamp(1), *changes) is None
    hashes = (await store.snapshot(JOB)).hashes
    assert hashes["big"] == fields
    assert {member: float(score) for member, score in hashes["steps"].items()} == scores
    assert hashes["last"] == {"x": "1"}


# ---- what a node reads


async def test_the_view_of_an_empty_store_is_empty(store: ManifestStore) -> None:
    view = await store.view(JOB, HOST, Rank(0))
    assert msgspec.structs.asdict(view) == dict.fromkeys(msgspec.structs.asdict(view))


async def test_a_node_reads_what_the_coordinator_wrote(store: ManifestStore) -> None:
    lease = await lead(store)
    await write(store, lease, stamp(1), *everything())
    view = await store.view(JOB, HOST, Rank(0))
    assert view.lease == lease
    assert view.fence == stamp(1)
    assert view.epoch == EPOCH
    assert view.restore == RESTORE
    assert view.plan == PLAN
    assert view.keep == KEEP
    assert view.orders == ORDERS
    assert view.store in {None, await store.store_id()}


async def test_a_host_without_a_rank_gets_no_plan_and_another_host_no_orders(store: ManifestStore) -> None:
    lease = await lead(store)
    await write(store, lease, stamp(1), *everything())
    view = await store.view(JOB, Host("node-7"), None)
    assert view.plan is None
    assert view.orders is None
    assert view.restore == RESTORE


async def test_the_decision_of_another_epoch_is_not_seen(store: ManifestStore) -> None:
    lease = await lead(store)
    await write(store, lease, stamp(1), *everything())
    next_epoch = msgspec.structs.replace(EPOCH, number=Epoch(2), stamp=stamp(1, 2, 2))
    await write(store, lease, stamp(1, 2, 2), SetHash("epoch", to_fields(next_epoch), replace=True))
    view = await store.view(JOB, HOST, Rank(0))
    assert view.epoch == next_epoch
    assert view.restore is None
    assert view.plan is None


async def test_a_snapshot_of_one_moment_is_not_called_mixed(store: ManifestStore) -> None:
    lease = await lead(store)
    await write(store, lease, stamp(1), *everything())
    assert await store.snapshot(JOB, mixed=True) == await store.snapshot(JOB)
    assert not (await store.snapshot(JOB)).mixed


async def test_what_became_of_an_order_is_read_alone(store: ManifestStore) -> None:
    lease = await lead(store)
    answer = WishAnswer(kind="hold", state=WishState.DONE, reason="held", at=5.0)
    assert await store.wish_answer(JOB, "w") is None
    await write(store, lease, stamp(1), SetHash("wishes", {"w": to_json(answer), "broken": "7"}))
    assert await store.wish_answer(JOB, "w") == answer
    assert await store.wish_answer(JOB, "other") is None
    with pytest.raises(ProtocolError, match="wishes"):
        await store.wish_answer(JOB, "broken")


async def test_a_view_never_mixes_two_writes(rig: Rig, store: ManifestStore) -> None:
    lease = await lead(store)
    reader = rig.open()

    async def coordinate() -> None:
        for number in range(1, 60):
            now = stamp(1, number)
            epoch = msgspec.structs.replace(EPOCH, stamp=now)
            keep = msgspec.structs.replace(KEEP, stamp=now)
            decision = msgspec.structs.replace(RESTORE, stamp=now)
            changes = (
                SetHash("epoch", to_fields(epoch), replace=True),
                SetHash("keep", to_fields(keep), replace=True),
                SetHash("restore:1", {"decision": to_json(decision)}, replace=True),
            )
            assert await write(store, lease, now, *changes) is None
            await asyncio.sleep(0)

    writing = asyncio.create_task(coordinate())
    while not writing.done():
        view = await reader.view(JOB, HOST, Rank(0))
        if view.epoch is not None:
            assert view.keep is not None
            assert view.restore is not None
            assert view.fence == view.epoch.stamp == view.keep.stamp == view.restore.stamp
        await asyncio.sleep(0)
    await writing
    await reader.close()


async def test_the_view_names_the_life_of_the_store_that_it_read(rig: Rig, store: ManifestStore) -> None:
    first = await store.store_id()
    assert (await store.view(JOB, HOST, None)).store == first
    await rig.flush()
    assert (await store.view(JOB, HOST, None)).store != StoreId(first)


BROKEN: Mapping[str, tuple[str, str | dict[str, str]]] = {
    "a lease that is no JSON": ("lease", "c1"),
    "a lease without a token": ("lease", '{"incarnation": "c1"}'),
    "a lease that is a hash": ("lease", {"incarnation": "c1"}),
    "a fence that is no number": ("fence", {"token": "many", "epoch": "1", "number": "1"}),
    "a fence without its number": ("fence", {"token": "1", "epoch": "1"}),
    "an epoch without a number": ("epoch", {"state": "running"}),
    "an epoch in an unknown state": ("epoch", to_fields(EPOCH) | {"state": "dancing"}),
    "an epoch that is a string": ("epoch", "1"),
    "members that nest without end": ("epoch", to_fields(EPOCH) | {"members": "[" * 5000}),
    "a keep list with a bad stamp": ("keep", to_fields(KEEP) | {"stamp": "1.2"}),
    "a keep list with a bad save": ("keep", to_fields(KEEP) | {"upto": "newest"}),
    "orders that are no JSON": ("orders", {str(HOST): "none"}),
    "a decision of another kind": ("restore:1", {"decision": "[]"}),
    "a plan that is cut off": ("restore:1", {"decision": to_json(RESTORE), "n0": to_json(PLAN)[:-9]}),
}


@pytest.mark.parametrize("case", BROKEN)
async def test_a_value_that_does_not_parse_is_named(case: str, rig: Rig, store: ManifestStore) -> None:
    lease = await lead(store)
    await write(store, lease, stamp(1), *everything())
    name, value = BROKEN[case]
    await rig.put(f"ckpt:{{{JOB}}}:{name}", value)
    with pytest.raises(ProtocolError, match=rf"ckpt:\{{{JOB}\}}:{name}"):
        await store.view(JOB, HOST, Rank(0))


async def test_a_host_record_that_does_not_parse_is_named(rig: Rig, store: ManifestStore) -> None:
    await store.register(HostRecord(host=HOST, incarnation=Incarnation("w1")))
    await rig.put(f"ckpt:host:{HOST}", {"host": "node-0", "jobs": "?"})
    with pytest.raises(ProtocolError, match="ckpt:host:node-0"):
        await store.hosts()


async def test_writing_into_a_key_of_another_type_is_named(rig: Rig, store: ManifestStore) -> None:
    lease = await lead(store)
    await rig.put(f"ckpt:{{{JOB}}}:alive", "here")
    with pytest.raises(ProtocolError, match="alive"):
        await write(store, lease, stamp(1), SetHash("alive", {"0": "a"}))
    with pytest.raises(ProtocolError, match="alive"):
        await write(store, lease, stamp(1), SetScores("alive", {"0": 1}))
    assert await write(store, lease, stamp(1), SetHash("alive", {"0": "a"}, replace=True)) is None
    assert (await store.snapshot(JOB)).hashes == {"alive": {"0": "a"}}


async def test_a_fence_that_does_not_parse_stops_every_write_and_is_not_lowered(rig: Rig, store: ManifestStore) -> None:
    lease = await lead(store)
    await rig.put(f"ckpt:{{{JOB}}}:fence", {"token": "?", "epoch": "1", "number": "1"})
    with pytest.raises(ProtocolError, match="fence"):
        await write(store, lease, stamp(5), SetHash("a", {"x": "1"}))
    with pytest.raises(ProtocolError, match="fence"):
        await store.renew(JOB, lease, TTL)


async def test_a_lease_that_does_not_parse_belongs_to_nobody(rig: Rig, store: ManifestStore) -> None:
    lease = await lead(store)
    await rig.put(f"ckpt:{{{JOB}}}:lease", "mine!")
    assert not (await store.renew(JOB, lease, TTL)).held
    assert await write(store, lease, stamp(1, 5), SetHash("a", {"x": "1"})) == stamp(1, 0, 0)
    assert (await lead(store, "c2")).token > lease.token


async def test_a_lease_of_another_type_belongs_to_nobody(rig: Rig, store: ManifestStore) -> None:
    first = await lead(store)
    await rig.put(f"ckpt:{{{JOB}}}:lease", {"by": "hand"})
    assert not (await store.renew(JOB, first, TTL)).held
    assert (await lead(store, "c2")).token > first.token


@pytest.mark.parametrize("key", ["epoch", "keys"])
async def test_a_snapshot_names_a_key_of_another_type_and_takes_it_for_absent(
    key: str, rig: Rig, store: ManifestStore
) -> None:
    lease = await lead(store)
    await write(store, lease, stamp(1), *everything())
    await rig.put(f"ckpt:{{{JOB}}}:{key}", "by hand")
    found = await store.snapshot(JOB)
    assert "epoch" not in found.hashes
    assert found.spoilt.keys() == {key}
    assert found.spoilt[key].startswith(f"ckpt:{{{JOB}}}:{key}: ")


@pytest.mark.parametrize("key", ["restore:1", "keep", "orders"])
async def test_an_order_of_another_type_counts_as_missing_for_a_node(key: str, rig: Rig, store: ManifestStore) -> None:
    lease = await lead(store)
    await write(store, lease, stamp(1), *everything())
    full = await store.view(JOB, HOST, Rank(0))
    await rig.put(f"ckpt:{{{JOB}}}:{key}", "by hand")
    missing = {"restore:1": {"restore": None, "plan": None}}.get(key, {key: None})
    assert await store.view(JOB, HOST, Rank(0)) == msgspec.structs.replace(full, **missing)


async def test_what_only_tells_takes_the_place_of_a_key_of_another_type(rig: Rig, store: ManifestStore) -> None:
    lease = await lead(store)
    for key in ("events", "keys"):
        await rig.put(f"ckpt:{{{JOB}}}:{key}", "by hand")
    assert await write(store, lease, stamp(1), AddEvent({"event": "x"}), SetHash("alive", {"0": "a"})) is None
    found = await store.snapshot(JOB)
    assert (found.hashes, found.spoilt) == ({"alive": {"0": "a"}}, {})


@pytest.mark.parametrize("key", ["ckpt:hosts", "ckpt:jobs", "ckpt:store"])
async def test_a_key_of_another_type_that_jobs_share_is_named(key: str, rig: Rig, store: ManifestStore) -> None:
    await rig.put(key, {"by": "hand"})
    with pytest.raises(ProtocolError, match=f"^{key}: "):
        await {"ckpt:hosts": store.hosts, "ckpt:jobs": store.jobs, "ckpt:store": store.store_id}[key]()
