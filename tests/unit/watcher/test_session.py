"""From a yaml to a session and to its end."""

import json

import pytest

from checkpoint_replicator.ids import Host, Rank, SessionId
from checkpoint_replicator.records import Member, Outcome
from checkpoint_replicator.session import SessionState
from checkpoint_watcher import effects as do
from checkpoint_watcher import events as did
from checkpoint_watcher.session import MAX_FAILURE
from support.watcher_shell import ModelRamdisk, WatcherShell, yaml_text
from support.watcher_story import (
    open_session,
    run_fresh,
    state,
    tag,
)


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
    shell.wait(238)
    assert "replicator.failed" not in shell.disk.files
    shell.wait(2)
    failed = shell.disk.files["replicator.failed"]
    assert "no rendezvous within 240 s" in failed
    assert "Redis is away" in failed
    assert state(shell) is SessionState.CLOSED


def test_who_came_together_has_until_285_seconds_to_restore(shell: WatcherShell) -> None:
    open_session(shell)
    shell.read(shell.view_of(outcome=Outcome.UNKNOWN, reason="not known: the bucket"))
    shell.wait(284)
    assert "replicator.failed" not in shell.disk.files
    shell.wait(2)
    assert "no release within 285 s" in shell.disk.files["replicator.failed"]
    assert "not known: the bucket" in shell.disk.files["replicator.failed"]


def test_an_abandoned_epoch_was_no_rendezvous(shell: WatcherShell) -> None:
    open_session(shell)
    shell.read(shell.view_of(outcome=Outcome.UNKNOWN))
    shell.wait(10)
    shell.read(shell.view_of(members=(), counter=2, epoch_reason="waiting for 1 of 2 nodes: rank 1 did not come"))
    shell.wait(232)
    assert "no rendezvous within 240 s" in shell.disk.files["replicator.failed"]
    assert "rank 1 did not come" in shell.disk.files["replicator.failed"]


def test_a_clock_that_began_anew_makes_no_deadline_later(disk: ModelRamdisk) -> None:
    before = WatcherShell(disk, now=1e6).start()
    open_session(before)
    before.wait(61)
    later = WatcherShell(disk, incarnation="w2", now=5.0).start()
    later.wait(239)
    assert "replicator.failed" not in disk.files
    later.wait(2)
    assert "no rendezvous within 240 s" in disk.files["replicator.failed"]


def test_markers_whose_data_went_away_end_in_a_failure_that_says_so(shell: WatcherShell) -> None:
    session = open_session(shell)
    shell.hold = (do.PublishMarkers,)
    shell.read(shell.view_of(outcome=Outcome.NONE, released=True))
    shell.feed(did.MarkersFailed(session, "it is missing"))
    assert shell.disk.files["replicator.failed"] == "what was to be restored is gone: it is missing"
    assert state(shell) is SessionState.CLOSED


def test_why_nothing_could_be_handed_out_is_told_in_a_bounded_text(shell: WatcherShell) -> None:
    shell.hold = (do.PublishMarkers,)
    session = run_fresh(shell)
    shell.feed(did.MarkersFailed(session, "x" * 100_000))
    assert shell.disk.session is not None
    assert shell.disk.session.failure == ("what was to be restored is gone: " + "x" * 100_000)[:MAX_FAILURE]


@pytest.mark.parametrize("handout", [True, False])
def test_a_later_life_still_says_whether_there_is_a_hand_out(disk: ModelRamdisk, *, handout: bool) -> None:
    shell = WatcherShell(disk, hold=(do.PublishMarkers,)).start()
    session = open_session(shell)
    shell.read(shell.view_of(outcome=Outcome.NONE, released=True))
    shell.feed(did.MarkersPublished(session, handout=handout))
    later = WatcherShell(disk, incarnation="w2").start()
    later.wait(2)
    (*_, status) = later.all(do.PublishStatus)
    assert isinstance(status, do.PublishStatus)
    assert json.loads(status.text)["handout"] == ("linked" if handout else "none")


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


def test_what_was_ignored_in_a_yaml_is_logged(shell: WatcherShell) -> None:
    shell.disk.write_yaml(yaml_text(peers_per_nod=2))
    shell.scan()
    opened = [e.fields for e in shell.done if isinstance(e, do.Announce) and e.event == "session_opened"]
    assert [fields["notes"] for fields in opened] == ["ignored the unknown key 'peers-per-nod'"]


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


def test_a_running_session_whose_rank_joined_elsewhere_says_so_and_closes(shell: WatcherShell) -> None:
    session = run_fresh(shell)
    members = (Member(rank=Rank(0), host=Host("node-7"), session=SessionId("later")),)
    refused = {str(session): "rank 0 was taken over by a later session on host node-7"}
    shell.read(shell.view_of(outcome=Outcome.NONE, released=True, counter=2, refused=refused, members=members))
    assert state(shell) is SessionState.CLOSED
    assert "superseded: rank 0 was taken over" in shell.disk.files["replicator.errors"]
    assert "replicator.failed" not in shell.disk.files
