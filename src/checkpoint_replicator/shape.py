"""The shape of a job, and whether data of one shape fits another."""

from typing import Annotated

import msgspec

from checkpoint_replicator.ids import Rank

__all__ = ["FRAMEWORKS", "Shape"]

FRAMEWORKS = ("pytorch", "pytorch.distributed")
"""Values of `framework` that the watcher understands."""


class Shape(msgspec.Struct, frozen=True, order=True):
    """(nodes, workers, d, framework); recorded with every save and backup.

    Attributes:
        nodes: number of nodes of the job, at least 1.
        workers: number of shards that each node saves, at least 1.
        d: data parallelism; nodes r and r + nodes / d save twins. 1 means no twins.
        framework: one of `FRAMEWORKS`.
    """

    nodes: Annotated[int, msgspec.Meta(ge=1, le=65536)]
    workers: Annotated[int, msgspec.Meta(ge=1, le=65536)]
    d: Annotated[int, msgspec.Meta(ge=1, le=65536)]
    framework: str

    def __str__(self) -> str:
        twins = f", d={self.d}" if self.d > 1 else ""
        return f"{_count(self.nodes, 'node')} x {_count(self.workers, 'worker')}{twins}, {self.framework}"

    def fits(self, other: "Shape") -> bool:
        """Tell whether data saved in this shape can be restored by a job of the other one.

        Equal shapes fit; else workers, framework and nodes / d must be equal (the columns of the model).
        """
        if self == other:
            return True
        return (
            self.workers == other.workers
            and self.framework == other.framework
            and self.nodes % self.d == 0
            and other.nodes % other.d == 0
            and self.columns == other.columns
        )

    @property
    def columns(self) -> int:
        """Number of nodes whose shards make up one model copy."""
        return max(1, self.nodes // self.d)

    def twins(self, column: int) -> tuple[Rank, ...]:
        """Ranks of this shape that saved the same column."""
        return tuple(Rank(rank) for rank in range(self.nodes) if rank % self.columns == column)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
