"""Who must answer before anyone says that something does not exist."""

from checkpoint_coordinator.archive import LastBackup, Listing
from checkpoint_coordinator.commit import SaveState
from checkpoint_coordinator.desk import Desk, Options
from checkpoint_coordinator.index import SaveRecord
from checkpoint_coordinator.inventory import take_stock
from checkpoint_coordinator.witness import backup_silence, member_silence, other_silence, silent, trace, trace_shape
from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Address, Epoch, Host, Incarnation, Job, Rank, SessionId, Step, Worker
from checkpoint_replicator.messages import BackupEntry, Held, NodeReport, Party, Service
from checkpoint_replicator.records import EpochRecord, EpochState, HostRecord, KeepList, Member
from checkpoint_replicator.save import Save, ShardKey, Tag
from checkpoint_replicator.session import Session, SessionSpec, SessionState
from checkpoint_replicator.shape import Shape
from checkpoint_replicator.times import Times

JOB = Job("run")
SHAPE = Shape(1, 1, 1, "pytorch")
STAMP = Stamp(1, Epoch(1), 1)


def save(step: int) -> Save:
    return Save(Epoch(1), Step(step))


def tag(step: int) -> Tag:
    return Tag(JOB, save(step), SHAPE, ShardKey(Rank(0), Worker(0)), Address("a" * 64), 1)


def desk(backup: str | None = None) -> Desk:
    """Return a job with one member, on host a, since second 100."""
    made = Desk(JOB, Times(), Options(backup=backup), lambda: "id")
    made.since = 100
    member = Member(rank=Rank(0), host=Host("a"), session=SessionId("s"))
    made.state.epoch = EpochRecord(
        number=Epoch(1), stamp=STAMP, state=EpochState.DECIDING, shape=SHAPE, members=(member,)
    )
    return made


def hear(made: Desk, host: str = "a", at: float = 100, **report: object) -> None:
    spec = SessionSpec(job=JOB, rank=Rank(0), shape=SHAPE)
    session = Session(id=SessionId("s"), spec=spec, state=SessionState.OPEN) if host == "a" else None
    sender = Party(host=Host(host), service=Service.WATCHER, incarnation=Incarnation(host))
    facts = {"complete": True, **report}
    made.hearing.take(sender, NodeReport(version=1, session=session, **facts), at)  # type: ignore[arg-type]


def test_a_member_answers_with_a_complete_report_of_its_session() -> None:
    made = desk()
    assert list(member_silence(made, 101)) == ["rank 0 on a (no report)"]
    hear(made, complete=False)
    assert list(member_silence(made, 101)) == ["rank 0 on a (still scanning and hashing)"]
    hear(made)
    assert silent(made, 100, 101) == ()
    assert list(member_silence(made, 121)) == ["rank 0 on a (no report for 21 s)"]
    made.hearing.stale()
    assert list(member_silence(made, 101)) == ["rank 0 on a (no report)"]


def test_a_host_without_a_rank_is_waited_for_until_it_is_lost() -> None:
    made = desk()
    hear(made)
    made.registered = {Host("b"): HostRecord(host=Host("b"), incarnation=Incarnation("i"), jobs=(JOB,))}
    assert list(other_silence(made, 101)) == ["host b without a rank (no report)"]
    assert list(other_silence(made, 120)) == []
    hear(made, "b", complete=False)
    assert list(other_silence(made, 101)) == ["host b without a rank (still scanning and hashing)"]
    hear(made, "b")
    assert list(other_silence(made, 101)) == []


def test_a_host_that_redis_forgot_is_waited_for_by_who_heard_it() -> None:
    made = desk()
    hear(made, "b", at=99)
    made.hearing.stale()
    assert list(other_silence(made, 101)) == ["host b without a rank (no report)"]
    assert list(other_silence(made, 121)) == []


def test_a_host_of_another_job_is_no_witness() -> None:
    made = desk()
    made.registered = {Host("b"): HostRecord(host=Host("b"), incarnation=Incarnation("i"), jobs=("other",))}
    assert list(other_silence(made, 101)) == []


def test_without_a_root_anywhere_there_is_no_backup_to_ask() -> None:
    assert list(backup_silence(desk(), 100)) == []


def test_any_root_anywhere_makes_the_store_a_witness() -> None:
    assert list(backup_silence(desk("file:///b"), 100)) == ["the backup store file:///b (no listing yet)"]
    made = desk()
    hear(made, backup_root="file:///b/")
    made.archive.listing_fault = "a: 403 forbidden"
    assert list(backup_silence(made, 100)) == ["the backup store file:///b (a: 403 forbidden)"]
    made.archive.listing = Listing(99, ())
    assert list(backup_silence(made, 100)) != []
    made.archive.listing = Listing(100, ())
    assert list(backup_silence(made, 100)) == []


def test_differing_roots_are_an_error() -> None:
    made = desk("file:///b")
    hear(made, backup_root="file:///c")
    assert list(backup_silence(made, 100)) == ["the backup store (configurations differ: file:///b and file:///c)"]


def test_a_listing_without_the_backup_that_was_verified_last_does_not_count() -> None:
    made = desk("file:///b")
    made.state.last_backup = LastBackup(name="2026-01-01_00-00", save=save(1), verified_at=1)
    made.archive.listing = Listing(100, ())
    assert "lacks 2026-01-01_00-00" in next(iter(backup_silence(made, 100)))
    entry = BackupEntry(name="2026-01-01_00-00", whole=True, tags=(tag(1),))
    made.archive.listing = Listing(100, (entry,))
    assert list(backup_silence(made, 100)) == []


def test_every_trace_of_a_commit_counts() -> None:
    made = desk()
    assert trace(made) is None
    hear(made, held=(Held(tag=tag(1)),))
    assert trace(made) is None
    hear(made, held=(Held(tag=tag(1), committed=True),))
    assert trace(made) == save(1)
    made.archive.listing = Listing(0, (BackupEntry(name="2026-01-01_00-00", whole=True, tags=(tag(2),)),))
    assert trace(made) == save(2)
    made.state.keep = KeepList(stamp=STAMP, upto=save(3))
    assert trace(made) == save(3)
    made.state.saves[save(4)] = SaveRecord(save=save(4), shape=SHAPE, state=SaveState.COMMITTED)
    made.state.saves[save(9)] = SaveRecord(save=save(9), shape=SHAPE, state=SaveState.SAVING)
    assert trace(made) == save(4)
    hear(made, newest_committed=save(5))
    assert trace(made) == save(5)
    made.state.last_backup = LastBackup(name="2026-01-02_00-00", save=save(6), verified_at=1)
    assert trace(made) == save(6)


def test_the_shape_of_a_trace_is_told_by_data_or_by_redis() -> None:
    made = desk()
    assert trace_shape(made, None) is None
    assert trace_shape(made, save(1)) is None
    made.state.saves[save(1)] = SaveRecord(save=save(1), shape=SHAPE, state=SaveState.COMMITTED)
    assert trace_shape(made, save(1)) == SHAPE
    made.stock = take_stock({Host("a"): ([Held(tag=tag(2))], None)})
    assert trace_shape(made, save(2)) == SHAPE
