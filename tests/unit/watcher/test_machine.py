"""The whole machine over crashes."""

from checkpoint_replicator.ids import Incarnation
from checkpoint_replicator.messages import TransferReport, UploaderReport
from checkpoint_replicator.records import Outcome
from checkpoint_watcher import effects as do
from checkpoint_watcher import events as did
from support.watcher_shell import ModelRamdisk, WatcherShell, yaml_text
from support.watcher_story import JOB, SELF, run_fresh, tag


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
