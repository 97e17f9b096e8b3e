"""What stands in Redis, as types; each is one JSON value or one hash of `docs/storage.md`.

The coordinator writes them, nodes and people read them. Orders are *state*: the whole of what a node is to do now, so
a repeated, late or lost wake-up changes nothing.
"""

from enum import StrEnum

import msgspec

from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Epoch, Host, Incarnation, Rank, SessionId, StoreId, Token
from checkpoint_replicator.save import Save, ShardKey, Tag
from checkpoint_replicator.shape import Shape

__all__ = [
    "BackupOrder",
    "EpochRecord",
    "EpochState",
    "FetchPlan",
    "Help",
    "HostRecord",
    "KeepList",
    "Lease",
    "Member",
    "NodeView",
    "Orders",
    "Outcome",
    "Peer",
    "Rejected",
    "ReplicateOrder",
    "RestoreRecord",
    "ShardPlan",
]


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base: frozen, by keyword; defaults are left out of the JSON."""


class Lease(Record, frozen=True, kw_only=True):
    """`…:lease`: the right to be the job's active coordinator.

    Attributes:
        incarnation: of the coordinator process.
        token: growing; the first number of every stamp.
        reports: endpoint of the PULL that takes NodeReports.
        beacons: endpoint of the PUB that wakes nodes.
    """

    incarnation: Incarnation
    token: Token
    host: Host
    reports: str
    beacons: str


class Peer(Record, frozen=True, kw_only=True):
    """How to reach a node's transfer service."""

    host: Host
    incarnation: Incarnation
    control: str
    """Endpoint of the PULL for Offer, Want, NotYet, Stored, Refused."""
    leaves: tuple[str, ...]
    """Endpoints of the PULLs for Leaves."""


class HostRecord(Record, frozen=True, kw_only=True):
    """`ckpt:host:<host>`: a host announces itself as soon as its watcher starts, with a rank or without."""

    host: Host
    incarnation: Incarnation
    transfer: Peer | None = None
    jobs: tuple[str, ...] = ()


class Help(Record, frozen=True, kw_only=True):
    """`…:help:<host>`, with an end: a node that reads Redis and cannot reach the coordinator says so.

    Attributes:
        host: which.
        incarnation: of its watcher.
        reason: what it misses, for people.
    """

    host: Host
    incarnation: Incarnation
    reason: str


class EpochState(StrEnum):
    """Where a job's rendezvous stands."""

    GATHERING = "gathering"
    DECIDING = "deciding"
    RESTORING = "restoring"
    RUNNING = "running"
    IDLE = "idle"


class Member(Record, frozen=True, kw_only=True):
    """The session that holds a rank in an epoch."""

    rank: Rank
    host: Host
    session: SessionId


class EpochRecord(Record, frozen=True, kw_only=True):
    """`…:epoch`.

    Attributes:
        number: the epoch.
        stamp: of the last change.
        shape: of the sessions; None while none was gathered.
        state: see EpochState.
        reason: why it stands there, for people: names laggards.
        members: one for each rank once the rendezvous is complete.
        refused: sessions that must fail, with the text for their `replicator.failed`.
        released: markers may be published.
        failure: while sessions are gathered, why the last start failed; empty where it did not.
        since: when it came into this state, Unix seconds.
    """

    number: Epoch
    stamp: Stamp
    state: EpochState
    reason: str = ""
    shape: Shape | None = None
    members: tuple[Member, ...] = ()
    refused: dict[str, str] = {}
    """Session id to the text of its `replicator.failed`."""
    released: bool = False
    failure: str = ""
    since: float = 0.0


class Outcome(StrEnum):
    """What a restore decision says."""

    RESTORE = "restore"
    NONE = "none"
    UNKNOWN = "unknown"
    LOST = "lost"


class Rejected(Record, frozen=True, kw_only=True):
    """Why a newer save was not chosen."""

    save: Save
    reason: str


class RestoreRecord(Record, frozen=True, kw_only=True):
    """`…:restore:<epoch>`, field `decision`.

    Attributes:
        stamp: of this decision; nodes echo it.
        outcome: restore, none, unknown or lost.
        save: what is restored, with outcome restore.
        backup: name of the backup directory that holds it, where one does.
        reason: for people, and for `replicator.failed` where the outcome is unknown or lost.
        rejected: newer saves and why not.
        forced: who ordered exactly this: `command` or `restore.version`; empty where nobody did.
        warning: a line for `replicator.errors` of every node, where people should know of what was decided.
        silent: witnesses without whose answer a save was chosen; trainers read it in `replicator.errors`.
        order: what stood in `restore.version` then, obeyed or not; None: nobody could look.
    """

    stamp: Stamp
    outcome: Outcome
    save: Save | None = None
    backup: str | None = None
    reason: str = ""
    rejected: tuple[Rejected, ...] = ()
    forced: str = ""
    warning: str = ""
    silent: tuple[str, ...] = ()
    order: str | None = None


class ShardPlan(Record, frozen=True, kw_only=True):
    """One shard that a node needs for a restore, and where to take it, best source first.

    Attributes:
        key: which of the *restoring* node's workers gets it.
        tag: what the shard is; its own key may differ from `key` where a twin serves.
        holders: peers that hold it (the own host is looked at first in any case).
        backup: name of a backup that holds it.
    """

    key: ShardKey
    tag: Tag
    holders: tuple[Peer, ...] = ()
    backup: str | None = None


class FetchPlan(Record, frozen=True, kw_only=True):
    """`…:restore:<epoch>`, field `n<rank>`."""

    stamp: Stamp
    shards: tuple[ShardPlan, ...] = ()


class KeepList(Record, frozen=True, kw_only=True):
    """`…:keep`: the only thing that permits deleting.

    Attributes:
        upto: the newest committed save.
        keep: saves at or below `upto` that stay.
        drop: saves above `upto` that were given up.
        hold: people look: `upto` tells what is committed, and nothing is deleted.
    """

    stamp: Stamp
    upto: Save | None = None
    keep: tuple[Save, ...] = ()
    drop: tuple[Save, ...] = ()
    hold: bool = False


class BackupOrder(Record, frozen=True, kw_only=True):
    """One thing that an uploader is to do; its answer in the NodeReport carries the same id.

    Attributes:
        id: random; a repeated order with the same id is the same order.
        kind: list, reserve, upload, seal, manifest, abandon, prune, unforce.
        name: the backup directory `<YYYY-MM-DD_HH-MM>`; empty for list and unforce.
        tags: upload: the shards of this host to store; seal: all shards whose `.meta` are to be written.
        document: reserve, manifest: the JSON text of `ORDER.json`, `MANIFEST.json`; unforce: what `restore.version`
            must still hold to be removed.
    """

    id: str
    kind: str
    name: str = ""
    tags: tuple[Tag, ...] = ()
    document: str = ""


class ReplicateOrder(Record, frozen=True, kw_only=True):
    """Offer this shard to these peers, beyond the placement of a new save (seeding, a lost host)."""

    tag: Tag
    to: tuple[Peer, ...]


class Orders(Record, frozen=True, kw_only=True):
    """`…:orders`, field `<host>`: all that the coordinator wants of one host now.

    Attributes:
        peers: rank to peer, for those ranks to which this host offers its own new saves.
        replicate: further copies wanted.
        backup: orders for the uploader.
        forget: remove all that this host has of the job; no fence is kept of this order.
        last_backup: name of the last verified backup, for `status.json`; empty without.
    """

    stamp: Stamp
    peers: tuple[Peer, ...] = ()
    replicate: tuple[ReplicateOrder, ...] = ()
    backup: tuple[BackupOrder, ...] = ()
    forget: bool = False
    last_backup: str = ""


class NodeView(Record, frozen=True, kw_only=True):
    """All that a node reads from Redis, in one atomic script, when the stamp changed or the beacon fell silent."""

    store: StoreId | None = None
    lease: Lease | None = None
    fence: Stamp | None = None
    epoch: EpochRecord | None = None
    restore: RestoreRecord | None = None
    """The decision of `epoch.number`."""
    plan: FetchPlan | None = None
    """The fetch plan of the asking rank."""
    keep: KeepList | None = None
    orders: Orders | None = None
