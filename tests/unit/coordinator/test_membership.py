"""Scripts: sessions come and go, and what the rendezvous says."""

import msgspec
import pytest

from checkpoint_coordinator.membership import Abandon, Join, Membership, Open, Step, Wait, ranks_text
from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Epoch, Host, Job, Rank, SessionId
from checkpoint_replicator.records import EpochRecord, EpochState, Member
from checkpoint_replicator.session import Session, SessionSpec, SessionState
from checkpoint_replicator.shape import Shape
from checkpoint_replicator.times import Times

TWO, THREE = Shape(2, 1, 1, "pytorch"), Shape(3, 1, 1, "pytorch")
HOSTS = frozenset(map(Host, "abcdef"))
OPEN, RUNNING, CLOSED = SessionState.OPEN, SessionState.RUNNING, SessionState.CLOSED


def session(name: str, rank: int, state: SessionState = OPEN, shape: Shape = TWO, epoch: int = 0) -> Session:
    spec = SessionSpec(job=Job("run"), rank=Rank(rank), shape=shape)
    return Session(id=SessionId(name), spec=spec, state=state, epoch=Epoch(epoch))


def record(
    *members: tuple[int, str, str], released: bool = False, state: EpochState = EpochState.RESTORING
) -> EpochRecord:
    return EpochRecord(
        number=Epoch(4),
        stamp=Stamp(1, Epoch(4), 9),
        state=EpochState.RUNNING if released else state,
        shape=TWO,
        members=tuple(Member(rank=Rank(r), host=Host(h), session=SessionId(s)) for r, h, s in members),
        released=released,
    )


class Script:
    """A membership and its clock."""

    def __init__(self) -> None:
        self.membership = Membership(Times())
        self.now = 100.0
        self.last: EpochRecord | None = None

    def says(self, host: str, session: Session | None) -> tuple[str, ...]:
        return self.membership.take(Host(host), session, self.now)

    def step(
        self,
        *,
        saved: bool = False,
        barred: str = "",
        settled: float = float("inf"),
        failing: bool = False,
        live: str = "abcdef",
    ) -> Step:
        return self.membership.step(
            self.last,
            frozenset(map(Host, live)),
            self.now,
            saved=saved,
            barred=barred,
            settled=settled,
            failing=failing,
        )


@pytest.fixture
def script() -> Script:
    return Script()


def test_the_epoch_opens_when_every_rank_has_an_open_session(script: Script) -> None:
    script.says("a", session("s0", 0))
    waiting = script.step()
    assert isinstance(waiting, Wait)
    assert waiting.reason == "waiting for 1 of 2 nodes: rank 1 did not come"
    script.says("b", session("s1", 1))
    opened = script.step()
    assert isinstance(opened, Open)
    assert [(m.rank, m.host, m.session) for m in opened.members] == [(0, "a", "s0"), (1, "b", "s1")]


def test_the_same_sessions_do_not_open_a_second_epoch(script: Script) -> None:
    script.says("a", session("s0", 0))
    script.says("b", session("s1", 1))
    script.last = record((0, "a", "s0"), (1, "b", "s1"))
    assert script.step() == Wait("")


def test_the_same_sessions_open_the_next_epoch_when_the_decision_is_lost(script: Script) -> None:
    script.says("a", session("s0", 0))
    script.says("b", session("s1", 1))
    script.last = record((0, "a", "s0"), (1, "b", "s1"))
    step = script.membership.step(script.last, HOSTS, script.now, saved=False, barred="it is lost", lost_decision=True)
    assert isinstance(step, Open)


def test_a_lost_host_is_waited_for_by_name(script: Script) -> None:
    script.says("a", session("s0", 0))
    script.says("b", session("s1", 1))
    step = script.step(live="a")
    assert isinstance(step, Wait)
    assert "rank 1 on b: no report any more" in step.reason


def test_a_running_session_is_not_gathered(script: Script) -> None:
    script.last = record((0, "a", "s0"), (1, "b", "s1"), released=True)
    script.says("a", session("s0", 0, RUNNING, epoch=4))
    script.says("b", session("n1", 1))
    step = script.step(saved=True)
    assert isinstance(step, Wait)
    assert "rank 0 still running in epoch 4 and saved already" in step.reason


def test_a_released_session_that_has_not_published_yet_counts_as_running(script: Script) -> None:
    script.last = record((0, "a", "s0"), (1, "b", "s1"), released=True)
    script.says("a", session("s0", 0))
    script.says("b", session("n1", 1))
    assert isinstance(script.step(saved=True), Wait)


def test_a_new_session_joins_the_released_epoch_without_a_save(script: Script) -> None:
    script.last = record((0, "a", "s0"), (1, "b", "s1"), released=True)
    script.says("a", session("s0", 0, RUNNING, epoch=4))
    script.says("b", session("n1", 1))
    step = script.step()
    assert isinstance(step, Join)
    assert step.joined == (1,)
    assert [m.session for m in step.members] == ["s0", "n1"]
    barred = script.step(barred="save 1.5 is ordered")
    assert isinstance(barred, Wait)
    assert "rank 0 still running in epoch 4 (save 1.5 is ordered)" in barred.reason


def test_a_session_that_came_after_the_last_look_for_orders_does_not_join_yet(script: Script) -> None:
    script.last = record((0, "a", "s0"), (1, "b", "s1"), (2, "c", "s2"), released=True)
    script.last = msgspec.structs.replace(script.last, shape=THREE)
    script.says("a", session("s0", 0, RUNNING, shape=THREE, epoch=4))
    script.says("b", session("n1", 1, shape=THREE))
    script.now += 1
    script.says("c", session("n2", 2, shape=THREE))
    assert [seat.rank for seat in script.membership.coming(script.last, HOSTS)] == [1, 2]
    step = script.step(settled=100.0)
    assert isinstance(step, Join)
    assert step.joined == (1,)
    assert script.step(settled=99.0) == Wait("waiting for the backup store, which may hold a restore.version")


def test_who_opens_the_next_epoch_together_joins_nothing(script: Script) -> None:
    script.last = record((0, "a", "s0"), (1, "b", "s1"), released=True)
    assert script.membership.coming(None, HOSTS) == ()
    script.says("a", session("n0", 0))
    assert len(script.membership.coming(script.last, HOSTS)) == 1
    script.says("b", session("n1", 1))
    assert script.membership.coming(script.last, HOSTS) == ()


def test_another_shape_does_not_join(script: Script) -> None:
    script.last = record((0, "a", "s0"), (1, "b", "s1"), released=True)
    script.says("a", session("s0", 0, RUNNING, epoch=4))
    script.says("b", session("n1", 1, shape=THREE))
    assert isinstance(script.step(), Wait)


def test_a_session_replaced_before_the_release_abandons_the_epoch(script: Script) -> None:
    script.last = record((0, "a", "s0"), (1, "b", "s1"))
    script.says("a", session("s0", 0))
    script.says("b", session("n1", 1))
    assert script.step() == Abandon("rank 1 has a new session on b")


def test_a_session_closed_before_the_release_abandons_the_epoch(script: Script) -> None:
    script.last = record((0, "a", "s0"), (1, "b", "s1"))
    script.says("a", session("s0", 0, CLOSED))
    script.says("b", session("s1", 1))
    assert script.step() == Abandon("rank 0 on a closed its session")


def test_a_decision_to_fail_stands_until_the_last_session_has_read_it(script: Script) -> None:
    script.last = record((0, "a", "s0"), (1, "b", "s1"), state=EpochState.DECIDING)
    script.says("a", session("s0", 0, CLOSED))
    script.says("b", session("s1", 1))
    assert isinstance(script.step(failing=True), Wait)
    assert isinstance(script.step(failing=True, live="a"), Abandon)
    script.says("b", session("s1", 1, CLOSED))
    assert isinstance(script.step(failing=True), Abandon)


def test_after_a_take_over_a_member_that_has_not_reported_yet_abandons_nothing(script: Script) -> None:
    script.last = record((0, "a", "s0"), (1, "b", "s1"))
    script.says("a", session("s0", 0))
    assert isinstance(script.step(), Wait)


def test_after_an_abandonment_the_next_opening_waits_for_quiet(script: Script) -> None:
    script.last = record((0, "a", "s0"), (1, "b", "s1"))
    script.says("a", session("s0", 0))
    script.says("b", session("n1", 1))
    assert isinstance(script.step(), Abandon)
    script.last = record(state=EpochState.GATHERING)
    assert isinstance(script.step(), Wait)
    assert script.membership.next_moment() == 103
    script.now = 102.9
    assert isinstance(script.step(), Wait)
    script.now = 103
    assert isinstance(script.step(), Open)


def test_new_sessions_hold_up_the_next_opening_for_15_seconds_at_most(script: Script) -> None:
    script.last = record((0, "a", "s0"), (1, "b", "s1"))
    script.says("a", session("s0", 0))
    script.says("b", session("n", 1))
    assert isinstance(script.step(), Abandon)
    script.last = record(state=EpochState.GATHERING)
    for second in range(1, 15):
        script.now = 100.0 + second
        script.says("b", session(f"n{second}", 1))
        assert isinstance(script.step(), Wait)
    script.now = 115
    script.says("b", session("last", 1))
    assert isinstance(script.step(), Open)


def test_disagreeing_shapes_are_refused_after_ten_seconds_naming_both(script: Script) -> None:
    script.says("a", session("s0", 0))
    script.says("b", session("s1", 1, shape=THREE))
    assert isinstance(script.step(), Wait)
    assert script.membership.refused == {}
    script.now += 10
    script.step()
    assert set(script.membership.refused) == {"s0", "s1"}
    text = script.membership.refused[SessionId("s0")]
    assert "rank 0 of 2 nodes x 1 worker" in text
    assert "rank 1 of 3 nodes x 1 worker" in text


def test_a_corrected_yaml_ends_the_quarrel(script: Script) -> None:
    script.says("a", session("s0", 0))
    script.says("b", session("s1", 1, shape=THREE))
    script.step()
    script.now += 9
    script.says("b", session("s2", 1))
    assert isinstance(script.step(), Open)


def test_s33_of_two_sessions_of_a_rank_the_later_wins_and_the_earlier_never_again(script: Script) -> None:
    script.says("a", session("s0", 0))
    notes = script.says("c", session("later", 0))
    assert notes == ("rank 0 was taken over by a later session on host c",)
    script.says("a", session("s0", 0))
    assert script.membership.seats[Rank(0)].host == "c"
    assert "s0" in script.membership.refused


def test_s33_after_a_take_over_whoever_differs_from_the_known_session_is_later(script: Script) -> None:
    script.membership.recall([(Rank(0), SessionId("old"))], [(Rank(0), SessionId("older"))])
    script.says("c", session("new", 0))
    script.says("a", session("old", 0))
    script.says("b", session("older", 0))
    assert script.membership.seats[Rank(0)].session.id == "new"


def test_s33_a_rank_out_of_range_is_refused(script: Script) -> None:
    assert script.says("a", session("s", 2)) == ("rank 2 is out of range: the job has 2 nodes, expected 0 to 1",)
    assert script.says("a", session("s", 2)) == ()
    assert script.membership.seats == {}


def test_a_host_that_takes_another_rank_leaves_its_old_seat(script: Script) -> None:
    script.says("a", session("s0", 0))
    script.says("a", session("s1", 1))
    assert set(script.membership.seats) == {1}
    assert "s0" in script.membership.superseded


def test_a_host_without_a_session_may_resume_its_old_one(script: Script) -> None:
    script.says("a", session("s0", 0))
    script.says("a", None)
    assert script.membership.seats == {}
    script.says("a", session("s0", 0))
    assert script.membership.seats[Rank(0)].session.id == "s0"


def test_what_is_remembered_is_bounded(script: Script) -> None:
    for number in range(3000):
        script.says("a", session(f"s{number}", 0))
        script.says("b", session(f"bad{number}", 9))
    assert len(script.membership.superseded) <= 1024
    assert len(script.membership.refused) <= 1024


def test_ranks_are_named_a_few_of_them() -> None:
    assert ranks_text([3]) == "rank 3"
    assert ranks_text([2, 1]) == "ranks 1, 2"
    assert ranks_text(range(20)) == "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 12 more"
