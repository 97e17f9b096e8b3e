"""Whatever lies in a backup's directory, its verdict is one that can be sent, and nothing strange counts."""

import base64

from hypothesis import example, given
from hypothesis import strategies as st

from checkpoint_replicator.backup import documents_to_read, judge
from checkpoint_replicator.blobs import Blob
from checkpoint_replicator.ids import Address, Epoch, Job, Rank, Step, Worker
from checkpoint_replicator.messages import BackupResult, UploaderReport
from checkpoint_replicator.save import Save, ShardKey, Tag
from checkpoint_replicator.shape import Shape
from checkpoint_replicator.wire import decode, encode
from support.factories import envelope

JOB = Job("run")
NAME = "2026-01-01_00-00"
ADDRESS = Address("a" * 64)
SHAPE = Shape(1, 1, 1, "pytorch")
TAG = Tag(JOB, Save(Epoch(1), Step(1)), SHAPE, ShardKey(Rank(0), Worker(0)), ADDRESS, 3)
SUM = base64.b64encode(bytes(4)).decode()
GOOD = (
    b'{"state":"complete","save":{"epoch":1,"step":1},"shape":{"nodes":1,"workers":1,"d":1,"framework":"pytorch"},'
    b'"stamp":{"token":1,"epoch":1,"number":1},"tags":[{"job":"run","save":{"epoch":1,"step":1},"shape":{"nodes":1,'
    b'"workers":1,"d":1,"framework":"pytorch"},"key":{"rank":0,"worker":0},"address":"' + b"a" * 64 + b'","size":3}],'
    b'"objects":{}}'
)
names = st.sampled_from(
    [
        "MANIFEST.json",
        "ORDER.json",
        f"{ADDRESS}.data",
        f"{ADDRESS}.data/x",
        f"{ADDRESS}.tree",
        "run-s1-n0-w0.meta",
        "run-s1-n99999-w0.meta",
        "run-s999999999999999999-n0-w0.meta",
        "run-s1-n0-w999999999.meta",
        "other-s1-n0-w0.meta",
        "\udcff\n-s1-n0-w0.meta",
        "x" * 5000 + "-s1-n0-w0.meta",
        "../x",
    ]
)
changed = st.tuples(
    st.integers(0, len(GOOD) - 1), st.sampled_from([b"9" * 30, b"-", b'"', b"{", b"", b"\xff", b"\\ud800"])
)
texts = (
    st.sampled_from(["", ADDRESS, "null", "[" * 50_000, '{"state":"' + "x" * 100_000 + '"}', "x" * 100_000, "\udcff"])
    | changed.map(lambda at: (GOOD[: at[0]] + at[1] + GOOD[at[0] + 1 :]).decode(errors="replace"))
    | st.just(GOOD.decode())
    | st.text(max_size=20)
)


@given(st.dictionaries(names, st.tuples(st.integers(0, 1 << 60), texts), max_size=6))
@example({"MANIFEST.json": (9, GOOD.decode())})
@example({"run-s1-n99999-w0.meta": (64, ADDRESS), f"{ADDRESS}.data": (3, "")})
@example({"run-s1-n0-w0.meta": (64, ADDRESS), f"{ADDRESS}.data": (1 << 60, "")})
@example({"ORDER.json": (1, "x" * 100_000)})
def test_whatever_a_backup_holds_its_verdict_can_be_sent(found: dict[str, tuple[int, str]]) -> None:
    blobs = {name: Blob(name, size, SUM) for name, (size, _) in found.items()}
    documents = {name: found[name][1] for name in documents_to_read(found)}
    entry = judge(JOB, NAME, blobs, documents)
    assert len(entry.reason) < 400
    assert entry.whole is not bool(entry.reason)
    result = BackupResult(id="1", kind="list", done=True, entries=(entry,))
    sent, _ = decode(encode(envelope(UploaderReport(root="file:///x", results=(result,)))))
    assert isinstance(sent.message, UploaderReport)
    if "\udcff" not in entry.order:
        assert sent.message.results == (result,)


def test_the_example_is_one_that_counts_but_for_its_objects() -> None:
    entry = judge(JOB, NAME, {"MANIFEST.json": Blob("MANIFEST.json", 9, SUM)}, {"MANIFEST.json": GOOD.decode()})
    assert entry.tags == (TAG,)
    assert entry.reason == "the manifest lacks run-s1-n0-w0.meta"
