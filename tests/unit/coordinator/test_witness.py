"""Who must answer before anyone says that something does not exist."""

from checkpoint_coordinator.backups import LastBackup, Listing
from checkpoint_coordinator.commit import SaveState
from checkpoint_coordinator.desk import Desk, Options
from checkpoint_coordinator.index import SaveRecord
from checkpoint_coordinator.inventory import take_stock
from checkpoint_coordinator.witness import (
    backup_silence,
    given_up,
    member_silence,
    other_silence,
    silent,
    trace,
    trace_shape,
)
from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Address, Epoch, Host, Incarnation, Job, Rank, SessionId, Step, Worker
from checkpoint_replicator.messages import BackupEntry, Held, NodeReport, Party, Service
from checkpoint_replicator.records import EpochRecord, EpochState, Help, HostRecord, KeepList, Member
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
    made.begin(100)
    made.take_hosts({}, 100)
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
    made.live = made.hearing.live(at)


def registered(host: str, job: str = JOB, life: str = "1") -> dict[Host, HostRecord]:
    return {Host(host): HostRecord(host=Host(host), incarnation=Incarnation(host + life), jobs=(job,))}


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
    made.take_hosts(registered("b"), 100)
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
    assert list(given_up(made, 121)) == ["host b without a rank (lost, no report for 22 s)"]


def test_a_host_that_has_just_come_is_waited_for_from_its_coming_and_named_when_it_is_given_up() -> None:
    made = desk()
    made.take_hosts(registered("b"), 500)
    assert list(other_silence(made, 519)) == ["host b without a rank (no report)"]
    assert list(given_up(made, 519)) == []
    assert list(other_silence(made, 520)) == []
    assert list(given_up(made, 520)) == ["host b without a rank (lost, no report)"]
    made.take_hosts(registered("b"), 530)
    assert list(other_silence(made, 531)) == []
    made.take_hosts(registered("b", life="2"), 600)
    assert list(other_silence(made, 619)) == ["host b without a rank (no report)"]


def test_a_host_that_cannot_reach_us_is_waited_for_as_long_as_it_says_so() -> None:
    made = desk()
    hear(made, at=100)
    hear(made, "b", at=100)
    cry = {host: Help(host=host, incarnation=Incarnation(host), reason="no beacon") for host in map(Host, "ab")}
    made.hearing.called(cry, 129)
    assert list(member_silence(made, 130)) == ["rank 0 on a (no beacon)"]
    assert list(other_silence(made, 130)) == ["host b without a rank (no beacon)"]
    assert list(given_up(made, 130)) == []
    assert list(other_silence(made, 140)) == []
    assert list(given_up(made, 140)) == ["host b without a rank (lost, no report for 40 s)"]


def test_which_hosts_there_are_must_be_known() -> None:
    made = desk()
    made.begin(200)
    assert list(other_silence(made, 201)) == ["the hosts that are registered in Redis (not read yet)"]
    made.hosts_fault = "ckpt:hosts: WRONGTYPE"
    assert list(other_silence(made, 219)) == ["the hosts that are registered in Redis (ckpt:hosts: WRONGTYPE)"]
    assert list(other_silence(made, 220)) == []
    assert list(given_up(made, 220)) == ["the hosts that are registered in Redis (ckpt:hosts: WRONGTYPE)"]


def test_a_host_of_another_job_is_no_witness() -> None:
    made = desk()
    made.take_hosts(registered("b", "other"), 100)
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


def test_the_root_of_a_lost_host_counts_only_where_nobody_else_has_one() -> None:
    made = desk("file:///b")
    hear(made, backup_root="file:///c")
    made.live = frozenset()
    assert made.roots() == {"file:///b"}
    made = desk()
    hear(made, backup_root="file:///c")
    made.live = frozenset()
    assert made.roots() == {"file:///c"}


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


def test_every_kind_of_witness_is_asked() -> None:
    made = desk("file:///b")
    made.take_hosts(registered("b"), 100)
    assert silent(made, 100, 101) == (
        "rank 0 on a (no report)",
        "host b without a rank (no report)",
        "the backup store file:///b (no listing yet)",
    )
