from checkpoint_coordinator.tenure import Change, Tenure
from checkpoint_coordinator.words import AcquireLease, LeaseAnswered, LeaseRenewed, ReleaseLease, RenewLease
from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Epoch, Host, Incarnation, StoreId
from checkpoint_replicator.records import Lease
from checkpoint_replicator.store import Denial, Renewal
from checkpoint_replicator.times import Times

LEASE = Lease(incarnation=Incarnation("me"), token=7, host=Host("head"), reports="", beacons="")


def renewal(began: float, *, held: bool = True) -> LeaseRenewed:
    return LeaseRenewed(began, Renewal(held, StoreId("s"), Stamp(7, Epoch(1), 1)), 0.0)


def holder(now: float = 100.0) -> Tenure:
    tenure = Tenure(Times())
    assert tenure.wanted(now) == [AcquireLease(now)]
    assert tenure.answered(LeaseAnswered(now, LEASE), now) is Change.TAKEN
    return tenure


def test_a_stand_by_asks_again_and_again_one_request_at_a_time() -> None:
    tenure = Tenure(Times())
    assert tenure.wanted(0) == [AcquireLease(0)]
    assert tenure.wanted(1) == []
    assert tenure.answered(LeaseAnswered(0, Denial.HELD), 1) is Change.DENIED
    assert tenure.wanted(1) == []
    assert tenure.wanted(1.5) == [AcquireLease(1.5, patient=True)]


def test_a_stand_by_leaves_an_empty_redis_to_who_had_the_lease_for_as_long_as_one_lives() -> None:
    tenure = Tenure(Times())
    tenure.wanted(0)
    tenure.answered(LeaseAnswered(0, Denial.HELD), 0)
    for now in (10.0, 15.0, 19.9):
        assert tenure.wanted(now) == [AcquireLease(now, patient=True)]
        assert tenure.answered(LeaseAnswered(now, Denial.EMPTY), now) is Change.DENIED
    assert tenure.wanted(20.4) == [AcquireLease(20.4)]
    assert tenure.answered(LeaseAnswered(20.4, LEASE), 20.4) is Change.TAKEN
    tenure.drop(21)
    assert tenure.wanted(21) == [AcquireLease(21)]  # this one remembers, and does not wait


def test_a_stand_by_of_a_redis_that_filled_again_is_patient_anew() -> None:
    tenure = Tenure(Times())
    for now, denial in ((0, Denial.HELD), (10, Denial.EMPTY), (11, Denial.HELD), (20.5, Denial.EMPTY)):
        tenure.wanted(now)
        tenure.answered(LeaseAnswered(now, denial), now)
    assert tenure.wanted(25) == [AcquireLease(25, patient=True)]


def test_the_lease_is_renewed_every_three_seconds() -> None:
    tenure = holder()
    assert tenure.wanted(102.9) == []
    assert tenure.wanted(103) == [RenewLease(103, LEASE)]
    assert tenure.renewed(renewal(103)) is Change.NOTHING
    assert tenure.next_moment(104) == 106


def test_s107_nothing_is_done_from_two_seconds_before_the_lease_would_end() -> None:
    tenure = holder()
    assert tenure.may_act(107.9)
    assert not tenure.may_act(108)
    tenure.wanted(103)
    tenure.renewed(renewal(103))  # counts from when it was asked, not from when the answer came
    assert tenure.may_act(110.9)
    assert not tenure.may_act(111)


def test_a_renewal_that_finds_no_lease_asks_for_it_anew_at_once() -> None:
    tenure = holder()
    tenure.wanted(103)
    assert tenure.renewed(renewal(103, held=False)) is Change.LOST
    assert not tenure.may_act(103.1)
    assert tenure.wanted(103.1) == [AcquireLease(103.1)]


def test_late_answers_to_earlier_requests_mean_nothing() -> None:
    tenure = holder()
    tenure.wanted(103)
    assert tenure.renewed(renewal(99, held=False)) is Change.NOTHING
    assert tenure.answered(LeaseAnswered(42, Denial.HELD), 103) is Change.NOTHING
    assert tenure.lease == LEASE


def test_while_redis_is_away_it_is_asked_again_and_the_lease_not_forgotten() -> None:
    tenure = holder()
    tenure.wanted(103)
    tenure.failed(104, 0.5)
    assert tenure.lease == LEASE
    assert tenure.wanted(104.4) == []
    assert tenure.wanted(104.5) == [RenewLease(104.5, LEASE)]


def test_a_lease_given_back_is_taken_with_a_higher_token() -> None:
    tenure = holder()
    assert tenure.give_back(101) == [ReleaseLease(LEASE)]
    assert not tenure.may_act(101)
    assert tenure.wanted(101) == [AcquireLease(101)]


def test_s117_a_stopped_coordinator_gives_back_and_asks_no_more() -> None:
    tenure = holder()
    assert tenure.stop(101) == [ReleaseLease(LEASE)]
    assert tenure.wanted(200) == []
    assert tenure.next_moment(200) is None
    assert tenure.answered(LeaseAnswered(101, LEASE), 102) is Change.NOTHING


def test_a_lease_is_counted_from_when_it_was_asked_for_and_not_from_the_answer() -> None:
    tenure = Tenure(Times())
    tenure.wanted(100.0)
    tenure.answered(LeaseAnswered(100.0, LEASE), 104.0)
    assert tenure.may_act(107.9)
    assert not tenure.may_act(108.0)
