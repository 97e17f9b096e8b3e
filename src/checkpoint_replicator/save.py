"""A save and its shards."""

import re
from functools import lru_cache
from typing import Final

import msgspec

from checkpoint_replicator.ids import Address, Epoch, Job, Number, Rank, Step, Worker
from checkpoint_replicator.shape import Shape

__all__ = ["Save", "ShardKey", "Tag", "parse_save", "shards_of"]

_TEXT: Final = re.compile(r"[0-9]{1,16}\.[0-9]{1,16}")


class Save(msgspec.Struct, frozen=True, order=True):
    """(epoch, step): all shards of a step saved in one epoch. The newest is the highest."""

    epoch: Epoch
    step: Step

    def __str__(self) -> str:
        return f"{self.epoch}.{self.step}"


class ShardKey(msgspec.Struct, frozen=True, order=True):
    """Which part of a save: the one of this worker on the node with this rank."""

    rank: Rank
    worker: Worker

    def __str__(self) -> str:
        return f"n{self.rank}/w{self.worker}"


class Tag(msgspec.Struct, frozen=True, order=True):
    """What a shard's bytes are: whose, of which save, in which shape, under which address.

    The sidecar of a shard on a ramdisk holds it, an Offer carries it, so a copy keeps the save's own epoch and shape.
    """

    job: Job
    save: Save
    shape: Shape
    key: ShardKey
    address: Address
    size: Number
    """Sum of the files' sizes in bytes."""

    @property
    def name(self) -> str:
        """The public name without its ending: `<job>-s<step>-n<rank>-w<worker>`."""
        return f"{self.job}-s{self.save.step}-n{self.key.rank}-w{self.key.worker}"


def parse_save(text: str) -> Save:
    """Read `epoch.step`.

    Raises:
        ValueError: the text has another form.
    """
    if _TEXT.fullmatch(text) is None:
        raise ValueError(f"expected epoch.step, found {text[:60]!r}")
    epoch, step = map(int, text.split("."))
    return msgspec.convert({"epoch": epoch, "step": step}, Save)


@lru_cache(maxsize=8)
def shards_of(shape: Shape) -> tuple[ShardKey, ...]:
    """Every shard that a save of this shape must have."""
    return tuple(ShardKey(Rank(rank), Worker(worker)) for rank in range(shape.nodes) for worker in range(shape.workers))
