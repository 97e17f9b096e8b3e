"""Changes as the arguments of `apply.lua`, cut so that no call blocks the server for long."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final, assert_never

import msgspec

from checkpoint_replicator.store import AddEvent, Change, Delete, SetHash, SetScores

__all__ = ["LIMIT", "Piece", "calls"]

LIMIT: Final = 4000
"""Most elements in one call of the script; Lua's `unpack` would take about 8,000."""


class Piece(msgspec.Struct, frozen=True):
    """A change, or a part of one: what the script does to the key `name` with these elements."""

    verb: str
    name: str
    elements: tuple[str, ...] = ()

    @property
    def arguments(self) -> tuple[str, ...]:
        """Return the piece as the script reads it."""
        return (self.verb, self.name, str(len(self.elements)), *self.elements)


def calls(changes: Sequence[Change]) -> Iterator[list[Piece]]:
    """Yield the pieces of each call, in the order of the changes; one empty call where there is nothing to write."""
    call: list[Piece] = []
    room = LIMIT
    for piece in chain.from_iterable(map(_cut, changes)):
        cost = len(piece.arguments)
        if call and cost > room:
            yield call
            call, room = [], LIMIT
        call.append(piece)
        room -= cost
    yield call


def _cut(change: Change) -> Iterator[Piece]:
    match change:
        case SetHash(key=key, fields=fields, replace=replace):
            yield from _set("hash", key, tuple(fields.items()), replace=replace)
        case SetScores(key=key, scores=scores, replace=replace):
            yield from _set("zset", key, tuple((repr(score), name) for name, score in scores.items()), replace=replace)
        case Delete(key=key):
            yield Piece("drop", key)
        case AddEvent(fields=fields):
            yield Piece("event", "events", tuple(chain.from_iterable(fields.items())))
        case _:
            assert_never(change)


def _set(verb: str, name: str, pairs: Sequence[tuple[str, str]], *, replace: bool) -> Iterator[Piece]:
    mark = "!" if replace else ""
    if not pairs:
        yield Piece(verb + mark, name)
    for start in range(0, len(pairs), LIMIT // 4):
        yield Piece(verb + mark, name, tuple(chain.from_iterable(pairs[start : start + LIMIT // 4])))
        mark = ""
