"""What is to be done: the outputs of the watcher's machine.

The ramdisk's effects but `HashClaim` and `VerifyShard` are performed one after another in the order in which they were
given; those two run beside them. Every one that has an answer is answered exactly once per life of the process.
"""

import msgspec

from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Address, Job, Rank, SessionId
from checkpoint_replicator.messages import NodeReport, TransferOrders, UploaderOrders
from checkpoint_replicator.records import Lease, Peer
from checkpoint_replicator.save import Save, Tag
from checkpoint_replicator.session import SessionSpec
from checkpoint_watcher.record import Claim, FenceRecord, Marker, SessionRecord
from checkpoint_watcher.snapshot import YamlIdentity

__all__ = [
    "AdoptStrays",
    "Announce",
    "AppendErrors",
    "CallHelp",
    "ClaimSave",
    "CleanUp",
    "DropClaim",
    "DropForeign",
    "DropSaves",
    "Effect",
    "Follow",
    "ForgetJob",
    "HashClaim",
    "Leave",
    "MarkCommitted",
    "NameShard",
    "PublishMarkers",
    "PublishStatus",
    "Quarantine",
    "ReadView",
    "Register",
    "RemoveYaml",
    "SendReport",
    "SendTransfer",
    "SendUploader",
    "TakeInventory",
    "VerifyShard",
    "WriteFailed",
    "WriteFence",
    "WritePrerestore",
    "WriteSession",
]


class ClaimSave(msgspec.Struct, frozen=True):
    """Rename the public entry into the claims, if it still is this inode. Answer: SaveClaimed or SaveGone."""

    name: str
    inode: int
    claim: Claim


class HashClaim(msgspec.Struct, frozen=True):
    """Make the tree. Answer: ClaimHashed, HashFailed or SaveGone."""

    claim: Claim


class NameShard(msgspec.Struct, frozen=True):
    """Give the claim its public name. Answer: ShardNamed, NamingFailed or SaveGone."""

    claim: Claim
    tag: Tag


class DropClaim(msgspec.Struct, frozen=True):
    """Remove a claim that is not wanted. No answer."""

    claim: Claim


class TakeInventory(msgspec.Struct, frozen=True):
    """Read the sidecars and look whether their data stand. Answer: InventoryTaken.

    Attributes:
        recover: first make good what a crash of the node's transfer left.
    """

    recover: bool = False


class MarkCommitted(msgspec.Struct, frozen=True):
    """Note in the sidecars of this save that it is committed. No answer."""

    job: Job
    save: Save


class DropSaves(msgspec.Struct, frozen=True):
    """Remove these shards, as a keep list says. Answer: SavesDropped."""

    tags: tuple[Tag, ...]


class DropForeign(msgspec.Struct, frozen=True):
    """Remove these shards of other jobs, for room. Answer: ForeignDropped."""

    tags: tuple[Tag, ...]


class ForgetJob(msgspec.Struct, frozen=True):
    """Remove all that the host has of a job, as people ordered: shards, claims, and last what fences it.

    Answer: JobForgotten.

    Attributes:
        job: which.
        session: the session is of this job: it goes too, with the contract's leftovers and hand-outs.
    """

    job: Job
    session: bool


class VerifyShard(msgspec.Struct, frozen=True):
    """Hash a shard again. Answer: ShardVerified."""

    address: Address
    stamp: Stamp


class Quarantine(msgspec.Struct, frozen=True):
    """Take a corrupt shard out of its public name, into a partial with its good leaves. Answer: ShardQuarantined."""

    address: Address


class AdoptStrays(msgspec.Struct, frozen=True):
    """Hash the data of the session's job that has a `.meta` and no sidecar, and give it one. Answer: StraysAdopted."""

    session: SessionId
    spec: SessionSpec


class CleanUp(msgspec.Struct, frozen=True):
    """Remove the contract's leftovers, all hand-outs too. Answer: CleanedUp."""


class WriteSession(msgspec.Struct, frozen=True):
    """Replace `session.json`. Answer: SessionWritten."""

    record: SessionRecord


class RemoveYaml(msgspec.Struct, frozen=True):
    """Remove `replicator.yaml` if it still is this one. Answer: YamlRemoved."""

    session: SessionId
    identity: YamlIdentity


class WritePrerestore(msgspec.Struct, frozen=True):
    """Replace `replicator.prerestore`; both None: there is nothing to restore. No answer."""

    step: int | None = None
    backup: str | None = None


class WriteFailed(msgspec.Struct, frozen=True):
    """Write `replicator.failed`. Answer: FailedWritten."""

    session: SessionId
    text: str


class AppendErrors(msgspec.Struct, frozen=True):
    """Append a line to `replicator.errors`. No answer."""

    line: str


class PublishMarkers(msgspec.Struct, frozen=True):
    """Make the hand-outs and the `.restore` entries that are missing. Answer: MarkersPublished or MarkersFailed."""

    session: SessionId
    markers: tuple[Marker, ...]


class WriteFence(msgspec.Struct, frozen=True):
    """Raise the job's entry in `fence.json`. Answer: FenceWritten."""

    job: Job
    record: FenceRecord


class PublishStatus(msgspec.Struct, frozen=True):
    """Replace `status.json`. No answer."""

    text: str


class ReadView(msgspec.Struct, frozen=True):
    """Read from Redis what this node must obey. Answer: ViewRead or ViewFailed, by a deadline."""

    job: Job
    rank: Rank | None


class Register(msgspec.Struct, frozen=True):
    """Write this host and these jobs into Redis. Answer: Registered."""

    jobs: tuple[Job, ...]
    transfer: Peer | None = None


class Follow(msgspec.Struct, frozen=True):
    """Send reports of the job to, and hear beacons from, the coordinator of this lease. No answer."""

    job: Job
    lease: Lease


class Leave(msgspec.Struct, frozen=True):
    """Speak to and hear nobody any more for this job, of which the host has nothing. No answer."""

    job: Job


class CallHelp(msgspec.Struct, frozen=True):
    """Say in Redis, for so many seconds, that the job's coordinator cannot be reached from here. No answer."""

    job: Job
    reason: str
    seconds: float


class SendReport(msgspec.Struct, frozen=True):
    """Send to the job's coordinator; may be lost. No answer."""

    job: Job
    report: NodeReport


class SendTransfer(msgspec.Struct, frozen=True):
    """Send to the node's transfer; may be lost. Its reports name the version that they follow."""

    orders: TransferOrders


class SendUploader(msgspec.Struct, frozen=True):
    """Send to the node's uploader; may be lost."""

    job: Job
    orders: UploaderOrders


class Announce(msgspec.Struct, frozen=True):
    """Log an event, and count it where there is a metric for it. No answer."""

    event: str
    fields: dict[str, str | int | float]


Effect = (
    ClaimSave
    | HashClaim
    | NameShard
    | DropClaim
    | TakeInventory
    | MarkCommitted
    | DropSaves
    | ForgetJob
    | DropForeign
    | VerifyShard
    | Quarantine
    | AdoptStrays
    | CleanUp
    | WriteSession
    | RemoveYaml
    | WritePrerestore
    | WriteFailed
    | AppendErrors
    | PublishMarkers
    | WriteFence
    | PublishStatus
    | ReadView
    | Register
    | Follow
    | Leave
    | CallHelp
    | SendReport
    | SendTransfer
    | SendUploader
    | Announce
)
