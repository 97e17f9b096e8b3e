"""Finished saves on their way in, and shards on their way out."""

import msgspec
import pytest

from checkpoint_replicator.ids import Epoch, Job, Rank, Step, Worker
from checkpoint_replicator.messages import (
    Held,
    Room,
)
from checkpoint_replicator.records import BackupOrder, Outcome
from checkpoint_replicator.save import Save, ShardKey, Tag
from checkpoint_replicator.session import SessionSpec
from checkpoint_replicator.shape import Shape
from checkpoint_watcher import effects as do
from checkpoint_watcher import events as did
from checkpoint_watcher.record import Lineage
from checkpoint_watcher.saves import MAX_TOLD
from support.watcher_shell import WISH, ModelRamdisk, WatcherShell
from support.watcher_story import (
    JOB,
    PEER,
    SELF,
    SHAPE,
    keep,
    open_session,
    orders,
    run_fresh,
    save,
    tag,
)


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


def test_saves_after_a_lost_session_json_belong_to_the_epoch_that_the_sidecars_tell(disk: ModelRamdisk) -> None:
    shell = WatcherShell(disk)
    shell.feed(did.Started(lineage=Lineage(SessionSpec(JOB, Rank(0), SHAPE), Epoch(3))))
    disk.save(7)
    shell.scan()
    assert list(disk.held) == [tag(7, epoch=3)]
    open_session(shell)
    assert disk.session is not None
    assert disk.session.before == Lineage(SessionSpec(JOB, Rank(0), SHAPE), Epoch(3))


def test_what_one_jobs_keep_list_says_of_commits_is_not_taken_for_another_jobs(shell: WatcherShell) -> None:
    run_fresh(shell)
    other = msgspec.structs.replace(tag(1), job=Job("other"))
    shell.disk.hold(tag(1), "1/0/0")
    shell.disk.hold(other, "1/0/0")
    shell.feed(did.InventoryTaken(tuple(shell.disk.held.values())))
    shell.read(shell.view_of(keep=keep(1)), job="other")
    shell.read(shell.view_of(released=True, outcome=Outcome.NONE, keep=keep(1), counter=2))
    assert [held.committed for held in shell.disk.held.values()] == [True, True]


def test_a_shard_that_somebody_removed_is_missed_within_ten_seconds_and_told_to_the_trainer(
    shell: WatcherShell,
) -> None:
    run_fresh(shell)
    shell.disk.save(1)
    shell.scan()
    shell.wait(9)
    del shell.disk.held[tag(1)]
    shell.wait(12)
    assert shell.report.held == ()
    assert shell.disk.files["replicator.errors"] == "step 1 of n0/w0: its data here was removed or changed\n"
    assert [effect.event for effect in shell.done if isinstance(effect, do.Announce)].count("shard_vanished") == 1


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


def told(shell: WatcherShell) -> list[str]:
    return [effect.line for effect in shell.done if isinstance(effect, do.AppendErrors)]


def test_names_that_are_no_saves_of_the_session_are_told_once_with_what_was_expected(shell: WatcherShell) -> None:
    shell.disk.save(8, job="earlier")
    run_fresh(shell)
    shell.disk.save(1, job="other")
    shell.disk.save(1, rank=1)
    shell.disk.save(1, worker=4)
    shell.disk.save_directory(4)
    shell.disk.misfits = (("j-s2-n0-w0.save", "a link"),)
    for _ in range(3):
        shell.scan()
    expected = "is no save of this session and is not taken: expected a file j-s<step>-n0-w<0 to 0>.save, found"
    assert told(shell) == [
        f"4 {expected} a directory",
        f"j-s1-n0-w4.save {expected} worker 4",
        f"j-s1-n1-w0.save {expected} rank 1",
        f"j-s2-n0-w0.save {expected} a link",
        f"other-s1-n0-w0.save {expected} job other",
    ]
    assert shell.disk.public.keys() >= {"earlier-s8-n0-w0.save"}
    shell.done.clear()
    again = WatcherShell(shell.disk).start()
    again.scan()
    assert told(again) == [], "a new life does not know what was told"
    shell.disk.save(2, job="other")
    again.scan()
    assert len(told(again)) == 1


def test_a_directorys_session_is_told_of_files_and_of_nothing_else(shell: WatcherShell) -> None:
    run_fresh(shell, framework="pytorch.distributed")
    shell.disk.save(1)
    shell.disk.misfits = (("x.save", "a file"),)
    shell.scan()
    (line,) = told(shell)
    assert line.endswith("is not taken: expected a directory named by its step, found a file")


def test_a_session_is_told_of_a_bounded_number_of_names(shell: WatcherShell) -> None:
    run_fresh(shell)
    shell.disk.misfits = tuple((f"{number}.save", "a file") for number in range(MAX_TOLD + 5))
    shell.scan()
    shell.disk.misfits = tuple((f"x{number}.save", "a file") for number in range(5))
    shell.scan()
    assert len(told(shell)) == MAX_TOLD


def test_fault_15_the_same_step_again_with_the_same_content_is_nothing_new(shell: WatcherShell) -> None:
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


def test_a_save_that_was_given_up_while_it_waited_is_not_hashed(shell: WatcherShell) -> None:
    run_fresh(shell)
    shell.disk.save(1)
    shell.scan()
    shell.hold = (do.HashClaim,)
    for step in (2, 3, 4, 5):  # two are hashed at once, the others wait
        shell.disk.save(step)
        shell.scan()
    shell.read(shell.view_of(released=True, outcome=Outcome.NONE, counter=2, keep=keep(1, 1, drop=(4,))))
    shell.release()
    shell.wait(0.2)
    assert sorted(shell.disk.held) == [tag(1), tag(2), tag(3), tag(5)]
    assert {effect.claim.save for effect in shell.done if isinstance(effect, do.HashClaim)} == {
        save(1),
        save(2),
        save(3),
        save(5),
    }
    assert not shell.disk.claims


def test_of_a_backlog_the_oldest_and_the_newest_are_hashed_in_turn(shell: WatcherShell) -> None:
    run_fresh(shell)
    shell.hold = (do.HashClaim,)
    for step in range(1, 9):  # two are hashed at once, the others wait
        shell.disk.save(step)
        shell.scan()
    shell.hold = ()
    shell.release()
    shell.wait(0.2)
    hashed = [effect.claim.save.step for effect in shell.done if isinstance(effect, do.HashClaim)]
    assert hashed[:6] == [1, 2, 3, 8, 4, 7]
    assert sorted(shell.disk.held) == [tag(step) for step in range(1, 9)]


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
    assert shell.report.complete  # what a running session finds is news, and no gap in what was told
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


def test_a_copy_that_lands_after_the_commit_was_marked_is_marked_too(shell: WatcherShell) -> None:
    run_fresh(shell)
    shell.disk.save(1)
    shell.scan()
    shell.read(shell.view_of(released=True, outcome=Outcome.NONE, counter=2, keep=keep(1, 1)))
    late = tag(1, rank=1)
    shell.disk.hold(late, "1/1/0", own=False)
    for _ in range(2):
        shell.feed(did.InventoryTaken(tuple(shell.disk.held.values())))
    assert shell.disk.held[late].committed
    assert shell.all(do.MarkCommitted) == [do.MarkCommitted(JOB, save(1))] * 2


def test_a_wish_for_a_backup_is_told_beyond_the_commit_and_by_the_next_life(shell: WatcherShell) -> None:
    run_fresh(shell)
    shell.disk.save(3, WISH)
    shell.scan()
    shell.read(shell.view_of(released=True, outcome=Outcome.NONE, counter=2, keep=keep(3, 3)))
    shell.wait(1)
    assert shell.report.backup_requested == (Save(Epoch(1), Step(3)),)
    later = WatcherShell(shell.disk, incarnation="w2").start()
    later.scan()
    later.wait(1)
    assert later.report.backup_requested == (Save(Epoch(1), Step(3)),)


def test_what_does_not_stand_any_more_goes_when_a_keep_list_lets_it_go(shell: WatcherShell) -> None:
    run_fresh(shell)
    for step in (1, 2, 3):
        shell.disk.save(step)
        shell.scan()
    shell.feed(did.InventoryTaken((Held(tag=tag(3), own=True),), (tag(1), tag(2))))
    shell.read(shell.view_of(released=True, outcome=Outcome.NONE, counter=2, keep=keep(3, 2, 3)))
    assert sorted(held.save.step for held in shell.disk.held) == [2, 3]


def test_a_copy_that_lands_after_its_save_was_let_go_goes_too(shell: WatcherShell) -> None:
    run_fresh(shell)
    for step in (1, 2):
        shell.disk.save(step)
        shell.scan()
    shell.read(shell.view_of(released=True, outcome=Outcome.NONE, counter=2, keep=keep(2, 2)))
    late = tag(1, rank=1, content="late")
    shell.disk.hold(late, "late", own=False)
    shell.feed(did.InventoryTaken(tuple(shell.disk.held.values())))
    assert list(shell.disk.held) == [tag(2)]


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


def test_fault_23_another_jobs_data_is_left_alone_and_reported_to_its_own_coordinator(disk: ModelRamdisk) -> None:
    other = Tag(Job("other"), save(3), SHAPE, ShardKey(Rank(0), Worker(0)), ModelRamdisk.address("o"), 1)
    disk.hold(other, "o")
    shell = WatcherShell(disk).start()
    run_fresh(shell)
    shell.read(shell.view_of(released=True, outcome=Outcome.NONE, counter=2, keep=keep(9, 9)))
    assert other in disk.held
    reports = [effect.report for effect in shell.done if isinstance(effect, do.SendReport) and effect.job == "other"]
    assert [held.tag for held in reports[-1].held] == [other]
    assert reports[-1].session is None


def test_an_open_session_is_complete_when_all_that_was_found_is_named(shell: WatcherShell) -> None:
    run_fresh(shell)
    shell.hold = (do.HashClaim,)
    shell.disk.save(5)
    open_session(shell)
    shell.wait(0.2)
    assert not shell.report.complete
    shell.release()
    shell.wait(0.2)
    assert shell.report.complete


def test_law_5_a_keep_list_older_than_one_obeyed_before_drops_nothing(shell: WatcherShell) -> None:
    run_fresh(shell)
    for step in (1, 2):
        shell.disk.save(step)
        shell.scan()
    shell.read(shell.view_of(released=True, outcome=Outcome.NONE, counter=9, keep=keep(1, 1, counter=9)))
    shell.read(shell.view_of(released=True, counter=12, keep=keep(2, 2, counter=5)))
    assert len(shell.disk.held) == 2
    shell.read(shell.view_of(released=True, counter=13, keep=keep(2, 2, counter=13)))
    assert list(shell.disk.held) == [tag(2)]
