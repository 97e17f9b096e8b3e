"""What a fetch is told by the disk, its sources and the clock, and what it wants done: events and effects."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from checkpoint_replicator.machine import Ticked
from checkpoint_replicator.messages import Run
from checkpoint_transfer.leaves import LeafSet, Sizes
from checkpoint_transfer.source import Source

__all__ = [
    "AskLeaves",
    "AskTree",
    "Complain",
    "Frames",
    "LeavesAbsent",
    "LeavesArrived",
    "LeavesStored",
    "NameShard",
    "NamingFailed",
    "OpenPartial",
    "PartialAbsent",
    "PartialOpened",
    "PartialRefused",
    "ReceiverEffect",
    "ReceiverEvent",
    "RoomMissing",
    "ShardNamed",
    "ShardStood",
    "SourceLost",
    "SourcesChanged",
    "StoreFailed",
    "StoreLeaves",
    "TreeArrived",
    "TreeSpoiled",
]

if TYPE_CHECKING:
    Frames = Sequence[bytes | memoryview]
    """Body frames, passed through from the bus to the disk."""
else:
    Frames = tuple[bytes, ...]  # as a log of inputs is read back


class SourcesChanged(msgspec.Struct, frozen=True, tag=True):
    """These sources are to be asked from now on, the best first; what is known of those that stay is kept."""

    sources: tuple[Source, ...]


class TreeArrived(msgspec.Struct, frozen=True, tag=True):
    """A source sent what it says is the tree."""

    source: Source
    body: Frames


class TreeSpoiled(msgspec.Struct, frozen=True, tag=True):
    """What the source sent as the tree does not hash to the address, or does not parse."""

    source: Source
    reason: str


class PartialOpened(msgspec.Struct, frozen=True, tag=True):
    """The tree is known, the room reserved; these leaves are here already, verified."""

    sizes: Sizes
    have: LeafSet


class PartialAbsent(msgspec.Struct, frozen=True, tag=True):
    """Nothing of this shard is here: the tree is needed."""


class ShardStood(msgspec.Struct, frozen=True, tag=True):
    """The whole shard stands here under another name already."""


class RoomMissing(msgspec.Struct, frozen=True, tag=True):
    """There is no room for the shard; it lacks so many bytes, 0: nobody knows."""

    reason: str
    lacking: int = 0


class PartialRefused(msgspec.Struct, frozen=True, tag=True):
    """The ramdisk refuses the shard for another reason than room."""

    reason: str


class LeavesArrived(msgspec.Struct, frozen=True, tag=True):
    """A source sent leaves."""

    source: Source
    runs: tuple[Run, ...]
    body: Frames


class LeavesStored(msgspec.Struct, frozen=True, tag=True):
    """Leaves of a source were verified: the good ones are in the partial, the bad ones were thrown away."""

    source: Source
    good: tuple[int, ...]
    bad: tuple[int, ...]
    size: int
    """Of the StoreLeaves that it answers."""


class StoreFailed(msgspec.Struct, frozen=True, tag=True):
    """The ramdisk took no leaves."""

    source: Source
    size: int
    reason: str


class LeavesAbsent(msgspec.Struct, frozen=True, tag=True):
    """A source does not have these leaves (none named: what it was asked for), with `gone` never will."""

    source: Source
    runs: tuple[Run, ...]
    gone: bool
    reason: str


class SourceLost(msgspec.Struct, frozen=True, tag=True):
    """A source's socket was disconnected."""

    source: Source
    reason: str


class ShardNamed(msgspec.Struct, frozen=True, tag=True):
    """The shard stands under its names."""


class NamingFailed(msgspec.Struct, frozen=True, tag=True):
    """The shard could not be named; `clash`: another shard has one of the names, so trying again is in vain."""

    reason: str
    clash: bool = False


class OpenPartial(msgspec.Struct, frozen=True):
    """Open the partial with this tree; without one look what is there."""

    source: Source | None = None
    tree: Frames | None = None


class AskTree(msgspec.Struct, frozen=True):
    """Ask a source for the tree."""

    source: Source


class AskLeaves(msgspec.Struct, frozen=True):
    """Ask a source for leaves; `credit` bytes, these included, are asked of it and have not arrived."""

    source: Source
    runs: tuple[Run, ...]
    credit: int


class StoreLeaves(msgspec.Struct, frozen=True):
    """Verify leaves and write the good ones into the partial; `size` bytes of them had been asked for."""

    source: Source
    runs: tuple[Run, ...]
    body: Frames
    size: int


class Complain(msgspec.Struct, frozen=True):
    """Tell a source that its bytes differ from the tree."""

    source: Source
    reason: str


class NameShard(msgspec.Struct, frozen=True):
    """Every leaf is here: give the shard its names."""


ReceiverEvent = (
    SourcesChanged
    | TreeArrived
    | TreeSpoiled
    | PartialOpened
    | PartialAbsent
    | ShardStood
    | RoomMissing
    | PartialRefused
    | LeavesArrived
    | LeavesStored
    | StoreFailed
    | LeavesAbsent
    | SourceLost
    | ShardNamed
    | NamingFailed
    | Ticked
)
ReceiverEffect = OpenPartial | AskTree | AskLeaves | StoreLeaves | Complain | NameShard
