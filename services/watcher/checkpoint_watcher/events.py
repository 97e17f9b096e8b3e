"""What happened: the inputs of the watcher's machine."""

import msgspec

from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Address, Incarnation, Job, SessionId, StoreId
from checkpoint_replicator.machine import Ticked
from checkpoint_replicator.messages import Beacon, Held, TransferReport, UploaderReport
from checkpoint_replicator.records import NodeView
from checkpoint_replicator.save import Save, Tag
from checkpoint_watcher.record import Claim, FenceRecord, Lineage, SessionRecord
from checkpoint_watcher.snapshot import Snapshot

__all__ = [
    "BeaconHeard",
    "ClaimHashed",
    "CleanedUp",
    "Event",
    "FailedWritten",
    "FenceWritten",
    "ForeignDropped",
    "HashFailed",
    "InventoryTaken",
    "JobForgotten",
    "MarkersFailed",
    "MarkersPublished",
    "NamingFailed",
    "Registered",
    "SaveClaimed",
    "SaveGone",
    "SavesDropped",
    "Scanned",
    "SessionWritten",
    "ShardNamed",
    "ShardQuarantined",
    "ShardVerified",
    "Started",
    "StraysAdopted",
    "TransferReported",
    "UploaderReported",
    "ViewFailed",
    "ViewRead",
    "YamlRemoved",
]


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """The process holds `watcher.lock`, and this is what an earlier life left.

    Attributes:
        wished: saves that stand here and of which the trainer asked for a backup.
        entries: by address how many files and directories the shards have that were saved here.
        lineage: where there is no session: whose saves stand here, as the sidecars tell it.
        sessionless: why there is no session although there was one; empty: there is one, or there never was.
        unreadable: says what of it is lost.
    """

    session: SessionRecord | None = None
    fences: dict[Job, FenceRecord] = {}
    held: tuple[Held, ...] = ()
    fallen: tuple[Tag, ...] = ()
    claims: tuple[Claim, ...] = ()
    wished: tuple[Save, ...] = ()
    entries: dict[Address, int] = {}
    lineage: Lineage | None = None
    sessionless: str = ""
    unreadable: tuple[str, ...] = ()


class Scanned(msgspec.Struct, frozen=True):
    """A scan ended."""

    snapshot: Snapshot


class InventoryTaken(msgspec.Struct, frozen=True):
    """All shards that stand on this host, of all jobs; and those that have a name and do not stand any more."""

    held: tuple[Held, ...]
    fallen: tuple[Tag, ...] = ()


class JobForgotten(msgspec.Struct, frozen=True):
    """What is left on this host, of all jobs, after it was to forget one.

    Attributes:
        job: which.
        held: as in InventoryTaken.
        reason: why something of the job is still there; empty: nothing is, and no fence either.
        fallen: as in InventoryTaken.
    """

    job: Job
    held: tuple[Held, ...]
    reason: str = ""
    fallen: tuple[Tag, ...] = ()


class SaveClaimed(msgspec.Struct, frozen=True):
    """The save is out of the trainer's reach; size in bytes."""

    claim: Claim
    size: int


class SaveGone(msgspec.Struct, frozen=True):
    """The save, or the claim, is not there any more, or another one took its name."""

    claim: Claim
    reason: str


class ClaimHashed(msgspec.Struct, frozen=True):
    """The bytes have this address.

    Attributes:
        size: bytes of all files.
        entries: files and directories.
        wanted: the trainer asked for a backup of this save.
    """

    claim: Claim
    address: Address
    size: int
    entries: int = 1
    wanted: bool = False


class HashFailed(msgspec.Struct, frozen=True):
    """The bytes have no address; kind: `unsupported` or `mutated`."""

    claim: Claim
    kind: str
    reason: str


class ShardNamed(msgspec.Struct, frozen=True):
    """The shard stands under its public name, with its sidecar."""

    claim: Claim
    tag: Tag


class NamingFailed(msgspec.Struct, frozen=True):
    """For want of room; the claim stays and is named later."""

    claim: Claim
    tag: Tag
    reason: str


class StraysAdopted(msgspec.Struct, frozen=True):
    """These shards have sidecars now; `refused` says of the other strays why they have none."""

    session: SessionId
    adopted: tuple[Held, ...] = ()
    refused: tuple[str, ...] = ()


class CleanedUp(msgspec.Struct, frozen=True):
    """The contract's leftovers are gone."""


class SessionWritten(msgspec.Struct, frozen=True):
    """`session.json` holds this."""

    record: SessionRecord


class YamlRemoved(msgspec.Struct, frozen=True):
    """The session's yaml is gone from the directory; with a reason: it could not be removed."""

    session: SessionId
    reason: str = ""


class FailedWritten(msgspec.Struct, frozen=True):
    """`replicator.failed` stands."""

    session: SessionId


class FenceWritten(msgspec.Struct, frozen=True):
    """`fence.json` holds this for the job."""

    job: Job
    record: FenceRecord


class ShardVerified(msgspec.Struct, frozen=True):
    """The shard was hashed again; with a reason: its bytes differ, or it is not there."""

    address: Address
    stamp: Stamp
    reason: str = ""


class ShardQuarantined(msgspec.Struct, frozen=True):
    """The corrupt shard has no name any more; its good leaves are a partial. With a reason: it is being read."""

    address: Address
    reason: str = ""


class MarkersPublished(msgspec.Struct, frozen=True):
    """Every `.restore` stands; `handout`: they lead to hard links, not to the replica itself."""

    session: SessionId
    handout: bool = True


class MarkersFailed(msgspec.Struct, frozen=True):
    """What was to be handed out is not there any more; some `.restore` may stand."""

    session: SessionId
    reason: str


class SavesDropped(msgspec.Struct, frozen=True):
    """These shards are gone; the busy ones have a reader and are tried again."""

    dropped: tuple[Tag, ...]
    busy: tuple[Tag, ...] = ()


class ForeignDropped(msgspec.Struct, frozen=True):
    """These shards of other jobs are gone; the busy ones have a reader."""

    dropped: tuple[Tag, ...]
    busy: tuple[Tag, ...] = ()


class ViewRead(msgspec.Struct, frozen=True):
    """Redis answered."""

    job: Job
    view: NodeView


class ViewFailed(msgspec.Struct, frozen=True):
    """Redis did not answer, or not in a form that parses; the reason names it."""

    job: Job
    reason: str


class Registered(msgspec.Struct, frozen=True):
    """Host and jobs stand in Redis of this life; with a reason: Redis did not answer."""

    store: StoreId
    reason: str = ""


class BeaconHeard(msgspec.Struct, frozen=True):
    """A coordinator of the job spoke; only a wake-up."""

    job: Job
    incarnation: Incarnation
    beacon: Beacon


class TransferReported(msgspec.Struct, frozen=True):
    """The node's transfer told its state."""

    incarnation: Incarnation
    report: TransferReport


class UploaderReported(msgspec.Struct, frozen=True):
    """The node's uploader told its state of this job."""

    job: Job
    incarnation: Incarnation
    report: UploaderReport


Event = (
    Ticked
    | Started
    | Scanned
    | InventoryTaken
    | JobForgotten
    | SaveClaimed
    | SaveGone
    | ClaimHashed
    | HashFailed
    | ShardNamed
    | NamingFailed
    | StraysAdopted
    | CleanedUp
    | SessionWritten
    | YamlRemoved
    | FailedWritten
    | FenceWritten
    | ShardVerified
    | ShardQuarantined
    | MarkersPublished
    | MarkersFailed
    | SavesDropped
    | ForeignDropped
    | ViewRead
    | ViewFailed
    | Registered
    | BeaconHeard
    | TransferReported
    | UploaderReported
)
