"""The ramdisk of a node, on which the trainer saves: who may see what, under which name, and since when.

Public, by the trainer contract, are `<job>-s<step>-n<rank>-w<worker>.meta`, `<address>.data` and the markers; all else
stands below `.replicator/` of the same file system, so that every name is given by one rename.
"""

from checkpoint_replicator.ramdisk.documents import (
    FenceRecord,
    JobFence,
    StatusRecord,
)
from checkpoint_replicator.ramdisk.layout import Layout, ShardName, parse_data, parse_name
from checkpoint_replicator.ramdisk.locks import Hold
from checkpoint_replicator.ramdisk.partial import Partial
from checkpoint_replicator.ramdisk.ramdisk import Claim, Ramdisk
from checkpoint_replicator.ramdisk.register import Recovery
from checkpoint_replicator.ramdisk.room import inodes_for
from checkpoint_replicator.ramdisk.shard import Shard
from checkpoint_replicator.ramdisk.sidecar import Inventory, Sidecar

__all__ = [
    "Claim",
    "FenceRecord",
    "Hold",
    "Inventory",
    "JobFence",
    "Layout",
    "Partial",
    "Ramdisk",
    "Recovery",
    "Shard",
    "ShardName",
    "Sidecar",
    "StatusRecord",
    "inodes_for",
    "parse_data",
    "parse_name",
]
