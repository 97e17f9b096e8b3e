"""Carrying out a restore decision."""

import msgspec

from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Epoch, Host, Incarnation, Rank, SessionId, Worker
from checkpoint_replicator.messages import (
    Fault,
    Fetch,
    FetchState,
    TransferReport,
)
from checkpoint_replicator.records import KeepList, Member, Outcome, ShardPlan
from checkpoint_replicator.save import ShardKey
from checkpoint_watcher import effects as do
from checkpoint_watcher import events as did
from support.watcher_shell import ModelRamdisk, WatcherShell
from support.watcher_story import PEER, SELF, open_session, plan, restoring, save, tag


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


def test_s05_a_corrupt_copy_is_not_fetched_while_it_still_has_its_names(shell: WatcherShell) -> None:
    shell.disk.hold(tag(3), "3/0/0")
    shell.disk.contents[tag(3).address] = "flipped"
    shell.feed(did.InventoryTaken(tuple(shell.disk.held.values())))
    open_session(shell)
    shell.hold = (do.Quarantine,)
    restoring(shell, tag(3))
    shell.wait(0.3)
    assert shell.held_back
    # The transfer would find it standing under its name, and be done.
    assert not any(isinstance(effect, do.SendTransfer) and effect.orders.fetches for effect in shell.done)
    shell.release()
    shell.wait(0.3)
    assert [order.tags for order in shell.transfer.fetches] == [(tag(3),)]


def test_corrupt_copies_are_told_of_in_the_order_in_which_they_were_reported(shell: WatcherShell) -> None:
    steps = (4, 1, 7, 2, 6, 3, 8, 5)
    for step in steps:
        shell.disk.hold(tag(step), f"{step}/0/0")
    shell.feed(did.InventoryTaken(tuple(shell.disk.held.values())))
    open_session(shell)
    found = tuple(Fault(kind="corrupt", reason="a bit flipped", address=tag(step).address) for step in steps)
    shell.feed(did.TransferReported(Incarnation("t0"), TransferReport(peer=SELF, corrupt=found)))
    told = [one.fields["address"] for one in shell.done if isinstance(one, do.Announce) and "address" in one.fields]
    assert told == [tag(step).address for step in steps]


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


def test_what_the_job_restored_without_a_failed_session_is_dropped_there_and_not_fetched(shell: WatcherShell) -> None:
    shell.disk.hold(tag(3), "3/0/0")
    shell.feed(did.InventoryTaken(tuple(shell.disk.held.values())))
    open_session(shell)
    restoring(shell, tag(3), tag(3, worker=1))
    shell.wait(290)
    assert shell.transfer.fetches
    shell.read(
        shell.view_of(
            outcome=Outcome.RESTORE,
            save=save(3),
            number=3,
            counter=3,
            released=True,
            members=(Member(rank=Rank(0), host=Host("other"), session=SessionId("other")),),
            keep=KeepList(stamp=Stamp(1, Epoch(3), 3), upto=save(9)),
        )
    )
    shell.wait(15)  # one stock-taking
    assert shell.transfer.fetches == ()
    assert tag(3) not in shell.disk.held


def test_content_that_stands_under_another_name_gets_its_own_before_it_counts(shell: WatcherShell) -> None:
    shell.disk.hold(tag(2, content="same"), "same")
    shell.feed(did.InventoryTaken(tuple(shell.disk.held.values())))
    open_session(shell)
    wanted = tag(3, content="same")
    restoring(shell, wanted, released=True)
    shell.wait(0.2)
    assert len(shell.all(do.VerifyShard)) == 1
    assert [order.tags for order in shell.transfer.fetches] == [(wanted,)]
    assert not shell.machine.running
    shell.disk.hold(wanted, "same", own=False)
    done = Fetch(address=wanted.address, state=FetchState.DONE, have=4, size=4)
    shell.feed(did.TransferReported(Incarnation("t0"), TransferReport(peer=SELF, fetches=(done,), landed=1)))
    assert shell.machine.running


def test_a_corrupt_copy_is_not_forgotten_when_a_new_session_opens(shell: WatcherShell) -> None:
    shell.disk.hold(tag(3), "3/0/0")
    shell.disk.contents[tag(3).address] = "flipped"
    shell.feed(did.InventoryTaken(tuple(shell.disk.held.values())))
    open_session(shell)
    restoring(shell, tag(3))
    assert not shell.all(do.Quarantine)  # it was not reported yet
    open_session(shell)
    shell.wait(2)
    assert shell.all(do.Quarantine)
    shell.wait(2)
    assert not shell.report.faults


def test_what_people_should_know_of_a_decision_stands_in_the_errors_once(shell: WatcherShell) -> None:
    open_session(shell)
    view = shell.view_of(outcome=Outcome.NONE, released=True)
    assert view.restore is not None
    warned = msgspec.structs.replace(view.restore, warning="a fresh start was ordered")
    shell.read(msgspec.structs.replace(view, restore=warned))
    shell.wait(5)
    assert shell.disk.files["replicator.errors"] == "a fresh start was ordered\n"


def test_the_trainer_reads_once_which_witnesses_were_silent(shell: WatcherShell) -> None:
    shell.disk.hold(tag(3), "3/0/0")
    shell.feed(did.InventoryTaken(tuple(shell.disk.held.values())))
    open_session(shell)
    view = shell.view_of(outcome=Outcome.RESTORE, save=tag(3).save, shards=plan(tag(3)), number=2)
    assert view.restore is not None
    silent = ("the backup store gs://b (no listing yet)",)
    view = msgspec.structs.replace(view, restore=msgspec.structs.replace(view.restore, silent=silent))
    shell.read(view)
    shell.wait(3)
    assert shell.disk.files["replicator.errors"] == (
        "step 3 is restored without an answer of the backup store gs://b (no listing yet): "
        "a newer save there would be missed\n"
    )
