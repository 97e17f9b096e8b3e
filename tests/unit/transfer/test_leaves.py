import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint_replicator.messages import Run
from checkpoint_transfer.leaves import CHUNK_BYTES, CHUNK_LEAVES, LeafSet, cut, fit, leaves_in, runs_of, size_of

MIB = 1 << 20


def test_a_set_counts_each_leaf_once() -> None:
    leaves = LeafSet.empty(3)
    assert leaves.add(1)
    assert not leaves.add(1)
    assert (leaves.count, list(leaves), 1 in leaves, 0 in leaves) == (1, [1], True, False)
    assert not leaves.is_full


def test_the_set_of_a_whole_or_an_empty_shard_is_full() -> None:
    assert LeafSet.full(3).is_full
    assert LeafSet.empty(0).is_full
    assert len(LeafSet(b"\1\0")) == 2


@given(st.lists(st.integers(0, 50), unique=True))
def test_runs_name_the_leaves_in_their_order(leaves: list[int]) -> None:
    assert list(leaves_in(runs_of(leaves))) == leaves


def test_neighbours_join_into_one_run() -> None:
    assert runs_of([4, 5, 6, 2, 3]) == (Run(first=4, count=3), Run(first=2, count=2))


@pytest.mark.parametrize(
    "run",
    [
        Run(first=-1, count=1),
        Run(first=0, count=0),
        Run(first=3, count=1),
        Run(first=2, count=2),
        Run(first=0, count=1 << 62),
    ],
)
def test_a_run_outside_of_the_shard_does_not_fit(run: Run) -> None:
    assert not fit((run,), 3)


def test_runs_that_name_more_leaves_than_there_are_do_not_fit() -> None:
    whole = Run(first=0, count=3)
    assert fit((whole,), 3)
    assert not fit((whole, whole), 3)
    assert not fit((Run(first=0, count=1),) * 4, 3)


def test_a_message_takes_four_whole_leaves() -> None:
    assert cut(range(9), [MIB] * 9) == ([0, 1, 2, 3], CHUNK_BYTES)


def test_a_message_takes_many_small_leaves() -> None:
    leaves, size = cut(range(2000), [100] * 2000)
    assert (len(leaves), size) == (CHUNK_LEAVES, CHUNK_LEAVES * 100)


def test_a_message_stops_at_the_first_leaf_that_does_not_fit() -> None:
    assert cut([0, 1, 2], [MIB, MIB, 1], room=MIB + 5) == ([0], MIB)
    assert cut([0], [MIB], room=5) == ([], 0)


def test_sizes_add_up() -> None:
    assert size_of([0, 2], [1, 2, 4]) == 5
