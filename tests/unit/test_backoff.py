from hypothesis import given
from hypothesis import strategies as st

from checkpoint_replicator.backoff import delay, spread


def test_it_doubles_up_to_the_most() -> None:
    assert [delay(attempt, 0.2, 5, 1) for attempt in range(6)] == [0.2, 0.4, 0.8, 1.6, 3.2, 5]


def test_chance_spreads_over_the_upper_half() -> None:
    assert delay(0, 1, 5, 0) == 0.5
    assert delay(0, 1, 5, 0.5) == 0.75


@given(st.integers(-5, 10**9), st.floats(0, 1))
def test_it_is_always_within_bounds(attempt: int, chance: float) -> None:
    assert 0.1 <= delay(attempt, 0.2, 5, chance) <= 5


def test_the_spread_of_a_process_is_its_own_and_the_same_in_a_replay() -> None:
    assert spread("w1", 0) == spread("w1", 0)
    found = {spread(name, attempt) for name in ("w1", "w2") for attempt in range(50)}
    assert len(found) == 100
    assert min(found) < 0.1
    assert max(found) > 0.9
    assert all(0 <= one <= 1 for one in found)
