from checkpoint_coordinator.ledger import Ledger, known
from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Epoch, Host, Incarnation, StoreId
from checkpoint_replicator.records import Lease
from checkpoint_replicator.store import AddEvent, Delete, SetHash, Snapshot

LEASE = Lease(incarnation=Incarnation("me"), token=1, host=Host("head"), reports="", beacons="")


def stamp(number: int) -> Stamp:
    return Stamp(1, Epoch(1), number)


def test_only_the_difference_is_written() -> None:
    ledger = Ledger()
    ledger.reset({"epoch": {"number": "1", "state": "running"}}, stamp(3))
    write = ledger.write({"epoch": {"number": "1", "state": "idle"}}, [], LEASE, stamp(4), 0)
    assert write is not None
    assert write.changes == (SetHash("epoch", {"state": "idle"}),)
    assert ledger.took(stamp(4)) == 0
    assert ledger.written == stamp(4)
    assert ledger.write({"epoch": {"number": "1", "state": "idle"}}, [], LEASE, stamp(4), 0) is None


def test_one_write_at_a_time_and_answers_to_others_mean_nothing() -> None:
    ledger = Ledger()
    assert ledger.write({"epoch": {"number": "1"}}, [], LEASE, stamp(1), 0) is not None
    assert ledger.resting(0)
    assert ledger.write({"epoch": {"number": "2"}}, [], LEASE, stamp(2), 0) is None
    assert not ledger.awaits(stamp(9))
    assert ledger.took(stamp(9)) == 0
    assert ledger.awaits(stamp(1))


def test_a_write_whose_answer_was_lost_is_done_again() -> None:
    ledger = Ledger()
    wanted = {"epoch": {"number": "1"}}
    first = ledger.write(wanted, [{"event": "epoch_opened"}], LEASE, stamp(1), 0)
    ledger.failed(1, 0.5)
    assert ledger.next_moment() == 1.5
    assert ledger.write(wanted, [{"event": "epoch_opened"}], LEASE, stamp(1), 1.4) is None
    assert ledger.write(wanted, [{"event": "epoch_opened"}], LEASE, stamp(1), 1.5) == first
    assert first is not None
    assert first.changes[0] == AddEvent({"stamp": "1.1.1", "event": "epoch_opened"})
    assert ledger.took(stamp(1)) == 1


def test_keys_of_others_are_left_alone_and_ours_are_removed() -> None:
    ledger = Ledger()
    ledger.reset({"mood": {"is": "good"}, "step:1.1": {"state": "saving"}, "forced": {"save": "1.1"}}, stamp(1))
    write = ledger.write({}, [], LEASE, stamp(2), 0)
    assert write is not None
    assert write.changes == (Delete("forced"), Delete("step:1.1"))


def test_a_job_that_is_forgotten_loses_every_key_and_its_events() -> None:
    ledger = Ledger()
    ledger.reset({"mood": {"is": "good"}, "step:1.1": {"state": "saving"}}, stamp(1))
    write = ledger.clear(LEASE, stamp(2), 0)
    assert write is not None
    assert write.changes == (Delete("mood"), Delete("step:1.1"), Delete("events"))
    assert ledger.clear(LEASE, stamp(3), 0) is None
    ledger.took(stamp(2))
    assert ledger.known == {}


def test_the_decision_of_an_abandoned_epoch_goes_and_earlier_ones_stay_for_people() -> None:
    ledger = Ledger()
    epochs = {f"restore:{number}": {"decision": "{}"} for number in range(1, 12)}
    ledger.reset({**epochs, "epoch": {"number": "11"}}, stamp(1))
    write = ledger.write({"epoch": {"number": "11"}}, [], LEASE, stamp(2), 0)
    assert write is not None
    gone = {change.key for change in write.changes if isinstance(change, Delete)}
    assert gone == {"restore:1", "restore:2", "restore:3", "restore:11"}
    assert [number for number, _ in ledger.decisions()] == list(range(1, 12))


def test_the_fence_is_raised_by_a_write_without_changes() -> None:
    ledger = Ledger()
    write = ledger.raise_fence(LEASE, Stamp(9, Epoch(9), 9))
    assert write.changes == ()
    assert ledger.awaits(Stamp(9, Epoch(9), 9))


def test_what_is_forgotten_is_written_anew() -> None:
    ledger = Ledger()
    ledger.reset({"epoch": {"number": "1"}}, stamp(3))
    ledger.forget()
    write = ledger.write({"epoch": {"number": "1"}}, [], LEASE, stamp(3), 0)
    assert write is not None


def test_what_is_not_as_it_was_written_is_named_and_written_anew() -> None:
    ledger = Ledger()
    wanted = {"epoch": {"number": "1"}, "keep": {"upto": "1.1"}}
    ledger.reset(wanted, stamp(3))
    assert ledger.compare({**wanted, "mood": {"is": "good"}}, stamp(3)) == ()
    assert ledger.compare({"epoch": {"number": "7"}, "keep": {"upto": "1.1"}}, stamp(4)) == ()
    assert ledger.compare({"epoch": {"number": "7"}, "keep": {"upto": "1.1"}}, stamp(3)) == ("epoch",)
    write = ledger.write(wanted, [], LEASE, stamp(4), 0)
    assert write is not None
    assert write.changes == (SetHash("epoch", {"number": "1"}),)
    assert ledger.compare({}, stamp(3)) == ()


def test_a_key_of_another_type_is_replaced_whole_or_removed() -> None:
    ledger = Ledger()
    spoilt = {"epoch": "…:epoch: WRONGTYPE", "restore:1": "…:restore:1: WRONGTYPE", "keys": "…:keys: WRONGTYPE"}
    ledger.reset(known(Snapshot(StoreId("s"), stamp(3), {}, spoilt)), stamp(3))
    write = ledger.write({"epoch": {"number": "1"}}, [], LEASE, stamp(4), 0)
    assert write is not None
    assert write.changes == (Delete("restore:1"), SetHash("epoch", {"number": "1"}, replace=True))


def test_a_write_that_failed_at_a_spoilt_key_and_raised_the_fence_does_not_keep_the_key_from_being_put_right() -> None:
    ledger = Ledger()
    wanted = {"alive": {"0": "new"}, "epoch": {"number": "1"}}
    ledger.reset({**wanted, "alive": {"0": "old"}}, stamp(3))
    assert ledger.write(wanted, [], LEASE, stamp(4), 0) is not None
    ledger.failed(0, 1)
    spoilt = known(Snapshot(StoreId("s"), stamp(4), {"epoch": {"number": "1"}}, {"alive": "…:alive: WRONGTYPE"}))
    assert ledger.compare(spoilt, stamp(5)) == ()  # another coordinator wrote
    assert ledger.compare(spoilt, stamp(4)) == ("alive",)
    write = ledger.write(wanted, [], LEASE, stamp(5), 2)
    assert write is not None
    assert write.changes == (SetHash("alive", {"0": "new"}, replace=True),)
