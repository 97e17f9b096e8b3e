"""The whole machine over crashes."""

import msgspec

from checkpoint_replicator.fence import ZERO, Stamp
from checkpoint_replicator.ids import Epoch, Incarnation, Job, Rank, StoreId
from checkpoint_replicator.messages import TransferReport, UploaderReport
from checkpoint_replicator.records import NodeView, Orders, Outcome
from checkpoint_replicator.session import SessionSpec
from checkpoint_watcher import effects as do
from checkpoint_watcher import events as did
from checkpoint_watcher.record import Lineage
from support.watcher_shell import LEASE, ModelRamdisk, WatcherShell, yaml_text
from support.watcher_story import JOB, SELF, SHAPE, keep, open_session, run_fresh, save, tag


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


def test_what_an_earlier_life_left_unreadable_is_told_to_the_trainer() -> None:
    shell = WatcherShell(ModelRamdisk())
    shell.feed(did.Started(unreadable=("session.json: garbage",)))
    assert "session.json: garbage" in shell.disk.files["replicator.errors"]
    assert do.Announce("record_unreadable", {"reason": "session.json: garbage"}) in shell.done


def test_a_lost_session_is_told_to_the_coordinator_and_on_the_node() -> None:
    shell = WatcherShell(ModelRamdisk())
    shell.feed(
        did.Started(lineage=Lineage(SessionSpec(JOB, Rank(0), SHAPE), Epoch(1)), sessionless="session.json: garbage")
    )
    reason = "no session, nothing is replicated before the trainer restarts: session.json: garbage"
    assert [(fault.kind, fault.reason) for fault in shell.report.faults] == [("session", reason)]
    [*_, status] = shell.all(do.PublishStatus)
    assert isinstance(status, do.PublishStatus)
    assert reason in status.text
    shell.disk.write_yaml(yaml_text())
    shell.scan()
    assert shell.machine.node.faults == {}


def test_siblings_and_scans_that_say_the_same_again_make_no_work(shell: WatcherShell) -> None:
    run_fresh(shell)
    said = TransferReport(peer=SELF, landed=1)
    again = (
        did.TransferReported(Incarnation("t0"), said),
        did.UploaderReported(JOB, Incarnation("u0"), UploaderReport(root="file:///b")),
        did.Scanned(shell.disk.snapshot()),
    )
    for event in again:
        shell.feed(event)
    shell.wait(3)
    machine, now = shell.machine, shell.now
    for event in again:
        machine.handle(event, now)
    deadline = machine.next_deadline()
    for event in again:
        assert machine.handle(event, now) == []
        assert machine.next_deadline() == deadline


def test_what_an_uploader_says_of_a_job_that_nobody_knows_here_is_not_kept(shell: WatcherShell) -> None:
    run_fresh(shell)
    said = UploaderReport(root="file:///b")
    shell.feed(did.UploaderReported(Job("stranger"), Incarnation("u0"), said))
    assert shell.machine.reporter.uploader_said == {}
    shell.feed(did.UploaderReported(JOB, Incarnation("u0"), said))
    assert shell.machine.reporter.uploader_said == {JOB: said}


# ---- forgetting


FORGET = NodeView(
    store=StoreId("s1"),
    lease=LEASE,
    fence=Stamp(1, Epoch(1), 9),
    orders=Orders(stamp=Stamp(1, Epoch(1), 9), forget=True),
)


def forgotten(shell: WatcherShell) -> None:
    """Let a running node with a save forget its job."""
    run_fresh(shell)
    shell.disk.save(1)
    shell.scan()
    shell.wait(1)
    assert shell.report.held
    shell.read(FORGET)
    shell.wait(1)


def test_an_order_to_forget_removes_all_and_leaves_no_fence(shell: WatcherShell) -> None:
    forgotten(shell)
    disk = shell.disk
    assert (disk.held, disk.session, disk.fences, disk.claims) == ({}, None, {}, {})
    report = shell.report
    assert (report.session, report.held, report.newest_committed, report.obeyed) == (None, (), None, ZERO)
    assert len(shell.all(do.ForgetJob)) == 1


def test_when_nobody_decides_for_a_forgotten_job_it_is_left_and_registered_no_more(shell: WatcherShell) -> None:
    forgotten(shell)
    shell.done.clear()
    shell.read(NodeView(store=StoreId("s1")))
    assert shell.all(do.Leave) == [do.Leave(JOB)]
    assert shell.all(do.Register)[-1] == do.Register((), None)
    shell.done.clear()
    shell.wait(60)
    assert not shell.all(do.SendReport)
    assert not shell.all(do.ReadView)


def test_a_job_that_was_left_and_begins_anew_is_told_of_in_versions_that_go_on(shell: WatcherShell) -> None:
    """The same processes hear of it: they take what has an older version for late."""
    forgotten(shell)
    ordered, reported = shell.uploader.version, shell.report.version
    shell.read(NodeView(store=StoreId("s1")))
    assert shell.all(do.Leave) == [do.Leave(JOB)]
    shell.done.clear()
    run_fresh(shell)
    orders = [one.orders.version for one in shell.done if isinstance(one, do.SendUploader)]
    reports = [one.report.version for one in shell.done if isinstance(one, do.SendReport)]
    assert min(orders) > ordered
    assert min(reports) > reported


def test_of_a_job_that_is_left_no_hold_and_nothing_given_up_is_remembered(shell: WatcherShell) -> None:
    run_fresh(shell)
    given_up = keep(2, 2, drop=(3,))
    shell.read(shell.view_of(released=True, outcome=Outcome.NONE, counter=2, keep=given_up))
    held = msgspec.structs.replace(given_up, stamp=Stamp(1, Epoch(1), 3), hold=True)
    shell.read(shell.view_of(released=True, outcome=Outcome.NONE, counter=3, keep=held))
    machine = shell.machine
    assert machine.node.frozen == {JOB}
    assert machine.saves.given_up(JOB) == {save(3)}
    shell.read(FORGET)
    shell.read(NodeView(store=StoreId("s1")))
    assert shell.all(do.Leave) == [do.Leave(JOB)]
    assert machine.node.frozen == set()
    assert machine.saves.given_up(JOB) == frozenset()


def test_a_node_that_knows_a_job_registers_it_while_nobody_decides(shell: WatcherShell) -> None:
    run_fresh(shell)
    shell.done.clear()
    for _ in range(8):
        shell.read(NodeView(store=StoreId("s1")))
        shell.wait(1)
    assert not shell.all(do.Leave)
    assert shell.all(do.Register)[-1] == do.Register((JOB,), None)


def test_an_order_to_forget_of_an_earlier_lease_is_not_obeyed(shell: WatcherShell) -> None:
    run_fresh(shell)
    shell.disk.save(1)
    shell.scan()
    shell.wait(1)
    later = msgspec.structs.replace(LEASE, token=2)
    shell.read(msgspec.structs.replace(FORGET, lease=later, fence=Stamp(2, Epoch(1), 9)))
    shell.wait(1)
    assert not shell.all(do.ForgetJob)
    assert shell.report.held


def test_a_trainer_that_waits_is_not_forgotten(shell: WatcherShell) -> None:
    open_session(shell)
    shell.read(FORGET)
    shell.wait(1)
    assert not shell.all(do.ForgetJob)
    assert shell.disk.session is not None


def test_what_could_not_be_removed_is_tried_again(shell: WatcherShell) -> None:
    shell.hold = (do.ForgetJob,)
    forgotten(shell)
    held = tuple(shell.disk.held.values())
    shell.feed(did.JobForgotten(JOB, held, "is being read"))
    shell.held_back.clear()
    shell.wait(3)
    assert len(shell.held_back) == 1
    shell.release()
    assert shell.disk.held == {}


def test_an_order_to_forget_that_was_taken_back_wakes_nobody_for_ever(shell: WatcherShell) -> None:
    shell.hold = (do.ForgetJob,)
    forgotten(shell)
    shell.feed(did.JobForgotten(JOB, tuple(shell.disk.held.values()), "is being read"))
    shell.read(msgspec.structs.replace(FORGET, fence=Stamp(1, Epoch(1), 10), orders=None))
    shell.wait(3)
    deadline = shell.machine.next_deadline()
    assert deadline is not None
    assert deadline > shell.now
    assert len(shell.held_back) == 1


def test_a_crash_amid_forgetting_goes_on_in_the_next_life(shell: WatcherShell) -> None:
    shell.hold = (do.ForgetJob,)
    forgotten(shell)
    shell.disk.held.clear()
    second = WatcherShell(shell.disk, incarnation="w2").start()
    second.read(FORGET)
    second.wait(1)
    assert second.disk.session is None
    assert second.disk.fences == {}
