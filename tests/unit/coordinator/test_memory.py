from checkpoint_coordinator.memory import Memory
from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Epoch


def stamp(token: int, number: int) -> Stamp:
    return Stamp(token, Epoch(1), number)


def left(written: Stamp) -> Memory:
    memory = Memory()
    memory.leave(written)
    return memory


def test_who_has_led_nothing_remembers_nothing() -> None:
    assert not Memory().begin(stamp(1, 0), empty=True)


def test_redis_that_holds_the_last_write_or_a_later_one_is_the_later() -> None:
    memory = left(stamp(5, 40))
    assert not memory.begin(stamp(6, 40), empty=False)
    assert not memory.begin(stamp(7, 41), empty=False)


def test_redis_that_went_back_is_the_earlier_whatever_its_token() -> None:
    assert left(stamp(5, 40)).begin(stamp(6, 39), empty=False)
    assert left(stamp(5, 40)).begin(stamp(1, 0), empty=True)
    assert left(stamp(5, 40)).begin(stamp(900, 39), empty=False)


def test_redis_that_kept_the_fence_and_lost_the_rest_is_the_earlier() -> None:
    assert left(stamp(5, 40)).begin(stamp(6, 40), empty=True)


def test_redis_stays_the_earlier_while_only_we_write_until_all_is_written() -> None:
    memory = left(stamp(5, 40))
    assert memory.begin(stamp(1, 0), empty=True)
    memory.wrote(stamp(5, 43))
    memory.leave(stamp(5, 43))
    assert memory.begin(stamp(6, 43), empty=True)
    memory.wrote(stamp(6, 50))
    assert memory.begin(stamp(7, 50), empty=False)
    memory.written()
    memory.leave(stamp(7, 60))
    assert not memory.begin(stamp(8, 60), empty=False)
    assert memory.begin(stamp(8, 59), empty=False)


def test_a_write_of_another_makes_redis_the_later_again() -> None:
    memory = left(stamp(5, 40))
    assert memory.begin(stamp(1, 0), empty=True)
    memory.wrote(stamp(5, 43))
    assert not memory.begin(stamp(7, 44), empty=False)


def test_nodes_that_followed_another_coordinator_make_the_memory_history() -> None:
    memory = left(stamp(5, 40))
    assert not memory.outdone(stamp(9, 9))
    assert memory.begin(stamp(1, 0), empty=True)
    assert not memory.outdone(stamp(5, 99))
    assert memory.outdone(stamp(6, 1))
