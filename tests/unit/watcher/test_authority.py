"""Whom the node obeys."""

from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Epoch, Host, Incarnation, Rank, SessionId, StoreId
from checkpoint_replicator.messages import (
    Beacon,
)
from checkpoint_replicator.records import Member, Outcome
from checkpoint_replicator.session import SessionState
from checkpoint_watcher import effects as do
from checkpoint_watcher import events as did
from support.watcher_shell import LEASE, WatcherShell
from support.watcher_story import JOB, open_session, restoring, run_fresh, state, tag


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


# ---- cut off from one of the two


def taken(shell: WatcherShell, version: int) -> did.BeaconHeard:
    stamp, store = Stamp(1, Epoch(1), 1), StoreId("s1")
    return did.BeaconHeard(
        JOB, LEASE.incarnation, Beacon(stamp=stamp, token=1, store=store, taken={shell.incarnation: version})
    )


def live(shell: WatcherShell, seconds: int, *, heard: bool = True) -> None:
    """Let a coordinator publish its beacon each second; `heard`: it takes up what the node reports."""
    version = shell.report.version
    for _ in range(seconds):
        shell.feed(taken(shell, shell.report.version if heard else version))
        shell.wait(1)


def test_who_hears_beacons_and_is_heard_calls_for_no_help(shell: WatcherShell) -> None:
    run_fresh(shell)
    live(shell, 20)
    assert not shell.all(do.CallHelp)


def test_without_a_beacon_for_five_seconds_it_calls_for_help_reads_the_lease_and_connects_anew(
    shell: WatcherShell,
) -> None:
    run_fresh(shell)
    live(shell, 3)
    shell.wait(3.9)
    assert not shell.all(do.CallHelp)
    reads = len(shell.all(do.ReadView))
    shell.wait(0.2)
    (cry,) = shell.all(do.CallHelp)
    assert cry == do.CallHelp(JOB, "no beacon of the coordinator on c at inproc://b for 5 s", 10)
    assert shell.order(do.CallHelp, do.Follow) == ["Follow", "CallHelp", "Follow"]
    assert len(shell.all(do.ReadView)) == reads + 1
    shell.wait(10.1)
    assert len(shell.all(do.CallHelp)) == 3
    live(shell, 10)
    assert len(shell.all(do.CallHelp)) == 3


def test_reports_that_nobody_takes_up_are_a_call_for_help_too(shell: WatcherShell) -> None:
    run_fresh(shell)
    live(shell, 3)
    live(shell, 8, heard=False)
    (cry, *_) = shell.all(do.CallHelp)
    assert isinstance(cry, do.CallHelp)
    assert cry.reason == "the coordinator on c at inproc://r took up no report for 5 s"


def test_cut_off_from_redis_only_it_goes_on_under_its_coordinator_and_obeys_no_new_one(shell: WatcherShell) -> None:
    run_fresh(shell)
    shell.view = None  # Redis does not answer any more
    live(shell, 30)
    assert not shell.all(do.CallHelp)
    reports = len(shell.all(do.SendReport))
    shell.feed(
        did.BeaconHeard(JOB, Incarnation("c2"), Beacon(stamp=Stamp(2, Epoch(2), 9), token=2, store=StoreId("s1")))
    )
    live(shell, 5)
    assert shell.machine.authorities[JOB].lease == LEASE
    assert state(shell) is SessionState.RUNNING
    assert len(shell.all(do.SendReport)) > reports
    assert shell.report.obeyed == Stamp(1, Epoch(1), 1)
    assert len(shell.all(do.Follow)) == 1


def test_retries_of_two_nodes_are_spread(shell: WatcherShell) -> None:
    moments = set()
    for name in ("w1", "w2", "w3"):
        one = WatcherShell(shell.disk, incarnation=name).start()
        open_session(one)
        moments.add(one.machine.authorities[JOB].due)
    assert len(moments) == 3
