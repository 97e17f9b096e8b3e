from typing import TypeVar

from checkpoint_replicator.ids import Incarnation, Job
from checkpoint_replicator.machine import Ticked
from checkpoint_replicator.messages import BackupResult, UploaderReport
from checkpoint_replicator.records import BackupOrder
from checkpoint_uploader.machine import (
    Begin,
    Cancel,
    Effect,
    Failed,
    Finished,
    Limits,
    Moved,
    Ordered,
    Quit,
    Report,
    Uploader,
)

JOB = Job("job")
OTHER = Job("other")
LIMITS = Limits(heavy=1, light=2, tries=3, retry_least=1.0, retry_most=1.5, silent=60.0, report=1.0)
Kind = TypeVar("Kind")


def order(ident: str, kind: str = "list", name: str = "") -> BackupOrder:
    return BackupOrder(id=ident, kind=kind, name=name)


def ordered(*orders: BackupOrder, watcher: str = "w1", version: int = 1, job: Job = JOB) -> Ordered:
    return Ordered(Incarnation(watcher), job, version, orders)


def done(ident: str, kind: str = "list") -> Finished:
    return Finished(JOB, BackupResult(id=ident, kind=kind, done=True))


def uploader() -> Uploader:
    return Uploader("file:///backup", LIMITS)


def only(kind: type[Kind], effects: list[Effect]) -> list[Kind]:
    return [effect for effect in effects if isinstance(effect, kind)]


def report(effects: list[Effect], job: Job = JOB) -> UploaderReport:
    (found,) = [effect.report for effect in only(Report, effects) if effect.job == job]
    return found


def test_an_order_begins_once_however_often_it_is_repeated() -> None:
    machine = uploader()
    assert only(Begin, machine.handle(ordered(order("a")), 0.0)) == [Begin(JOB, order("a"))]
    for version in (1, 2, 3):
        assert only(Begin, machine.handle(ordered(order("a"), version=version), 0.1)) == []


def test_a_report_says_root_and_version_at_once_and_each_second() -> None:
    machine = uploader()
    assert machine.next_deadline() is None
    first = report(machine.handle(ordered(version=7), 0.0))
    assert first == UploaderReport(root="file:///backup", version=7)
    assert machine.next_deadline() == 1.0
    assert machine.handle(Ticked(), 0.5) == []
    assert report(machine.handle(Ticked(), 1.0)) == first


def test_a_result_is_reported_at_once_and_until_the_order_is_no_longer_listed() -> None:
    machine = uploader()
    machine.handle(ordered(order("a")), 0.0)
    result = BackupResult(id="a", kind="list", done=True)
    assert report(machine.handle(done("a"), 0.2)).results == (result,)
    assert report(machine.handle(Ticked(), 1.0)).results == (result,)
    machine.handle(ordered(version=2), 1.1)
    assert report(machine.handle(Ticked(), 2.0)).results == ()
    assert machine.assignments == ()


def test_progress_is_reported_while_an_order_is_in_hand() -> None:
    machine = uploader()
    machine.handle(ordered(order("a", "upload", "b1")), 0.0)
    machine.handle(Moved(JOB, "a", 4096), 0.5)
    said = report(machine.handle(Ticked(), 1.0))
    assert said.sent == {"a": 4096}
    assert said.results == (BackupResult(id="a", kind="upload", name="b1", size=4096),)


def test_a_failure_that_may_pass_is_tried_again_later_and_given_up_with_its_reason() -> None:
    machine = uploader()
    machine.handle(ordered(order("a")), 0.0)
    failed = Failed(JOB, "a", "no answer", again=True)
    assert only(Begin, machine.handle(failed, 10.0)) == []
    assert machine.next_deadline() == 11.0
    assert len(only(Begin, machine.handle(Ticked(), 11.0))) == 1
    machine.handle(failed, 20.0)
    assert only(Begin, machine.handle(Ticked(), 21.4)) == []
    assert len(only(Begin, machine.handle(Ticked(), 21.5))) == 1
    (result,) = report(machine.handle(failed, 30.0)).results
    assert (result.done, result.reason) == (False, "no answer")
    assert only(Begin, machine.handle(Ticked(), 100.0)) == []


def test_a_failure_for_good_is_answered_at_once() -> None:
    machine = uploader()
    machine.handle(ordered(order("a")), 0.0)
    (result,) = report(machine.handle(Failed(JOB, "a", "forbidden", again=False), 0.1)).results
    assert (result.done, result.reason) == (False, "forbidden")


def test_no_more_than_so_many_at_once_and_a_listing_does_not_wait_behind_uploads() -> None:
    machine = uploader()
    begun = machine.handle(
        ordered(
            order("u1", "upload", "b1"),
            order("u2", "upload", "b2"),
            order("l1"),
            order("l2"),
            order("l3"),
        ),
        0.0,
    )
    assert [effect.order.id for effect in only(Begin, begun)] == ["u1", "l1", "l2"]
    assert [effect.order.id for effect in only(Begin, machine.handle(done("l1"), 0.1))] == ["l3"]
    assert [effect.order.id for effect in only(Begin, machine.handle(done("u1", "upload"), 0.2))] == ["u2"]


def test_two_orders_for_one_backup_never_run_side_by_side() -> None:
    machine = uploader()
    begun = machine.handle(
        ordered(order("r", "reserve", "b1"), order("s", "seal", "b1"), order("t", "seal", "b2")), 0.0
    )
    assert [effect.order.id for effect in only(Begin, begun)] == ["r", "t"]
    assert [effect.order.id for effect in only(Begin, machine.handle(done("r", "reserve"), 0.1))] == ["s"]


def test_an_order_that_is_no_longer_listed_is_cancelled_and_keeps_its_place_until_its_thread_is_back() -> None:
    machine = uploader()
    machine.handle(ordered(order("u", "upload", "b1")), 0.0)
    effects = machine.handle(ordered(order("a", "abandon", "b1"), version=2), 0.1)
    assert only(Cancel, effects) == [Cancel(JOB, "u")]
    assert only(Begin, effects) == []
    effects = machine.handle(Failed(JOB, "u", "cancelled", again=True), 0.2)
    assert [effect.order.id for effect in only(Begin, effects)] == ["a"]
    assert [one.order.id for one in machine.assignments] == ["a"]


def test_an_order_that_is_listed_anew_while_it_ends_begins_again() -> None:
    machine = uploader()
    machine.handle(ordered(order("u", "upload", "b1")), 0.0)
    machine.handle(ordered(version=2), 0.1)
    assert only(Begin, machine.handle(ordered(order("u", "upload", "b1"), version=3), 0.2)) == []
    effects = machine.handle(Failed(JOB, "u", "cancelled", again=True), 0.3)
    assert [effect.order.id for effect in only(Begin, effects)] == ["u"]


def test_older_orders_of_the_same_watcher_change_nothing() -> None:
    machine = uploader()
    machine.handle(ordered(order("a"), version=5), 0.0)
    assert machine.handle(ordered(version=4), 0.1) == []
    assert [one.order.id for one in machine.assignments] == ["a"]


def test_a_new_life_of_the_watcher_is_believed_and_the_old_one_never_again() -> None:
    machine = uploader()
    machine.handle(ordered(order("a"), watcher="w1", version=90), 0.0)
    machine.handle(ordered(order("a"), order("b"), watcher="w2", version=1), 0.1)
    assert [one.order.id for one in machine.assignments] == ["a", "b"]
    assert machine.handle(ordered(watcher="w1", version=91), 0.2) == []
    assert [one.order.id for one in machine.assignments] == ["a", "b"]


def test_jobs_have_orders_of_their_own_and_a_new_watcher_that_knows_one_forgets_the_other() -> None:
    machine = uploader()
    machine.handle(ordered(order("a")), 0.0)
    effects = machine.handle(ordered(order("a"), job=OTHER), 0.1)
    assert only(Begin, effects) == [Begin(OTHER, order("a"))]
    machine.handle(ordered(version=2), 0.2)
    machine.handle(Failed(JOB, "a", "cancelled", again=True), 0.3)
    assert [one.job for one in machine.assignments] == [OTHER]
    assert only(Cancel, machine.handle(ordered(watcher="w2"), 0.4)) == [Cancel(OTHER, "a")]


def test_an_order_without_bytes_is_cancelled_and_answered_and_at_last_the_process_ends() -> None:
    machine = uploader()
    machine.handle(ordered(order("u", "upload", "b1")), 0.0)
    machine.handle(Moved(JOB, "u", 1), 30.0)
    assert only(Cancel, machine.handle(Ticked(), 89.9)) == []
    effects = machine.handle(Ticked(), 90.0)
    assert only(Cancel, effects) == [Cancel(JOB, "u")]
    assert report(effects).results[0].reason == "upload b1: no bytes for 60 s"
    assert only(Quit, machine.handle(Ticked(), 149.9)) == []
    assert only(Quit, machine.handle(Ticked(), 150.0)) == [Quit("upload b1: no bytes for 60 s")]


def test_a_thread_that_comes_back_in_time_saves_the_process() -> None:
    machine = uploader()
    machine.handle(ordered(order("u", "upload", "b1")), 0.0)
    machine.handle(Ticked(), 60.0)
    machine.handle(Failed(JOB, "u", "cancelled", again=True), 61.0)
    assert only(Quit, machine.handle(Ticked(), 500.0)) == []
    assert report(machine.handle(Ticked(), 600.0)).results[0].reason == "upload b1: no bytes for 60 s"


def test_a_late_success_stands_against_the_verdict_of_silence() -> None:
    machine = uploader()
    machine.handle(ordered(order("u", "upload", "b1")), 0.0)
    machine.handle(Ticked(), 60.0)
    assert report(machine.handle(done("u", "upload"), 61.0)).results[0].done


def test_answers_to_unknown_orders_change_nothing() -> None:
    machine = uploader()
    assert machine.handle(done("x"), 0.0) == []
    assert machine.handle(Failed(JOB, "x", "?", again=True), 0.0) == []
    assert machine.handle(Moved(JOB, "x", 1), 0.0) == []


def test_a_machine_without_room_names_no_deadline_in_the_past() -> None:
    machine = uploader()
    machine.handle(ordered(order("u1", "upload", "b1"), order("u2", "upload", "b2")), 0.0)
    machine.handle(Failed(JOB, "u1", "no answer", again=True), 0.1)
    machine.handle(Ticked(), 5.0)
    deadline = machine.next_deadline()
    assert deadline is not None
    assert deadline > 5.0
