from checkpoint_replicator.ids import Host
from checkpoint_transfer.patience import Patience
from checkpoint_transfer.source import Source
from checkpoint_transfer.supply import Supply


def supply() -> Supply:
    return Supply(Source(Host("a")), Patience())


def test_bytes_move_from_asked_to_stored() -> None:
    one = supply()
    one.ask({1: 10, 2: 20}, 0.0)
    assert one.arrived([2, 3]) == 20
    assert (one.asked_bytes, one.storing_bytes) == (10, 20)
    assert one.forget() == ([1], 10)
    assert not one.is_busy


def test_an_answer_is_overdue_after_five_seconds_from_the_last_word() -> None:
    one = supply()
    one.ask({1: 10}, 100.0)
    assert not one.is_overdue(104.9)
    one.spoke(104.0)
    assert one.deadline() == 109.0
    assert one.is_overdue(109.0)


def test_failures_make_it_rest_longer_until_it_is_given_up() -> None:
    one = supply()
    one.missed(0.0, "silent")
    assert not one.is_ready(0.1)
    assert one.is_ready(0.2)
    one.missed(1.0, "silent")
    assert one.rest_ends() == 1.4
    one.missed(2.0, "silent")
    assert (one.is_usable, one.verdict) == (False, "silent (3 times)")


def test_progress_ends_the_memory_of_failures() -> None:
    one = supply()
    one.missed(0.0, "silent")
    one.heard(1.0)
    assert one.is_healthy(1.0)
    assert one.verdict == ""


def test_a_rest_ends_when_its_time_has_passed() -> None:
    one = supply()
    one.missed(0.0, "silent")
    one.wake(0.1)
    assert one.rest_ends() == 0.2
    one.wake(0.2)
    assert one.rest_ends() is None


def test_a_leaf_may_be_given_until_it_came_corrupt_twice() -> None:
    one = supply()
    assert not one.spoil(4)
    assert one.may_give(4)
    assert one.spoil(4)
    assert not one.may_give(4)
    assert one.may_give(5)
    assert one.verdict == "gave leaf 4 corrupt 2 times"


def test_a_source_of_garbage_is_given_up() -> None:
    one = supply()
    for leaf in range(16):
        one.spoil(leaf)
    assert one.given_up == "gave 16 corrupt leaves"
