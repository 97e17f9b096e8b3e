"""What the transfer's machine is told by its shell, and what it wants done: events and effects."""

import msgspec

from checkpoint_replicator.ids import NO_JOB, Address, Job
from checkpoint_replicator.messages import (
    Leaves,
    NotYet,
    Offer,
    Party,
    Refused,
    Run,
    Stored,
    TransferOrders,
    TransferReport,
    Want,
)
from checkpoint_replicator.records import Peer
from checkpoint_replicator.save import Tag
from checkpoint_transfer.leaves import Sizes
from checkpoint_transfer.receiving import Frames, ReceiverEvent
from checkpoint_transfer.source import Source

__all__ = [
    "NO_JOB",
    "Addressed",
    "CheckShard",
    "Close",
    "FetchMoved",
    "ForgetPeer",
    "LeavesUnsent",
    "MessageCame",
    "NameShard",
    "Naming",
    "OfferUnsent",
    "OpenPartial",
    "OpenShard",
    "PeerLost",
    "Report",
    "Reserve",
    "SendOffer",
    "ServeLeaves",
    "ShardAbsent",
    "ShardChecked",
    "ShardOpened",
    "ShardsFound",
    "StoreLeaves",
    "Tell",
    "TellUploader",
    "TransferEffect",
    "TransferEvent",
    "TrimPartials",
    "Wire",
]

Addressed = Offer | Want | Leaves | NotYet | Stored | Refused
"""The messages that speak of one shard."""
Wire = Addressed | TransferOrders
"""The messages that a transfer takes."""


# ---- events


class MessageCame(msgspec.Struct, frozen=True):
    """A message for this process came."""

    sender: Party
    job: Job
    message: Wire
    body: Frames = ()


class FetchMoved(msgspec.Struct, frozen=True):
    """The disk answers an effect of the fetch with this number."""

    address: Address
    number: int
    event: ReceiverEvent


class ShardOpened(msgspec.Struct, frozen=True):
    """A whole shard is open for serving."""

    address: Address
    sizes: Sizes


class ShardAbsent(msgspec.Struct, frozen=True):
    """There is no such whole shard here."""

    address: Address
    reason: str


class LeavesUnsent(msgspec.Struct, frozen=True):
    """Leaves could not be read (`gone`), or not be handed to the peer's socket."""

    address: Address
    peer: Peer
    runs: tuple[Run, ...]
    size: int
    reason: str
    gone: bool = False


class OfferUnsent(msgspec.Struct, frozen=True):
    """A shard that is to be offered cannot be read."""

    address: Address
    reason: str


class ShardChecked(msgspec.Struct, frozen=True):
    """A shard was hashed again; `fault` says how it differs from its tree, empty: it does not, or is gone."""

    address: Address
    fault: str


class ShardsFound(msgspec.Struct, frozen=True):
    """What stood here when this process began: copies, and own shards of committed saves.

    Own shards of other saves are still to be offered, and a peer that finds one corrupt says so again.
    """

    addresses: tuple[Address, ...]


class PeerLost(msgspec.Struct, frozen=True):
    """The connection to a peer ended."""

    source: Source
    reason: str


TransferEvent = (
    MessageCame
    | FetchMoved
    | ShardOpened
    | ShardAbsent
    | LeavesUnsent
    | OfferUnsent
    | ShardChecked
    | ShardsFound
    | PeerLost
)


# ---- effects


class Reserve(msgspec.Struct, frozen=True):
    """What must stay free beside a peer's copy.

    `alike`: nothing is known yet of what the trainer saves here; its save is taken to be as large as the copy.
    """

    size: int
    inodes: int
    alike: bool = False


class Naming(msgspec.Struct, frozen=True):
    """Tags of one origin: `own` where the shard is this node's own."""

    tags: tuple[Tag, ...]
    own: bool


class Tell(msgspec.Struct, frozen=True):
    """Send a control message to a peer's transfer."""

    peer: Peer
    job: Job
    message: Want | NotYet | Stored | Refused


class TellUploader(msgspec.Struct, frozen=True):
    """Send a Want to the local uploader."""

    job: Job
    message: Want


class SendOffer(msgspec.Struct, frozen=True):
    """Send a shard's tree to a peer; without tags it answers a Want for the tree."""

    peer: Peer
    job: Job
    address: Address
    tags: tuple[Tag, ...]


class ServeLeaves(msgspec.Struct, frozen=True):
    """Read leaves and send them to a peer in one message of `size` bytes."""

    peer: Peer
    job: Job
    address: Address
    runs: tuple[Run, ...]
    size: int


class OpenShard(msgspec.Struct, frozen=True):
    """Open a whole shard for serving."""

    address: Address


class Close(msgspec.Struct, frozen=True):
    """Nobody needs the open files of this shard any more; a partial stays on the ramdisk."""

    address: Address


class CheckShard(msgspec.Struct, frozen=True):
    """Hash the own shard again."""

    address: Address


class OpenPartial(msgspec.Struct, frozen=True):
    """Open the partial with this tree, reserving its room; without a tree look what is there.

    `reserve`: for a peer's copy, which is admitted only beside it.
    """

    address: Address
    number: int
    source: Source | None
    tree: Frames | None
    reserve: Reserve | None


class StoreLeaves(msgspec.Struct, frozen=True):
    """Verify leaves and write the good ones."""

    address: Address
    number: int
    source: Source
    runs: tuple[Run, ...]
    body: Frames
    size: int


class NameShard(msgspec.Struct, frozen=True):
    """Give a whole shard its names."""

    address: Address
    number: int
    namings: tuple[Naming, ...]


class TrimPartials(msgspec.Struct, frozen=True):
    """Remove partials that nobody fills: those of the last day stay while `reserve` bytes are free.

    `busy`: those that somebody fills.
    """

    reserve: int
    busy: frozenset[Address]


class ForgetPeer(msgspec.Struct, frozen=True):
    """Close the leaf socket of a peer that acknowledges nothing."""

    peer: Peer


class Report(msgspec.Struct, frozen=True):
    """Send the state to the watcher."""

    report: TransferReport


TransferEffect = (
    Tell
    | TellUploader
    | SendOffer
    | ServeLeaves
    | OpenShard
    | Close
    | CheckShard
    | OpenPartial
    | StoreLeaves
    | NameShard
    | TrimPartials
    | ForgetPeer
    | Report
)
