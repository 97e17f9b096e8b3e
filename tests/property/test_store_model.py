"""The model of the store, on which the simulation rests, answers any history as the real one does."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Epoch, Host, Incarnation, Job
from checkpoint_replicator.records import HostRecord, Lease
from checkpoint_replicator.store import AddEvent, Change, Delete, ManifestStore, SetHash, SetScores
from checkpoint_replicator.store.redis import RedisManifestStore
from support.keys import read
from support.memory_store import MemoryManifestStore, StoreModel
from support.redis import command

JOBS = st.sampled_from([Job("a"), Job("a"), Job("a"), Job("b.1")])
HOSTS = st.sampled_from([Host("node-0"), Host("node-1")])
INCARNATIONS = st.sampled_from([Incarnation("c1"), Incarnation("c1"), Incarnation("c2")])
LEASES = st.builds(
    Lease,
    incarnation=INCARNATIONS,
    token=st.sampled_from([0, 0, 0, 1, 2]),
    host=st.just(Host("head")),
    reports=st.just("tcp://h:1"),
    beacons=st.just("tcp://h:2"),
)
STAMPS = st.builds(Stamp, st.integers(1, 6), st.integers(0, 2).map(Epoch), st.integers(0, 3))
TEXTS = st.dictionaries(st.sampled_from("xyz"), st.text("ab {}\n", max_size=3), max_size=3)
SCORES = st.dictionaries(st.sampled_from("xyz"), st.floats(-1e9, 1e9), max_size=3)
CHANGES: st.SearchStrategy[Change] = st.one_of(
    st.builds(SetHash, st.sampled_from(["alive", "orders"]), TEXTS, st.booleans()),
    st.builds(SetScores, st.sampled_from(["steps", "backups"]), SCORES, st.booleans()),
    st.builds(Delete, st.sampled_from(["alive", "steps"])),
    st.builds(AddEvent, TEXTS.filter(bool)),
)
TTL = st.just(60.0)
RECORDS = st.builds(HostRecord, host=HOSTS, incarnation=INCARNATIONS, jobs=st.just(("a",)))
APPLY = st.tuples(st.just("apply"), JOBS, LEASES, STAMPS, st.lists(CHANGES, max_size=4))
BEGIN = (
    "acquire",
    Job("a"),
    Lease(incarnation=Incarnation("c1"), token=0, host=Host("h"), reports="r", beacons="b"),
    60.0,
)
CALLS = st.one_of(
    st.tuples(st.just("acquire"), JOBS, LEASES, TTL),
    st.tuples(st.just("renew"), JOBS, LEASES, TTL),
    st.tuples(st.just("release"), JOBS, LEASES),
    APPLY,
    APPLY,
    APPLY,
    st.tuples(st.just("snapshot"), JOBS),
    st.tuples(st.just("register"), RECORDS),
    st.tuples(st.just("unregister"), HOSTS, INCARNATIONS),
    st.tuples(st.just("hosts")),
    st.tuples(st.just("add_job"), JOBS),
    st.tuples(st.just("jobs")),
    st.tuples(st.just("flush")),
)


def plain(answer: Any) -> Any:
    """Take the random id out of an answer."""
    return msgspec.structs.replace(answer, store="") if hasattr(answer, "store") else answer


async def answers(store: ManifestStore, url: str | None, model: StoreModel, calls: Sequence[Any]) -> list[Any]:
    """Play the history; a lease with token 0 stands for the one that its incarnation was given last."""
    given: list[Any] = []
    leases: dict[tuple[Job, Incarnation], Lease] = {}
    for name, *arguments in calls:
        if name in {"renew", "release", "apply"} and arguments[1].token == 0:
            arguments[1] = leases.get((arguments[0], arguments[1].incarnation), arguments[1])
        if name == "flush":
            if url is not None:
                command(url, "FLUSHALL")
            else:
                model.flush()
            continue
        given.append(plain(await getattr(store, name)(*arguments)))
        if name == "acquire" and isinstance(given[-1], Lease):
            leases[arguments[0], arguments[1].incarnation] = given[-1]
    await store.close()
    return given


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=st.lists(CALLS, min_size=6, max_size=30).map(lambda calls: [BEGIN, *calls]))
def test_any_history_has_the_same_answers_and_leaves_the_same_keys(redis_url: str, calls: list[Any]) -> None:
    command(redis_url, "FLUSHALL")
    model = StoreModel(lambda: 0.0)

    async def both() -> tuple[list[Any], list[Any]]:
        real = await answers(RedisManifestStore(redis_url, hold=True), redis_url, model, calls)
        return real, await answers(MemoryManifestStore(model), None, model, calls)

    real, modelled = asyncio.run(both())
    assert real == modelled
    left, expected = read(redis_url), model.contents()
    assert left.keys() == expected.keys()
    for key, value in left.items():
        match value:
            case dict() if key.endswith(":fence"):  # the model has no call to tell a repeated one
                assert {name: text for name, text in value.items() if name != "call"} == expected[key]
            case str() if key.endswith(":lease"):
                assert msgspec.json.decode(value) == msgspec.json.decode(str(expected[key]))
            case _:
                assert key == "ckpt:store" or value == expected[key]
