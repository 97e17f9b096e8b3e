"""A node's watcher as a script: what happens, and what it does about it."""

import pytest

from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Epoch, Host, Incarnation, Job, Rank, SessionId, Step, StoreId, Worker
from checkpoint_replicator.messages import (
    Beacon,
    Copy,
    CopyState,
    Fault,
    Fetch,
    FetchState,
    Held,
    Room,
    TransferReport,
    UploaderReport,
)
from checkpoint_replicator.records import BackupOrder, KeepList, Member, Orders, Outcome, Peer, ShardPlan
from checkpoint_replicator.save import Save, ShardKey, Tag
from checkpoint_replicator.session import SessionState
from checkpoint_replicator.shape import Shape
from checkpoint_watcher import effects as do
from checkpoint_watcher import events as did
from support.watcher_shell import LEASE, ModelRamdisk, WatcherShell, yaml_text

JOB = Job("j")
SHAPE = Shape(2, 1, 1, "pytorch")
PEER = Peer(host=Host("node-1"), incarnation=Incarnation("t1"), control="tcp://b:1", leaves=("tcp://b:2",))
SELF = Peer(host=Host("node-0"), incarnation=Incarnation("t0"), control="tcp://a:1", leaves=("tcp://a:2",))


def save(step: int, epoch: int = 1) -> Save:
    return Save(Epoch(epoch), Step(step))


def tag(step: int, *, epoch: int = 1, content: str = "", rank: int = 0, worker: int = 0, shape: Shape = SHAPE) -> Tag:
    content = content or f"{step}/{rank}/{worker}"
    key = ShardKey(Rank(rank), Worker(worker))
    return Tag(JOB, save(step, epoch), shape, key, ModelRamdisk.address(content), len(content))


def keep(
    upto: int, *kept: int, drop: tuple[int, ...] = (), epoch: int = 1, counter: int = 2, token: int = 1
) -> KeepList:
    return KeepList(
        stamp=Stamp(token, Epoch(epoch), counter),
        upto=save(upto, epoch),
        keep=tuple(save(step, epoch) for step in kept),
        drop=tuple(save(step, epoch) for step in drop),
    )


@pytest.fixture
def disk() -> ModelRamdisk:
    return ModelRamdisk()


@pytest.fixture
def shell(disk: ModelRamdisk) -> WatcherShell:
    return WatcherShell(disk).start()


def open_session(shell: WatcherShell, **keys: object) -> SessionId:
    shell.disk.write_yaml(yaml_text(**keys))  # type: ignore[arg-type]
    shell.scan()
    record = shell.disk.session
    assert record is not None
    return record.id


def run_fresh(shell: WatcherShell, **keys: object) -> SessionId:
    """Bring a session to its empty markers."""
    session = open_session(shell, **keys)
    shell.read(shell.view_of(outcome=Outcome.NONE, released=True))
    assert shell.machine.running
    return session


def state(shell: WatcherShell) -> SessionState:
    assert shell.disk.session is not None
    return shell.disk.session.state


# ---- from yaml to markers


def test_a_first_start_keeps_the_order_of_the_contract(shell: WatcherShell) -> None:
    shell.disk.files |= {"j-s3-n0-w0.restore": "old", "replicator.failed": "old", "notes.txt": "mine"}
    open_session(shell)
    assert shell.disk.yaml is not None
    assert shell.disk.files == {"notes.txt": "mine"}
    shell.read(shell.view_of(outcome=Outcome.NONE))
    assert shell.disk.yaml is None
    assert shell.disk.files["replicator.prerestore"] == "{}"
    assert "j-s0-n0-w0.restore" not in shell.disk.files
    shell.read(shell.view_of(outcome=Outcome.NONE, released=True, counter=2))
    assert shell.disk.files["j-s0-n0-w0.restore"] == ""
    kinds = (do.CleanUp, do.RemoveYaml, do.WritePrerestore, do.PublishMarkers)
    assert shell.order(*kinds) == [kind.__name__ for kind in kinds]


def test_every_worker_gets_a_marker(shell: WatcherShell) -> None:
    run_fresh(shell, workers_per_node=3)
    assert sorted(name for name in shell.disk.files if ".restore" in name) == [
        f"j-s0-n0-w{k}.restore" for k in range(3)
    ]


def test_the_session_is_reported_open_then_consumed_then_running(shell: WatcherShell) -> None:
    session = open_session(shell)
    shell.wait(0.2)
    reported = shell.report.session
    assert reported is not None
    assert (reported.id, reported.state, reported.consumed) == (session, SessionState.OPEN, False)
    shell.read(shell.view_of(outcome=Outcome.NONE))
    shell.wait(0.2)
    assert shell.report.session is not None
    assert shell.report.session.consumed
    shell.read(shell.view_of(outcome=Outcome.NONE, released=True, counter=2))
    shell.wait(0.2)
    reported = shell.report.session
    assert reported is not None
    assert (reported.state, reported.epoch) == (SessionState.RUNNING, 1)
    assert shell.report.restore is not None
    assert shell.report.restore.published


def test_a_yaml_is_consumed_after_a_minute_without_a_rendezvous_and_fails_at_its_deadline(shell: WatcherShell) -> None:
    open_session(shell)
    shell.wait(59)
    assert shell.disk.yaml is not None
    shell.wait(2)
    assert shell.disk.yaml is None
    shell.wait(280)
    assert "replicator.failed" not in shell.disk.files
    shell.wait(6)
    failed = shell.disk.files["replicator.failed"]
    assert "no release within 285 s" in failed
    assert "Redis is away" in failed
    assert state(shell) is SessionState.CLOSED


def test_s17_the_deadline_names_the_laggard(shell: WatcherShell) -> None:
    open_session(shell)
    shell.read(shell.view_of(epoch_reason="rank 1 on node-1 is dead: no heartbeat for 20 s"))
    shell.wait(286)
    assert "rank 1 on node-1 is dead" in shell.disk.files["replicator.failed"]


def test_a_refused_session_is_consumed_and_fails_with_the_text_of_the_coordinator(shell: WatcherShell) -> None:
    session = open_session(shell)
    shell.read(shell.view_of(refused={session: "2 nodes here, 4 nodes on node-1"}))
    assert shell.disk.yaml is None
    assert shell.disk.files["replicator.failed"] == "2 nodes here, 4 nodes on node-1"
    assert shell.order(do.RemoveYaml, do.WriteFailed) == ["RemoveYaml", "WriteFailed"]


def test_lost_fails_at_once_and_unknown_at_the_deadline(shell: WatcherShell) -> None:
    open_session(shell)
    shell.read(shell.view_of(outcome=Outcome.UNKNOWN, reason="node-1 is silent"))
    shell.wait(200)
    assert "replicator.failed" not in shell.disk.files
    shell.read(shell.view_of(outcome=Outcome.LOST, reason="step 3 lacks n1/w0", counter=2))
    assert "step 3 lacks n1/w0" in shell.disk.files["replicator.failed"]


def test_s12_unknown_until_the_deadline_fails_with_its_reason_and_deletes_nothing(shell: WatcherShell) -> None:
    open_session(shell)
    shell.read(shell.view_of(outcome=Outcome.UNKNOWN, reason="node-1 is silent"))
    shell.wait(290)
    assert "node-1 is silent" in shell.disk.files["replicator.failed"]
    assert not shell.all(do.DropSaves)


@pytest.mark.parametrize("text", [b"{{{", b"- a", yaml_text(job="a/b"), yaml_text(rank=9), yaml_text(framework="jax")])
def test_a_bad_yaml_fails_clearly_touches_nothing_and_the_next_good_one_works(shell: WatcherShell, text: bytes) -> None:
    shell.disk.files |= {"old.restore": "old", "notes.txt": "mine"}
    shell.disk.hold(tag(3), "3/0/0")
    shell.disk.save(4)
    shell.disk.write_yaml(text)
    shell.scan()
    assert shell.disk.yaml is None
    assert shell.disk.files.keys() == {"notes.txt", "replicator.failed"}
    assert shell.disk.files["replicator.failed"].startswith("replicator.yaml: ")
    assert shell.order(do.CleanUp, do.RemoveYaml, do.WriteFailed) == ["CleanUp", "RemoveYaml", "WriteFailed"]
    assert tag(3) in shell.disk.held
    assert "j-s4-n0-w0.save" in shell.disk.public
    run_fresh(shell)
    assert "replicator.failed" not in shell.disk.files


def test_what_looks_bad_but_may_be_unfinished_settles_first(shell: WatcherShell) -> None:
    shell.disk.write_yaml(b"job-name: j\n", settled=False)
    shell.scan()
    assert shell.disk.yaml is not None
    shell.disk.write_yaml(yaml_text(), finished=False, settled=False)
    shell.scan()
    assert shell.disk.session is None
    shell.disk.write_yaml(yaml_text(), settled=False)
    shell.scan()
    assert state(shell) is SessionState.OPEN


def test_an_empty_yaml_is_waited_for_ten_seconds(shell: WatcherShell) -> None:
    shell.disk.write_yaml(b"\n")
    shell.scan()
    shell.wait(9)
    assert shell.disk.yaml is not None
    shell.wait(2)
    assert "empty file" in shell.disk.files["replicator.failed"]


def test_a_trainer_of_another_uid_is_told_at_once(shell: WatcherShell) -> None:
    shell.disk.write_yaml(yaml_text(), obstacle="the watcher runs as uid 1 and the trainer as uid 2")
    shell.scan()
    assert "uid 1" in shell.disk.files["replicator.failed"]


def test_a_yaml_that_its_writer_takes_back_ends_the_session(shell: WatcherShell) -> None:
    open_session(shell)
    shell.disk.yaml = None
    shell.scan()
    assert state(shell) is SessionState.CLOSED
    assert "replicator.failed" not in shell.disk.files


def test_a_newer_yaml_replaces_a_session_in_place(shell: WatcherShell) -> None:
    first = run_fresh(shell)
    second = open_session(shell)
    assert first != second
    shell.read(shell.view_of(outcome=Outcome.NONE, released=True, number=2))
    assert shell.disk.session is not None
    assert shell.disk.session.epoch == 2
    assert shell.disk.session.before is not None
    assert shell.disk.session.before.epoch == 1


# ---- saves


def test_the_first_save_right_after_the_marker_is_named_and_offered(shell: WatcherShell) -> None:
    run_fresh(shell)
    shell.disk.save(1)
    shell.scan()
    assert list(shell.disk.held) == [tag(1)]
    shell.read(shell.view_of(released=True, outcome=Outcome.NONE, counter=2, orders=orders(peers=(SELF, PEER))))
    shell.wait(0.2)
    (offer,) = shell.transfer.offers
    assert (offer.tag, offer.to) == (tag(1), (PEER,))
    assert shell.report.held == (Held(tag=tag(1), own=True),)
    assert shell.report.complete


def orders(*, peers: tuple[Peer, ...] = (), backup: tuple[BackupOrder, ...] = ()) -> Orders:
    return Orders(stamp=Stamp(1, Epoch(1), 1), peers=peers, backup=backup)


def test_s11_step_zero_is_an_ordinary_step(shell: WatcherShell) -> None:
    run_fresh(shell)
    shell.disk.save(0)
    shell.scan()
    assert list(shell.disk.held) == [tag(0)]


def test_s41_saves_that_finished_while_the_watcher_was_down_belong_to_the_last_epoch(disk: ModelRamdisk) -> None:
    run_fresh(WatcherShell(disk).start())
    disk.save(7)
    later = WatcherShell(disk, incarnation="w2").start()
    later.scan()
    assert list(disk.held) == [tag(7)]


def test_saves_before_any_session_wait_for_a_yaml_and_get_epoch_zero(shell: WatcherShell) -> None:
    shell.disk.save(7)
    shell.scan()
    assert not shell.disk.held
    open_session(shell)
    assert list(shell.disk.held) == [tag(7, epoch=0)]


def test_finished_saves_are_claimed_before_the_clean_up_of_a_new_yaml(shell: WatcherShell) -> None:
    run_fresh(shell)
    shell.done.clear()
    shell.disk.save(5)
    open_session(shell)
    assert shell.order(do.ClaimSave, do.CleanUp) == ["ClaimSave", "CleanUp"]
    assert list(shell.disk.held) == [tag(5)]


def test_directories_belong_to_the_session_and_have_no_worker(shell: WatcherShell) -> None:
    run_fresh(shell, framework="pytorch.distributed", rank=1)
    shell.disk.save_directory(3, "x")
    shell.scan()
    shape = Shape(2, 1, 1, "pytorch.distributed")
    assert list(shell.disk.held) == [tag(3, content="x", rank=1, shape=shape)]


def test_s32_a_save_of_another_job_or_rank_is_not_touched(shell: WatcherShell) -> None:
    run_fresh(shell)
    shell.disk.save(1, job="other")
    shell.disk.save(1, rank=1)
    shell.disk.save_directory(4)
    shell.scan()
    assert len(shell.disk.public) == 3
    assert not shell.disk.held


def test_the_same_step_again_with_the_same_content_is_nothing_new(shell: WatcherShell) -> None:
    run_fresh(shell)
    for _ in range(2):
        shell.disk.save(1)
        shell.scan()
    assert list(shell.disk.held) == [tag(1)]
    assert not shell.disk.claims
    assert "replicator.errors" not in shell.disk.files


def test_s04_the_same_step_again_with_other_content_is_refused(shell: WatcherShell) -> None:
    run_fresh(shell)
    shell.disk.save(1)
    shell.scan()
    shell.disk.save(1, "other")
    shell.scan()
    assert list(shell.disk.held) == [tag(1)]
    assert not shell.disk.claims
    assert "saved again with other content" in shell.disk.files["replicator.errors"]
    shell.wait(0.2)
    assert [fault.kind for fault in shell.report.faults] == ["refused"]


def test_s01_a_step_below_the_newest_committed_is_refused_and_one_between_is_taken(shell: WatcherShell) -> None:
    run_fresh(shell)
    for step in (10, 20):
        shell.disk.save(step)
        shell.scan()
    given_up = keep(10, 10, drop=(20,))
    shell.read(shell.view_of(released=True, outcome=Outcome.NONE, counter=2, keep=given_up))
    assert list(shell.disk.held) == [tag(10)]
    shell.disk.save(15)
    shell.scan()
    assert list(shell.disk.held) == [tag(10), tag(15)]
    shell.disk.save(5)
    shell.scan()
    assert tag(5) not in shell.disk.held
    assert "step 5 was saved after step 10 was committed" in shell.disk.files["replicator.errors"]


def test_what_cannot_be_hashed_is_reported_by_name(shell: WatcherShell) -> None:
    run_fresh(shell)
    shell.disk.save(1, "unsupported")
    shell.scan()
    shell.wait(0.2)
    assert not shell.disk.held
    assert [(fault.kind, fault.save) for fault in shell.report.faults] == [("unsupported", save(1))]
    assert "step 1 cannot be replicated: a link" in shell.disk.files["replicator.errors"]


def test_at_most_two_saves_are_hashed_at_once_and_the_rest_is_shown(shell: WatcherShell) -> None:
    run_fresh(shell)
    shell.hold = (do.HashClaim,)
    for step in range(5):
        shell.disk.save(step)
    shell.scan()
    shell.wait(0.2)
    assert len(shell.held_back) == 2
    assert [saving.save.step for saving in shell.report.saving] == [0, 1, 2, 3, 4]
    assert not shell.report.complete
    shell.release()
    shell.wait(0.2)
    assert len(shell.disk.held) == 5
    assert shell.report.complete


def test_s50_a_save_yields_only_while_another_is_in_flight_and_room_is_short(shell: WatcherShell) -> None:
    run_fresh(shell)
    shell.disk.room = Room(size=100, free=3)
    shell.disk.save(1, "0123456789")
    shell.scan()
    shell.disk.save(2, "9876543210")
    shell.scan()
    assert [held.save.step for held in shell.disk.held] == [1]
    assert "step 2 was skipped" in shell.disk.files["replicator.errors"]
    shell.read(shell.view_of(released=True, outcome=Outcome.NONE, counter=2, keep=keep(1, 1)))
    shell.disk.save(3, "abcdefghij")
    shell.scan()
    assert [held.save.step for held in shell.disk.held] == [1, 3]


def test_a_claim_without_room_for_its_name_waits_and_is_named_later(shell: WatcherShell) -> None:
    run_fresh(shell)
    shell.hold = (do.NameShard,)
    shell.disk.save(1)
    shell.scan()
    (naming,) = shell.held_back
    shell.held_back.clear()
    assert isinstance(naming, do.NameShard)
    shell.feed(did.NamingFailed(naming.claim, naming.tag, "no inodes"))
    assert "no inodes" in shell.disk.files["replicator.errors"]
    shell.hold = ()
    shell.wait(2)
    assert list(shell.disk.held) == [tag(1)]
    assert not shell.report.faults


# ---- deleting


def test_a_keep_list_drops_what_it_lets_go_and_marks_the_commit(shell: WatcherShell) -> None:
    run_fresh(shell)
    for step in (1, 2, 3, 4):
        shell.disk.save(step)
        shell.scan()
    shell.read(shell.view_of(released=True, outcome=Outcome.NONE, counter=2, keep=keep(3, 1, 3)))
    assert sorted(held.save.step for held in shell.disk.held) == [1, 3, 4]
    shell.wait(0.2)
    assert [(held.tag.save.step, held.committed) for held in shell.report.held] == [(1, False), (3, True), (4, False)]
    assert shell.report.newest_committed == save(3)


def test_law_7_fence_json_is_written_before_a_keep_list_is_obeyed(shell: WatcherShell) -> None:
    run_fresh(shell)
    for step in (1, 2):
        shell.disk.save(step)
        shell.scan()
    shell.hold = (do.WriteFence,)
    shell.read(shell.view_of(released=True, outcome=Outcome.NONE, counter=2, keep=keep(2, 2)))
    assert len(shell.disk.held) == 2
    shell.release()
    assert list(shell.disk.held) == [tag(2)]
    assert shell.disk.fences[JOB].committed == save(2)


@pytest.mark.parametrize("doubt", ["token", "lease", "fence"])
def test_law_5_nothing_is_dropped_on_doubt(shell: WatcherShell, doubt: str) -> None:
    run_fresh(shell)
    shell.read(shell.view_of(released=True, outcome=Outcome.NONE, counter=9))
    for step in (1, 2):
        shell.disk.save(step)
        shell.scan()
    match doubt:
        case "token":
            view = shell.view_of(released=True, counter=10, keep=keep(2, 2, token=0, counter=10))
        case "lease":
            view = shell.view_of(released=True, counter=10, keep=keep(2, 2, counter=10), lease=None)
        case _:
            view = shell.view_of(released=True, counter=3, keep=keep(2, 2, counter=3))
    shell.read(view)
    assert len(shell.disk.held) == 2


def test_a_busy_shard_is_dropped_later(shell: WatcherShell) -> None:
    run_fresh(shell)
    for step in (1, 2):
        shell.disk.save(step)
        shell.scan()
    shell.hold = (do.DropSaves,)
    shell.read(shell.view_of(released=True, outcome=Outcome.NONE, counter=2, keep=keep(2, 2)))
    shell.held_back.clear()
    shell.hold = ()
    shell.feed(did.SavesDropped((), (tag(1),)))
    assert len(shell.disk.held) == 2
    shell.wait(2)
    assert list(shell.disk.held) == [tag(2)]


def test_what_a_backup_in_hand_names_is_not_dropped(shell: WatcherShell) -> None:
    run_fresh(shell)
    for step in (1, 2):
        shell.disk.save(step)
        shell.scan()
    order = BackupOrder(id="o1", kind="upload", name="2026-01-01_00-00", tags=(tag(1),))
    view = shell.view_of(
        released=True, outcome=Outcome.NONE, counter=2, keep=keep(2, 2), orders=orders(backup=(order,))
    )
    shell.read(view)
    assert len(shell.disk.held) == 2


def test_s23_another_jobs_data_is_left_alone_and_reported_to_its_own_coordinator(disk: ModelRamdisk) -> None:
    other = Tag(Job("other"), save(3), SHAPE, ShardKey(Rank(0), Worker(0)), ModelRamdisk.address("o"), 1)
    disk.hold(other, "o")
    shell = WatcherShell(disk).start()
    run_fresh(shell)
    shell.read(shell.view_of(released=True, outcome=Outcome.NONE, counter=2, keep=keep(9, 9)))
    assert other in disk.held
    reports = [effect.report for effect in shell.done if isinstance(effect, do.SendReport) and effect.job == "other"]
    assert [held.tag for held in reports[-1].held] == [other]
    assert reports[-1].session is None


# ---- restore


def plan(*tags: Tag, holders: tuple[Peer, ...] = (PEER,)) -> tuple[ShardPlan, ...]:
    return tuple(ShardPlan(key=one.key, tag=one, holders=holders) for one in tags)


def restoring(shell: WatcherShell, *tags: Tag, released: bool = False, counter: int = 1) -> None:
    shell.read(
        shell.view_of(
            outcome=Outcome.RESTORE, save=tags[0].save, shards=plan(*tags), released=released, number=2, counter=counter
        )
    )


def test_the_own_copy_is_verified_before_it_counts_and_published_when_released(shell: WatcherShell) -> None:
    shell.disk.hold(tag(3), "3/0/0")
    shell.feed(did.InventoryTaken(tuple(shell.disk.held.values())))
    open_session(shell)
    restoring(shell, tag(3))
    shell.wait(0.2)
    progress = shell.report.restore
    assert progress is not None
    assert progress.verified == (ShardKey(Rank(0), Worker(0)),)
    assert progress.by_source == {"own": 5}
    assert shell.disk.files["replicator.prerestore"] == "restore-step: 3"
    assert not shell.all(do.PublishMarkers)
    restoring(shell, tag(3), released=True, counter=2)
    assert shell.disk.files["j-s3-n0-w0.restore"] == "3/0/0"
    assert len(shell.all(do.VerifyShard)) == 1


def test_a_missing_shard_is_fetched_and_counts_when_the_transfer_named_it(shell: WatcherShell) -> None:
    open_session(shell)
    restoring(shell, tag(3), released=True)
    shell.wait(0.2)
    (fetch,) = shell.transfer.fetches
    assert (fetch.tags, fetch.holders) == ((tag(3),), (PEER,))
    assert not shell.machine.running
    shell.disk.hold(tag(3), "3/0/0", own=False)
    done = Fetch(address=tag(3).address, state=FetchState.DONE, have=5, size=5, by_source={"peer": 5})
    shell.feed(did.TransferReported(Incarnation("t0"), TransferReport(peer=SELF, fetches=(done,), landed=1)))
    assert shell.machine.running
    assert shell.disk.files["j-s3-n0-w0.restore"] == "3/0/0"
    shell.wait(0.2)
    assert not shell.transfer.fetches
    assert not shell.all(do.VerifyShard)
    assert shell.report.restore is not None
    assert shell.report.restore.by_source == {"peer": 5}


def test_s05_a_corrupt_copy_is_reported_then_quarantined_then_fetched(shell: WatcherShell) -> None:
    shell.disk.hold(tag(3), "3/0/0")
    shell.disk.contents[tag(3).address] = "flipped"
    shell.feed(did.InventoryTaken(tuple(shell.disk.held.values())))
    open_session(shell)
    shell.done.clear()
    restoring(shell, tag(3))
    shell.wait(0.3)
    reports = [
        index
        for index, effect in enumerate(shell.done)
        if isinstance(effect, do.SendReport) and any(fault.kind == "corrupt" for fault in effect.report.faults)
    ]
    quarantine = next(index for index, effect in enumerate(shell.done) if isinstance(effect, do.Quarantine))
    assert reports[0] < quarantine
    assert [order.tags for order in shell.transfer.fetches] == [(tag(3),)]
    assert not shell.report.held
    assert "corrupt" in shell.disk.files["replicator.errors"]


def test_a_fetch_that_every_source_failed_is_reported_with_its_reason(shell: WatcherShell) -> None:
    open_session(shell)
    restoring(shell, tag(3))
    failed = Fetch(address=tag(3).address, state=FetchState.FAILED, reason="node-1 refused")
    shell.feed(did.TransferReported(Incarnation("t0"), TransferReport(peer=SELF, fetches=(failed,))))
    shell.wait(0.2)
    assert shell.report.restore is not None
    assert [(fault.key, fault.reason) for fault in shell.report.restore.failed] == [(tag(3).key, "node-1 refused")]


def test_a_resumed_session_does_not_hash_again_what_this_stamp_verified(disk: ModelRamdisk) -> None:
    disk.hold(tag(3), "3/0/0")
    first = WatcherShell(disk).start()
    open_session(first)
    restoring(first, tag(3))
    assert len(first.all(do.VerifyShard)) == 1
    second = WatcherShell(disk, incarnation="w2").start()
    second.scan()
    restoring(second, tag(3), released=True)
    assert second.machine.running
    assert not second.all(do.VerifyShard)


def test_another_decision_verifies_again(shell: WatcherShell) -> None:
    shell.disk.hold(tag(3), "3/0/0")
    shell.feed(did.InventoryTaken(tuple(shell.disk.held.values())))
    open_session(shell)
    restoring(shell, tag(3))
    view = shell.view_of(outcome=Outcome.RESTORE, save=save(3), shards=plan(tag(3)), number=3)
    shell.read(view)
    assert len(shell.all(do.VerifyShard)) == 2


def test_a_rank_restores_the_shard_that_another_rank_saved_under_its_own_name(shell: WatcherShell) -> None:
    twin = tag(3, rank=1)
    shell.disk.hold(twin, "3/1/0", own=False)
    shell.feed(did.InventoryTaken(tuple(shell.disk.held.values())))
    open_session(shell)
    shards = (ShardPlan(key=ShardKey(Rank(0), Worker(0)), tag=twin),)
    shell.read(shell.view_of(outcome=Outcome.RESTORE, save=save(3), shards=shards, released=True, number=2))
    assert shell.disk.files["j-s3-n0-w0.restore"] == "3/1/0"


def test_after_the_deadline_the_fetch_goes_on_but_nothing_is_published(shell: WatcherShell) -> None:
    open_session(shell)
    restoring(shell, tag(3))
    shell.wait(290)
    assert "0 of 1 shards of this node are verified" in shell.disk.files["replicator.failed"]
    assert shell.transfer.fetches
    restoring(shell, tag(3), released=True, counter=2)
    assert not shell.all(do.PublishMarkers)


def test_the_save_being_restored_is_not_dropped(shell: WatcherShell) -> None:
    shell.disk.hold(tag(3), "3/0/0")
    shell.feed(did.InventoryTaken(tuple(shell.disk.held.values())))
    open_session(shell)
    shell.hold = (do.VerifyShard,)
    restoring(shell, tag(3))
    assert shell.view is not None
    view = shell.view_of(
        outcome=Outcome.RESTORE,
        save=save(3),
        shards=plan(tag(3)),
        number=2,
        counter=2,
        keep=KeepList(stamp=Stamp(1, Epoch(2), 2), upto=save(9)),
    )
    shell.read(view)
    assert tag(3) in shell.disk.held


# ---- whom to obey


def test_a_beacon_only_makes_it_read(shell: WatcherShell) -> None:
    open_session(shell)
    shell.read(shell.view_of(outcome=Outcome.NONE))
    shell.done.clear()
    known = Beacon(stamp=Stamp(1, Epoch(1), 1), token=1, store=StoreId("s1"))
    shell.feed(did.BeaconHeard(JOB, LEASE.incarnation, known))
    assert not shell.all(do.ReadView)
    news = Beacon(stamp=Stamp(1, Epoch(1), 2), token=1, store=StoreId("s1"))
    shell.feed(did.BeaconHeard(JOB, LEASE.incarnation, news))
    assert len(shell.all(do.ReadView)) == 1
    shell.feed(did.BeaconHeard(JOB, Incarnation("zombie"), known))
    assert len(shell.all(do.ReadView)) == 2


def test_a_silent_beacon_makes_it_read_after_five_seconds(shell: WatcherShell) -> None:
    open_session(shell)
    shell.read(shell.view_of(outcome=Outcome.NONE))
    shell.done.clear()
    shell.wait(4.9)
    assert not shell.all(do.ReadView)
    shell.wait(0.2)
    assert len(shell.all(do.ReadView)) == 1


def test_s107_a_lower_token_is_not_obeyed_but_told_what_was_seen(shell: WatcherShell) -> None:
    run_fresh(shell)
    newer = shell.view_of(
        released=True,
        outcome=Outcome.NONE,
        counter=5,
        token=4,
        lease=LEASE.__class__(incarnation=Incarnation("c4"), token=4, host=Host("c"), reports="r", beacons="b"),
    )
    shell.read(newer)
    shell.read(shell.view_of(refused={shell.report.session.id if shell.report.session else "": "no"}, counter=9))
    assert state(shell) is SessionState.RUNNING
    shell.wait(0.2)
    assert shell.report.obeyed == Stamp(4, Epoch(1), 5)


def test_it_registers_again_when_the_store_changed_or_the_lease_is_gone(shell: WatcherShell) -> None:
    run_fresh(shell)
    shell.done.clear()
    view = shell.view_of(released=True, outcome=Outcome.NONE, counter=2)
    shell.read(view.__class__(store=StoreId("s2"), lease=view.lease, fence=view.fence))
    assert len(shell.all(do.Register)) == 1
    shell.done.clear()
    shell.read(view.__class__(store=StoreId("s2"), lease=None))
    shell.wait(6)
    assert shell.all(do.Register)


def test_a_rank_that_a_later_epoch_does_not_have_is_told_in_errors_only(shell: WatcherShell) -> None:
    run_fresh(shell)
    other = Member(rank=Rank(0), host=Host("node-9"), session=SessionId("x"))
    shell.read(shell.view_of(released=True, number=2, members=(other,)))
    assert state(shell) is SessionState.CLOSED
    assert "node-9" in shell.disk.files["replicator.errors"]
    assert "replicator.failed" not in shell.disk.files


def test_a_new_session_joins_an_epoch_that_is_released_already(shell: WatcherShell) -> None:
    shell.disk.hold(tag(3), "3/0/0")
    shell.feed(did.InventoryTaken(tuple(shell.disk.held.values())))
    open_session(shell)
    restoring(shell, tag(3), released=True)
    assert shell.machine.running


# ---- others


def test_orders_for_the_uploader_are_passed_on_and_answers_reported(shell: WatcherShell) -> None:
    run_fresh(shell)
    order = BackupOrder(id="o1", kind="list")
    shell.read(shell.view_of(released=True, outcome=Outcome.NONE, counter=2, orders=orders(backup=(order,))))
    shell.wait(0.2)
    assert shell.uploader.orders == (order,)
    from checkpoint_replicator.messages import BackupResult

    results = (BackupResult(id="o1", kind="list", done=True), BackupResult(id="old", kind="list", done=True))
    shell.feed(did.UploaderReported(JOB, Incarnation("u1"), UploaderReport(root="file:///b", results=results)))
    shell.wait(0.2)
    assert [result.id for result in shell.report.backup] == ["o1"]
    assert shell.report.backup_root == "file:///b"


def test_s45_a_save_rewritten_after_hashing_is_reported_as_mutated_once(shell: WatcherShell) -> None:
    run_fresh(shell)
    shell.disk.save(1)
    shell.scan()
    copy = Copy(address=tag(1).address, host=Host("node-1"), state=CopyState.MUTATED, reason="leaf 0 differs")
    for _ in range(2):
        shell.feed(did.TransferReported(Incarnation("t0"), TransferReport(peer=SELF, copies=(copy,))))
    shell.wait(0.2)
    assert [fault.kind for fault in shell.report.faults] == ["mutated"]
    assert shell.disk.files["replicator.errors"].count("changed after it was saved") == 1


def test_a_copy_that_the_transfer_found_corrupt_is_reported_and_quarantined(shell: WatcherShell) -> None:
    run_fresh(shell)
    shell.disk.hold(tag(1, rank=1), "1/1/0", own=False)
    fault = Fault(kind="corrupt", reason="leaf 0 differs", address=tag(1, rank=1).address)
    shell.feed(did.TransferReported(Incarnation("t0"), TransferReport(peer=SELF, landed=1)))
    shell.feed(did.TransferReported(Incarnation("t0"), TransferReport(peer=SELF, landed=1, corrupt=(fault,))))
    shell.wait(0.3)
    assert not shell.disk.held


def test_reports_come_every_two_seconds_and_at_change_at_most_ten_times_a_second(shell: WatcherShell) -> None:
    run_fresh(shell)
    shell.wait(3)
    shell.done.clear()
    shell.wait(10)
    assert 4 <= len(shell.all(do.SendReport)) <= 6
    shell.done.clear()
    for step in range(50):
        shell.disk.save(step)
        shell.wait(0.02, scan=False)
        shell.scan()
    assert len(shell.all(do.SendReport)) <= 12


def test_the_version_of_a_report_grows_only_with_its_content(shell: WatcherShell) -> None:
    run_fresh(shell)
    shell.wait(3)
    before = shell.report.version
    shell.wait(10)
    assert shell.report.version == before
    shell.disk.save(1)
    shell.wait(3)
    assert shell.report.version > before


# ---- crashes


def test_law_3_a_crash_at_any_effect_loses_no_save_and_ends_in_markers_or_an_error() -> None:
    def story(shell: WatcherShell) -> None:
        shell.view = None
        shell.scan()
        if shell.machine.node.session is not None and not shell.crashed:
            shell.read(shell.view_of(outcome=Outcome.NONE, released=True))
        shell.scan()

    def fresh() -> ModelRamdisk:
        disk = ModelRamdisk()
        disk.write_yaml(yaml_text())
        return disk

    whole = WatcherShell(fresh())
    whole.start()
    story(whole)
    whole.disk.save(1)
    whole.scan()
    assert whole.machine.running
    for point in range(len(whole.done)):
        disk = fresh()
        first = WatcherShell(disk, crash_after=point)
        first.start()
        story(first)
        if not first.crashed:
            disk.save(1)
            first.scan()
        second = WatcherShell(disk, incarnation="w2", now=first.now)
        second.start()
        story(second)
        if not any("save" in name for name in disk.public) and tag(1) not in disk.held and not disk.claims:
            disk.save(1)
        second.scan()
        assert second.machine.running, point
        assert disk.yaml is None, point
        assert disk.files.get("j-s0-n0-w0.restore") == "", point
        assert list(disk.held) == [tag(1)], point


def test_a_crash_between_removing_a_bad_yaml_and_saying_so_is_made_good(disk: ModelRamdisk) -> None:
    disk.write_yaml(b"{{{")
    first = WatcherShell(disk, hold=(do.WriteFailed,)).start()
    first.scan()
    assert disk.yaml is None
    assert "replicator.failed" not in disk.files
    second = WatcherShell(disk, incarnation="w2").start()
    second.scan()
    assert "replicator.failed" in disk.files
