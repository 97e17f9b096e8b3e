"""What the node tells others."""

import json

from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Epoch, Host, Incarnation
from checkpoint_replicator.messages import (
    Copy,
    CopyState,
    Fault,
    TransferReport,
    UploaderReport,
)
from checkpoint_replicator.records import BackupOrder, Orders, Outcome
from checkpoint_watcher import effects as do
from checkpoint_watcher import events as did
from support.watcher_shell import WatcherShell
from support.watcher_story import JOB, PEER, SELF, keep, orders, run_fresh, tag


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


def test_a_corrupt_copy_for_another_rank_is_quarantined_whatever_the_transfer_calls_it(shell: WatcherShell) -> None:
    copied = tag(3, rank=1)
    shell.disk.hold(copied, "3/1/0", own=False)
    shell.feed(did.InventoryTaken(tuple(shell.disk.held.values())))
    run_fresh(shell)
    fault = Fault(kind="mutated", reason="1 leaf differs", save=copied.save, key=copied.key, address=copied.address)
    shell.feed(did.TransferReported(Incarnation("t0"), TransferReport(peer=SELF, corrupt=(fault,))))
    shell.wait(1)
    assert [effect.address for effect in shell.all(do.Quarantine) if isinstance(effect, do.Quarantine)] == [
        copied.address
    ]


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


def test_s52_why_a_peer_takes_no_copy_is_reported_until_it_does(shell: WatcherShell) -> None:
    run_fresh(shell)
    shell.disk.save(1)
    shell.scan()
    for reason in ("no room: 5 bytes free", "no room: 4 bytes free"):  # each try finds another number
        copy = Copy(address=tag(1).address, host=Host("node-1"), state=CopyState.REFUSED, reason=reason)
        shell.feed(did.TransferReported(Incarnation("t0"), TransferReport(peer=SELF, copies=(copy,))))
        shell.wait(0.2)
    assert [fault.reason for fault in shell.report.faults] == [
        "node-1 took no copy of step 1 of n0/w0: no room: 5 bytes free"
    ]
    stored = Copy(address=tag(1).address, host=Host("node-1"), state=CopyState.STORED)
    shell.feed(did.TransferReported(Incarnation("t0"), TransferReport(peer=SELF, copies=(stored,))))
    shell.wait(0.2)
    assert not shell.report.faults


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


def test_law_8_the_transfer_learns_what_to_keep_free_for_the_next_save(shell: WatcherShell) -> None:
    run_fresh(shell)
    shell.wait(0.2)
    assert (shell.transfer.reserve, shell.transfer.reserve_inodes) == (0, 0)
    shell.disk.save(1, "x" * 1000)
    shell.scan()
    shell.wait(0.2)
    assert shell.transfer.reserve == 1100
    assert shell.transfer.reserve_inodes == 10  # one file, and eight names and small files of ours
    assert shell.report.room is not None
    assert shell.report.room.reserve == 1100


def test_of_many_saves_in_flight_the_oldest_and_the_newest_are_offered_and_none_that_was_given_up(
    shell: WatcherShell,
) -> None:
    run_fresh(shell)
    wanted = orders(peers=(SELF, PEER))
    shell.read(shell.view_of(released=True, outcome=Outcome.NONE, counter=2, orders=wanted))
    for step in range(1, 10):
        shell.disk.save(step)
    shell.scan()
    shell.wait(0.2)
    assert [offer.tag.save.step for offer in shell.transfer.offers] == [1, 2, 8, 9]
    given_up = keep(1, drop=(3, 4, 8))
    shell.read(shell.view_of(released=True, outcome=Outcome.NONE, counter=3, orders=wanted, keep=given_up))
    shell.wait(0.2)
    assert [offer.tag.save.step for offer in shell.transfer.offers] == [2, 5, 7, 9]


def test_status_json_says_what_is_committed_protected_and_backed_up(shell: WatcherShell) -> None:
    run_fresh(shell)
    shell.disk.save(1)
    shell.scan()
    shell.wait(2)
    assert (told(shell)["step"], told(shell)["protected"], told(shell)["backup"]) == (None, False, None)
    wanted = Orders(stamp=Stamp(1, Epoch(1), 2), peers=(PEER,), last_backup="2026-11-30_17-14")
    shell.read(shell.view_of(released=True, outcome=Outcome.NONE, counter=2, keep=keep(1), orders=wanted))
    copy = Copy(address=tag(1).address, host=PEER.host, state=CopyState.STORED)
    shell.feed(did.TransferReported(Incarnation("t0"), TransferReport(peer=SELF, copies=(copy,))))
    shell.wait(2)
    assert (told(shell)["epoch"], told(shell)["step"]) == (1, 1)
    assert told(shell)["protected"]
    assert told(shell)["backup"] == "2026-11-30_17-14"
    assert told(shell)["handout"] == "linked"


def told(shell: WatcherShell) -> dict[str, object]:
    """What `status.json` says."""
    (*_, status) = shell.all(do.PublishStatus)
    assert isinstance(status, do.PublishStatus)
    document: dict[str, object] = json.loads(status.text)
    return document


def test_every_report_has_a_higher_version_so_that_beacons_tell_whether_heartbeats_arrive(shell: WatcherShell) -> None:
    run_fresh(shell)
    shell.wait(10)
    versions = [effect.report.version for effect in shell.done if isinstance(effect, do.SendReport)]
    assert len(versions) > 5
    assert versions == sorted(set(versions))
