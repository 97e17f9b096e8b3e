import pytest

from checkpoint_replicator.liveness import Life, Pace, Progress, is_common_fault, life, moved, pace
from checkpoint_replicator.times import Times

TIMES = Times()


@pytest.mark.parametrize(("silence", "state"), [(0, Life.OK), (5.9, Life.OK), (6, Life.SUSPECT), (20, Life.LOST)])
def test_a_host_is_judged_by_its_silence(silence: float, state: Life) -> None:
    assert life(silence, TIMES) is state


def test_each_limit_takes_effect() -> None:
    times = Times(report=0.2, report_gap=0.1, orders=0.3, suspect=0.5, lost=11, stuck=7)
    assert life(0.5, times) is Life.SUSPECT
    assert life(10.9, times) is Life.SUSPECT
    assert life(11, times) is Life.LOST
    assert pace(0, Progress(1, 2, 0), 6.9, times).pace is Pace.SLOW
    assert pace(0, Progress(1, 2, 0), 7, times).pace is Pace.STUCK


def test_s17_a_laggard_is_dead_stuck_or_slow() -> None:
    assert pace(7, Progress(1, 9, 100), 100, TIMES).reason == "dead: no report for 7 s"
    assert pace(1, Progress(1, 9, 88), 100, TIMES).reason == "stuck: 1 of 9 bytes, no progress for 12 s"
    assert pace(1, Progress(1, 9, 99), 100, TIMES).reason == "slow: 1 of 9 bytes"
    assert pace(1, None, 100, TIMES).pace is Pace.STUCK


def test_progress_moves_its_moment_only_with_its_reading() -> None:
    first = moved(None, 1, 9, 10)
    assert moved(first, 1, 9, 20) is first
    assert moved(first, 2, 9, 20) == Progress(2, 9, 20)


def test_more_than_a_third_silent_together_is_a_fault_of_store_or_network() -> None:
    assert is_common_fault([0, 0, 8, 9], TIMES)
    assert not is_common_fault([0, 0, 0, 9], TIMES)
    assert not is_common_fault([0, 0, 0, 0, 8, 9], TIMES)
    assert is_common_fault([0, 0, 0, 0, 7, 8, 9], TIMES)


def test_one_host_is_never_a_common_fault() -> None:
    assert not is_common_fault([9], TIMES)
    assert not is_common_fault([0, 9], TIMES)


def test_hosts_that_fell_silent_one_after_another_are_lost_one_by_one() -> None:
    assert not is_common_fault([0, 0, 8, 60], TIMES)
