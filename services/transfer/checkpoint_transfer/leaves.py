"""Sets of leaves and runs of leaves: pure arithmetic on leaf numbers."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from checkpoint_replicator.messages import Run

__all__ = ["CHUNK_BYTES", "CHUNK_LEAVES", "LeafSet", "Sizes", "cut", "fit", "leaves_in", "runs_of", "size_of"]

CHUNK_BYTES: Final = 4 << 20
"""Most bytes that one Leaves message carries: four leaves of 1 MiB."""
CHUNK_LEAVES: Final = 512
"""Most leaves that one Leaves message carries, where the files are small."""

Sizes = Sequence[int]
"""Size of each leaf of a shard in bytes, in the tree's order."""


class LeafSet:
    """Which leaves of a shard are here. Shared: its receiver adds, those who serve the shard look."""

    __slots__ = ("_marks", "count")

    def __init__(self, marks: bytes | bytearray) -> None:
        """Take one byte a leaf: 1 = here, 0 = not."""
        self._marks = bytearray(marks)
        self.count = self._marks.count(1)

    @classmethod
    def full(cls, leaves: int) -> "LeafSet":
        """Return the set of all leaves of a whole shard."""
        return cls(b"\1" * leaves)

    @classmethod
    def empty(cls, leaves: int) -> "LeafSet":
        """Return a set without leaves."""
        return cls(bytes(leaves))

    def __repr__(self) -> str:
        return f"<LeafSet {self.count} of {len(self._marks)}>"

    def __len__(self) -> int:
        """Return how many leaves the shard has, here or not."""
        return len(self._marks)

    def __contains__(self, leaf: int) -> bool:
        return self._marks[leaf] == 1

    def __iter__(self) -> Iterator[int]:
        return (leaf for leaf, mark in enumerate(self._marks) if mark)

    @property
    def is_full(self) -> bool:
        """Whether every leaf is here."""
        return self.count == len(self._marks)

    def add(self, leaf: int) -> bool:
        """Add a leaf; False when it was here already."""
        if self._marks[leaf]:
            return False
        self._marks[leaf] = 1
        self.count += 1
        return True


def leaves_in(runs: Iterable[Run]) -> Iterator[int]:
    """Yield the leaf numbers of the runs, in their order."""
    for run in runs:
        yield from range(run.first, run.first + run.count)


def runs_of(leaves: Iterable[int]) -> tuple[Run, ...]:
    """Join leaf numbers that follow one another into runs, keeping the order."""
    runs: list[Run] = []
    first = end = -1
    for leaf in leaves:
        if leaf == end:
            end += 1
            continue
        if end > first:
            runs.append(Run(first=first, count=end - first))
        first, end = leaf, leaf + 1
    if end > first:
        runs.append(Run(first=first, count=end - first))
    return tuple(runs)


def fit(runs: Sequence[Run], leaves: int) -> bool:
    """Tell whether every run lies within a shard of so many leaves, and all together are no more than it has."""
    return (
        len(runs) <= leaves
        and all(run.first >= 0 and 0 < run.count <= leaves - run.first for run in runs)
        and sum(run.count for run in runs) <= leaves
    )


def size_of(leaves: Iterable[int], sizes: Sizes) -> int:
    """Sum the sizes of the leaves."""
    return sum(sizes[leaf] for leaf in leaves)


def cut(leaves: Iterable[int], sizes: Sizes, room: int = CHUNK_BYTES) -> tuple[list[int], int]:
    """Take leaves for one message: at most `CHUNK_LEAVES`, `CHUNK_BYTES` and `room` bytes; returns them and their size.

    The taking stops at the first leaf that does not fit, so that order is kept.
    """
    room = min(room, CHUNK_BYTES)
    taken: list[int] = []
    total = 0
    for leaf in leaves:
        size = sizes[leaf]
        if total + size > room or len(taken) == CHUNK_LEAVES:
            break
        taken.append(leaf)
        total += size
    return taken, total
