import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint_coordinator.border import Checked, check, shape_fault
from checkpoint_replicator.fence import ZERO, Stamp
from checkpoint_replicator.ids import Address, Epoch, Host, Incarnation, Job, Rank, Step, Worker
from checkpoint_replicator.messages import (
    BackupEntry,
    BackupResult,
    Fault,
    Held,
    NodeReport,
    Party,
    RestoreProgress,
    Saving,
    Service,
    ServiceHealth,
)
from checkpoint_replicator.records import Peer
from checkpoint_replicator.save import Save, ShardKey, Tag
from checkpoint_replicator.shape import Shape

JOB = Job("run")
SENDER = Party(host=Host("a"), service=Service.WATCHER, incarnation=Incarnation("1"))
SHAPE = Shape(2, 1, 1, "pytorch")
GOOD = Tag(JOB, Save(Epoch(1), Step(1)), SHAPE, ShardKey(Rank(0), Worker(0)), Address("a" * 64), 10)


def checked(report: NodeReport) -> Checked:
    found = check(JOB, SENDER, report)
    assert isinstance(found, Checked)
    return found


def test_a_good_report_passes_as_it_is() -> None:
    report = NodeReport(version=1, held=(Held(tag=GOOD),))
    assert checked(report) == Checked(report)


def test_what_is_out_of_place_is_struck_and_told() -> None:
    bad = [
        msgspec.structs.replace(GOOD, job=Job("other")),
        msgspec.structs.replace(GOOD, address=Address("../x")),
        msgspec.structs.replace(GOOD, save=Save(Epoch(-1), Step(1))),
        msgspec.structs.replace(GOOD, size=-1),
        msgspec.structs.replace(GOOD, key=ShardKey(Rank(7), Worker(0))),
        msgspec.structs.replace(GOOD, shape=Shape(0, 0, 0, "")),
        msgspec.structs.replace(GOOD, shape=Shape(1 << 40, 1, 1, "")),
    ]
    found = checked(NodeReport(version=1, held=tuple(Held(tag=tag) for tag in [*bad, GOOD])))
    assert [one.tag for one in found.report.held] == [GOOD]
    assert len(found.struck) == len(bad)


def test_impossible_saves_are_struck() -> None:
    key = ShardKey(Rank(-1), Worker(0))
    report = NodeReport(
        version=1,
        saving=(Saving(save=GOOD.save, key=key),),
        newest_committed=Save(Epoch(-1), Step(0)),
        backup_requested=(Save(Epoch(1), Step(-1)),),
    )
    found = checked(report)
    assert found.report == NodeReport(version=1)
    assert len(found.struck) == 2


def test_a_backup_entry_with_impossible_tags_does_not_count() -> None:
    entry = BackupEntry(name="x", whole=True, tags=(msgspec.structs.replace(GOOD, job=Job("other")),))
    result = BackupResult(id="1", kind="list", done=True, entries=(entry,))
    [clean] = checked(NodeReport(version=1, backup=(result,))).report.backup
    assert clean.entries == (BackupEntry(name="x", whole=False, reason="its tags do not parse"),)


def test_a_report_that_lies_about_its_nature_is_refused_whole() -> None:
    stranger = Party(host=Host("a"), service=Service.COORDINATOR, incarnation=Incarnation("1"))
    assert check(JOB, stranger, NodeReport(version=1)) == "a NodeReport from a coordinator, expected from a watcher"
    assert check(JOB, SENDER, NodeReport(version=-1)) == "version -1"
    assert "incarnation" in str(check(JOB, Party(host=Host("a"), service=Service.WATCHER), NodeReport(version=1)))


def test_shapes_that_no_job_can_have_are_named() -> None:
    assert shape_fault(SHAPE) == ""
    assert "impossible shape" in shape_fault(Shape(0, 1, 1, "pytorch"))
    assert "more than" in shape_fault(Shape(1 << 16, 1 << 10, 1, "pytorch"))
    assert "does not divide" in shape_fault(Shape(3, 1, 2, "pytorch"))
    assert "does not divide" in shape_fault(Shape(3, 1, 0, "pytorch"))


numbers = st.integers(-(2**63), 2**63 - 1)


@given(st.builds(Shape, numbers, numbers, numbers, st.text(max_size=4)))
def test_a_shape_that_passes_can_be_counted_with(shape: Shape) -> None:
    if not shape_fault(shape):
        assert shape.fits(shape)
        assert shape.columns >= 1


@pytest.mark.parametrize("stamp", [Stamp(1 << 41, Epoch(1), 1), Stamp(1, Epoch(1), 1 << 46), Stamp(-1, Epoch(0), 0)])
def test_a_stamp_in_the_bucket_that_would_bring_the_numbers_to_their_end_does_not_count(stamp: Stamp) -> None:
    entry = BackupEntry(name="x", whole=True, tags=(GOOD,), stamp=stamp)
    result = BackupResult(id="1", kind="list", done=True, entries=(entry,))
    [clean] = checked(NodeReport(version=1, backup=(result,))).report.backup
    assert clean.entries == (msgspec.structs.replace(entry, stamp=ZERO),)


def test_texts_and_lists_of_a_report_are_bounded_before_anybody_keeps_them() -> None:
    fault = Fault(kind="k" * 10_000, reason="new\nline" + "x" * 100_000)
    stamp = Stamp(1, Epoch(1), 1)
    report = NodeReport(
        version=1,
        faults=(fault,) * 1000,
        services=(ServiceHealth(service=Service.UPLOADER, reason="y" * 100_000),) * 100,
        backup=(BackupResult(id="1", kind="list", reason="z" * 100_000),) * 1000,
        restore=RestoreProgress(stamp=stamp, failed=(fault,) * 5000),
    )
    found = checked(report)
    assert (len(found.report.faults), len(found.report.services), len(found.report.backup)) == (256, 16, 256)
    assert found.report.restore is not None
    assert len(found.report.restore.failed) == 1 << 10
    assert len(msgspec.json.encode(found.report)) < 2 << 20
    assert found.report.faults[0].reason.startswith("new\\nlinexxx")
    assert found.struck == ("744 of 1000 results", "744 of 1000 faults", "84 of 100 services")


@pytest.mark.parametrize(
    "peer",
    [
        Peer(host=Host("a"), incarnation=Incarnation("1"), control="tcp://h:1", leaves=("tcp://h:2",) * 65),
        Peer(host=Host("a"), incarnation=Incarnation("1"), control="x" * 256, leaves=()),
        Peer(host=Host(""), incarnation=Incarnation("1"), control="tcp://h:1", leaves=()),
    ],
    ids=["many endpoints", "a long one", "no host"],
)
def test_a_peer_that_nobody_could_reach_is_struck(peer: Peer) -> None:
    found = checked(NodeReport(version=1, transfer=peer))
    assert found.report.transfer is None
    assert found.struck == ("transfer: impossible endpoints",)


def test_a_report_with_endless_saves_or_an_endless_root_is_refused() -> None:
    many = NodeReport(version=1, backup_requested=(GOOD.save,) * 20_000)
    assert check(JOB, SENDER, many) == "20000 saves under way, expected at most 16384"
    long = NodeReport(version=1, backup_root="x" * 1001)
    assert check(JOB, SENDER, long) == "a backup root of 1001 characters, expected at most 1000"
