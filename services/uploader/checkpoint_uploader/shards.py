"""The ramdisk's shards as an upload reads them."""

from collections.abc import Iterator
from contextlib import contextmanager

from checkpoint_replicator.ids import Address
from checkpoint_replicator.ramdisk import Ramdisk, Shard
from checkpoint_replicator.tree import Tree

__all__ = ["RamdiskShards"]


class RamdiskShards:
    """Opens named shards; an open one is not removed."""

    def __init__(self, ramdisk: Ramdisk) -> None:
        self._ramdisk = ramdisk

    @contextmanager
    def open(self, address: Address) -> Iterator["_Open"]:
        """See `Shards.open`."""
        with self._ramdisk.open_shard(address) as shard:
            yield _Open(shard)


class _Open:
    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    @property
    def tree(self) -> Tree:
        return self._shard.tree

    def read(self, number: int) -> bytes:
        buffer = bytearray(self._shard.tree.leaf(number).size)
        self._shard.pread_leaf(number, buffer)
        return bytes(buffer)
