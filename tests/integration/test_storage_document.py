"""`docs/storage.md` tells of every key: what the store writes, and what the records hold."""

import pytest

from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Epoch, Host, Incarnation, Job
from checkpoint_replicator.records import (
    EpochRecord,
    EpochState,
    FetchPlan,
    HostRecord,
    KeepList,
    Lease,
    Orders,
    Outcome,
    Peer,
    RestoreRecord,
)
from checkpoint_replicator.store import AddEvent, ManifestStore, SetHash, SetScores
from checkpoint_replicator.store.fields import to_fields, to_json
from checkpoint_replicator.store.redis import RedisManifestStore
from checkpoint_replicator.wishes import Branch, Forced, Forgetting, Forgotten, Hold
from support.examples import Example, examples, form, rewritten
from support.keys import DOCUMENT, Documented, documented, read, undocumented, unseen
from support.memory_store import MemoryManifestStore, StoreModel, Value

JOB = Job("llama-8b")
STAMP = Stamp(1, Epoch(1), 1)
ENTRY = '1) 1) "1-0"\n   2) 1) "event"\n      2) "epoch_opened"\n'
PEER = Peer(host=Host("node-0"), incarnation=Incarnation("p"), control="tcp://h:1", leaves=())


async def fill(store: ManifestStore) -> None:
    """Write what a small run writes."""
    await store.store_id()
    await store.add_job(JOB)
    await store.register(HostRecord(host=Host("node-0"), incarnation=Incarnation("w"), transfer=PEER))
    wish = Lease(incarnation=Incarnation("c"), token=0, host=Host("head"), reports="tcp://h:1", beacons="tcp://h:2")
    lease = await store.acquire(JOB, wish, 60)
    assert isinstance(lease, Lease)
    epoch = EpochRecord(number=Epoch(1), stamp=STAMP, state=EpochState.RUNNING)
    decision = RestoreRecord(stamp=STAMP, outcome=Outcome.NONE)
    changes = (
        SetHash("step:1.3", {"state": "committed", "n0/w0": "ab" * 32}),
        SetScores("steps", {"1.3": 3.0}),
        SetHash("restore:1", {"decision": to_json(decision), "n0": to_json(FetchPlan(stamp=STAMP))}),
        SetHash("keep", to_fields(KeepList(stamp=STAMP))),
        SetHash("orders", {"node-0": to_json(Orders(stamp=STAMP))}),
        SetHash("epoch", to_fields(epoch)),
        AddEvent({"event": "save_committed"}),
    )
    assert await store.apply(JOB, lease, STAMP, changes) is None


async def test_all_that_the_real_store_writes_is_documented(redis_url: str) -> None:
    store = RedisManifestStore(redis_url)
    await fill(store)
    await store.close()
    contents = read(redis_url)
    assert len(contents) == 14
    assert undocumented(contents) == []


async def test_the_model_writes_the_same_keys_with_the_same_types_as_the_real_store(redis_url: str) -> None:
    model = StoreModel(lambda: 0.0)
    await fill(MemoryManifestStore(model))
    store = RedisManifestStore(redis_url)
    await fill(store)
    await store.close()
    assert undocumented(model.contents()) == []
    own = {f"ckpt:{{{JOB}}}:lease", f"ckpt:{{{JOB}}}:fence", "ckpt:store"}  # ids, and the number of the call
    assert {k: v for k, v in model.contents().items() if k not in own} == {
        k: v for k, v in read(redis_url).items() if k not in own
    }


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        ("ckpt:{llama-8b}:secret", "x", "not in docs/storage.md"),
        ("ckpt:{llama-8b}:epoch", "x", "docs/storage.md says hash, found string"),
        ("ckpt:{llama-8b}:epoch", {"mood": "good"}, "field mood is not in docs/storage.md"),
        ("ckpt:{llama-8b}:step:3", {"state": "committed"}, "not in docs/storage.md"),
        ("ckpt:{llama-8b}:step:1.3", {"n0/wx": "committed"}, "field n0/wx is not in docs/storage.md"),
        ("other", "x", "not in docs/storage.md"),
    ],
)
def test_what_is_not_documented_is_named(key: str, value: Value, fault: str) -> None:
    assert undocumented({key: value}) == [f"{key}: {fault}"]


def test_every_field_of_the_records_is_documented() -> None:
    fields = {entry.key: entry.fields for entry in documented()}
    for key, record in (
        ("ckpt:{<job>}:epoch", EpochRecord),
        ("ckpt:{<job>}:keep", KeepList),
        ("ckpt:host:<host>", HostRecord),
        ("ckpt:{<job>}:forced", Forced),
        ("ckpt:{<job>}:hold", Hold),
        ("ckpt:{<job>}:branch", Branch),
        ("ckpt:{<job>}:forgotten", Forgotten),
        ("ckpt:{<job>}:forgetting", Forgetting),
    ):
        assert set(fields[key]) == set(record.__struct_fields__)


def test_every_key_is_in_the_overview_and_has_an_example_with_its_type() -> None:
    text = DOCUMENT.read_text()
    overview, *_ = text.partition("\n### ")
    commands = {"string": "GET", "hash": "H", "set": "SMEMBERS", "zset": "Z", "stream": "X"}
    for entry in documented(text):
        short = entry.key.replace("ckpt:{<job>}:", "…:")
        assert f"[`{short}`]" in overview
        _, _, section = text.partition(f"### `{entry.key}` ")
        section, *_ = section.partition("\n### ")
        assert f"\n> {commands[entry.kind]}" in section


def test_every_state_and_outcome_is_explained() -> None:
    text = DOCUMENT.read_text()
    for word in (*EpochState, *Outcome):
        assert f"`{word}`" in text


def test_documented_keys_and_fields_that_do_not_occur_are_named() -> None:
    keys = (Documented("ckpt:a", "hash", ("x", "n<rank>")), Documented("ckpt:b", "string", ()))
    assert unseen({"ckpt:a": {"n3": "1"}}, keys) == ["ckpt:a x", "ckpt:b"]


@pytest.mark.parametrize(
    ("command", "one", "other", "same"),
    [
        ("GET k", '"5f2b1a90c4d37e68"\n', '"0123456789abcdef"\n', True),
        ("GET k", '"5f2b1a90c4d37e68"\n', '"5f2b1a90c4d3"\n', False),
        ("GET k", '"5"\n', '"five"\n', False),
        ("GET k", '"5"\n', "(nil)\n", False),
        ("GET k", '"{\\"age\\":1.2}"\n', '"{\\"age\\":3}"\n', True),
        ("GET k", '"{\\"age\\":1.2}"\n', '"{\\"since\\":1.2}"\n', False),
        ("GET k", '"{\\"age\\":1.2}"\n', '"{\\"age\\":\\"1.2\\"}"\n', False),
        ("GET k", '"tcp://127.0.0.1:40311"\n', '"tcp://10.0.0.7:1"\n', True),
        ("HGETALL k", '1) "a"\n2) "1"\n3) "b"\n4) "x"\n', '1) "b"\n2) "x"\n3) "a"\n4) "7"\n', True),
        ("HGETALL k", '1) "a"\n2) "1"\n3) "b"\n4) "x"\n', '1) "a"\n2) "1"\n', False),
        ("HGETALL k", '1) "state"\n2) "running"\n', '1) "state"\n2) "idle"\n', False),
        ("HGETALL k", '1) "a"\n2) "1"\n', "(empty array)\n", False),
        ("SMEMBERS k", '1) "node-0"\n', '1) "node-0"\n2) "node-1"\n', True),
        (
            "XRANGE k",
            '1) 1) "1-0"\n   2) 1) "event"\n      2) "x"\n',
            '1) 1) "2-0"\n   2) 1) "event"\n      2) "x"\n',
            True,
        ),
        (
            "XRANGE k",
            '1) 1) "1-0"\n   2) 1) "event"\n      2) "x"\n',
            '1) 1) "2-0"\n   2) 1) "event"\n      2) "y"\n',
            False,
        ),
    ],
)
def test_answers_have_the_same_form_when_they_differ_only_in_ids_and_figures(
    command: str, one: str, other: str, same: bool
) -> None:
    assert (form(command, one) == form(command, other)) is same


def test_examples_are_read_with_the_key_that_they_stand_below_and_are_written_anew() -> None:
    text = "```\n> GET before\n1\n```\n### `ckpt:a` · string\n\n```\n> GET ckpt:a\n1\n```\n"
    assert examples(text) == (Example("ckpt:a", "GET ckpt:a", "1\n"),)
    assert rewritten(text, lambda example: (example.command, "2\n")) == text.replace(
        "> GET ckpt:a\n1", "> GET ckpt:a\n2"
    )
