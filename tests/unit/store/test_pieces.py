from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from checkpoint_replicator.store import AddEvent, Change, Delete, SetHash, SetScores
from checkpoint_replicator.store.pieces import LIMIT, Piece, calls


def test_nothing_to_write_is_still_one_call_that_raises_the_fence() -> None:
    assert list(calls(())) == [[]]


def test_each_change_is_a_piece_in_its_order() -> None:
    changes: tuple[Change, ...] = (
        SetHash("epoch", {"a": "1", "b": "2"}, replace=True),
        SetHash("alive", {"0": "x"}),
        SetScores("steps", {"1.3": 3.0}),
        SetScores("backups", {}, replace=True),
        Delete("keep"),
        AddEvent({"event": "committed"}),
    )
    assert list(calls(changes)) == [
        [
            Piece("hash!", "epoch", ("a", "1", "b", "2")),
            Piece("hash", "alive", ("0", "x")),
            Piece("zset", "steps", ("3.0", "1.3")),
            Piece("zset!", "backups"),
            Piece("drop", "keep"),
            Piece("event", "events", ("event", "committed")),
        ]
    ]


def test_a_big_replacement_clears_the_key_once() -> None:
    pieces = list(chain.from_iterable(calls([SetHash("big", {str(n): "" for n in range(5000)}, replace=True)])))
    assert [piece.verb for piece in pieces] == ["hash!", "hash", "hash", "hash", "hash"]


@given(st.lists(st.integers(0, 3 * LIMIT), max_size=6))
def test_no_call_is_over_the_limit_and_nothing_is_lost_or_reordered(sizes: list[int]) -> None:
    changes = [SetHash(f"k{n}", {str(field): "v" for field in range(size)}) for n, size in enumerate(sizes)]
    cut = list(calls(changes))
    assert all(sum(len(piece.arguments) for piece in call) <= LIMIT for call in cut)
    assert all(call for call in cut) or cut == [[]]
    found = [(piece.name, element) for piece in chain.from_iterable(cut) for element in piece.elements]
    assert found == [(c.key, text) for c in changes for text in chain.from_iterable(c.fields.items())]
