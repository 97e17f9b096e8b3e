"""Every message of the bus, grouped by who speaks.

Messages are state or orders: they may be lost, repeated or late, and are idempotent. Adding a field needs a default;
unknown fields are ignored; a change that old readers would misread raises PROTOCOL_VERSION.
"""

from enum import StrEnum
from typing import Annotated, Final

import msgspec

from checkpoint_replicator.fence import ZERO, Stamp
from checkpoint_replicator.ids import Address, Amount, Host, Incarnation, Job, Number, Rank, StoreId, Token
from checkpoint_replicator.records import BackupOrder, Peer
from checkpoint_replicator.save import Save, ShardKey, Tag
from checkpoint_replicator.session import Session

__all__ = [
    "FEATURES",
    "PROTOCOL_VERSION",
    "BackupEntry",
    "BackupResult",
    "Beacon",
    "Copy",
    "CopyState",
    "Envelope",
    "Fault",
    "Fetch",
    "FetchOrder",
    "FetchState",
    "Held",
    "Leaves",
    "Message",
    "NodeReport",
    "NotYet",
    "Offer",
    "OfferOrder",
    "Party",
    "Refused",
    "RestoreProgress",
    "Room",
    "Run",
    "Saving",
    "Service",
    "ServiceHealth",
    "Stored",
    "TransferOrders",
    "TransferReport",
    "UploaderOrders",
    "UploaderReport",
    "Want",
    "Wish",
]

PROTOCOL_VERSION: Final = 1
FEATURES: Final[tuple[str, ...]] = ()
"""Optional abilities of this build, told in every process's first message to a peer."""


class Service(StrEnum):
    """Who speaks."""

    WATCHER = "watcher"
    TRANSFER = "transfer"
    UPLOADER = "uploader"
    COORDINATOR = "coordinator"
    OPERATOR = "operator"
    """A command of people; it sends wishes and is told nothing by message."""


class Struct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of the parts of messages."""


class Tagged(Struct, frozen=True, kw_only=True, tag=True, tag_field="type"):
    """Base of the messages; the class name is the type on the wire."""


class Party(Struct, frozen=True, kw_only=True):
    """A process: which service on which host, in which life. An empty incarnation means whoever is there."""

    host: Host
    service: Service
    incarnation: Incarnation = Incarnation("")


# ---- parts of reports


class Held(Struct, frozen=True, kw_only=True):
    """A whole shard that stands on this host: verified when it was named, names, sizes and inodes unchanged since.

    Attributes:
        tag: what it is.
        committed: whether a keep list that this node obeyed called its save committed.
        own: saved here (a copy for another rank otherwise).
    """

    tag: Tag
    committed: bool = False
    own: bool = False


class Saving(Struct, frozen=True, kw_only=True):
    """A finished save of this session that is not named yet: claimed or being hashed."""

    save: Save
    key: ShardKey
    size: Number = 0


class Fault(Struct, frozen=True, kw_only=True):
    """Something that a node could not do as wished; it stays in reports until its cause is gone.

    Attributes:
        kind: `corrupt`, `mutated`, `refused`, `skipped`, `no_room`, `unsupported`, `uncopied`, `uid`,
            `undersized` (the ramdisk is too small for two saves), `foreign` (another job's data went for room),
            `session` (what was known of the running session is lost).
        save: the save concerned, if any.
        key: the shard concerned, if any.
        reason: for people; says what was expected and what was found.
    """

    kind: str
    reason: str
    save: Save | None = None
    key: ShardKey | None = None
    address: Address | None = None


class RestoreProgress(Struct, frozen=True, kw_only=True):
    """How far a node is with a restore decision.

    Attributes:
        stamp: of the decision that it works on.
        verified: own worker keys whose shard is whole, verified and named.
        failed: keys that no source could complete, each with its reason.
        have: bytes verified so far.
        size: bytes needed in all.
        by_source: bytes taken from `own`, `peer` and `backup`.
        published: the markers stand.
    """

    stamp: Stamp
    verified: tuple[ShardKey, ...] = ()
    failed: tuple[Fault, ...] = ()
    have: Number = 0
    size: Number = 0
    by_source: dict[str, Number] = {}
    published: bool = False


class Room(Struct, frozen=True, kw_only=True):
    """Bytes and inodes of the ramdisk.

    Attributes:
        reserve: bytes kept free for the trainer's next save.
        generations: how many saves with the copies for others fit; 0 with `needed` 0: no save's size is known yet.
        needed: bytes for two of them.
        comfortable: bytes for three.
    """

    size: Number
    free: Number
    reserve: Number = 0
    inodes: Number = 0
    inodes_free: Number = 0
    generations: Number = 0
    needed: Number = 0
    comfortable: Number = 0


class ServiceHealth(Struct, frozen=True, kw_only=True):
    """One service of this node as its watcher sees it."""

    service: Service
    incarnation: Incarnation = Incarnation("")
    alive: bool = False
    reason: str = ""


class BackupEntry(Struct, frozen=True, kw_only=True):
    """One backup directory as a listing showed it.

    Attributes:
        name: `<YYYY-MM-DD_HH-MM>`.
        whole: it counts: manifest there and all its objects with their sizes, or Google's and covering.
        tags: its shards; the save's epoch is 0 for Google's.
        reason: why it does not count.
        order: the JSON text of `ORDER.json`, where it is unfinished, or abandoned and not wholly swept.
        stamp: that of its manifest; a coordinator whose Redis forgot goes on above it.
    """

    name: str
    whole: bool
    tags: tuple[Tag, ...] = ()
    reason: str = ""
    order: str = ""
    stamp: Stamp = ZERO


class BackupResult(Struct, frozen=True, kw_only=True):
    """An uploader's answer to the order with this id.

    Attributes:
        done: finished well; False with a reason: failed, the coordinator decides; False without: in hand, `size` says
            how far.
        entries: the listing, for kind `list`.
        forced: for kind `list`: what stands in `restore.version`, empty without one; None: nobody looked.
        size: bytes stored.
    """

    id: str
    kind: str
    name: str = ""
    done: bool = False
    reason: str = ""
    entries: tuple[BackupEntry, ...] = ()
    forced: str | None = None
    size: Number = 0
    crc32c: dict[str, str] = {}
    """Object name (below the backup's directory) to crc32c, base64 as in Cloud Storage; for upload and seal."""
    sizes: dict[str, Number] = {}
    """Object name to bytes, of the same objects."""


# ---- watcher to coordinator


class NodeReport(Tagged, frozen=True, kw_only=True):
    """A node's whole state for one job. State, not events: late and repeated ones are harmless.

    Attributes:
        version: grows with each report of one incarnation of the watcher; the beacon tells which was taken up.
        rank: of the session, None for a host that only holds data.
        session: the current one, closed ones too until a new yaml comes.
        store: the Redis life that the node last read.
        obeyed: highest stamp that it obeyed for this job.
        newest_committed: the newest committed save that it knows of.
        keep: stamp of the last keep list that it obeyed.
        hold: that list lets nothing go: people look.
        complete: the scan ended after the watch began and every finished save that it found is hashed and named.
        held: the inventory for this job. A report is a promise: it stays until a keep list drops it.
        saving: finished saves on their way into `held`.
        restore: progress with the last decision.
        faults: see Fault.
        room: of the ramdisk.
        services: health of the node's transfer and uploader.
        transfer: how peers reach this node; None while its transfer is away.
        backup_root: of the first service that has one in its config; None without.
        backup: answers to backup orders in hand.
        backup_requested: steps of which a worker's directory held `_BACKUP_REQUESTED`.
    """

    version: Number
    session: Session | None = None
    rank: Rank | None = None
    store: StoreId = StoreId("")
    obeyed: Stamp = ZERO
    newest_committed: Save | None = None
    keep: Stamp = ZERO
    hold: bool = False
    complete: bool = False
    held: tuple[Held, ...] = ()
    saving: tuple[Saving, ...] = ()
    restore: RestoreProgress | None = None
    faults: tuple[Fault, ...] = ()
    room: Room | None = None
    services: tuple[ServiceHealth, ...] = ()
    transfer: Peer | None = None
    backup_root: str | None = None
    backup: tuple[BackupResult, ...] = ()
    backup_requested: tuple[Save, ...] = ()


# ---- coordinator to watchers


class Beacon(Tagged, frozen=True, kw_only=True):
    """Wake-up, published each second and at each change: read Redis if `stamp` is news to you.

    Attributes:
        stamp: of the newest decision in Redis.
        token: of the lease; a node obeys only what the lease in Redis names.
        taken: watcher incarnation to the report version that was taken up.
    """

    stamp: Stamp
    token: Token
    store: StoreId
    taken: dict[str, Number] = {}


# ---- watcher to transfer and back


class OfferOrder(Struct, frozen=True, kw_only=True):
    """Give this shard to these peers and keep at it until each has stored it."""

    tag: Tag
    to: tuple[Peer, ...]


class FetchOrder(Struct, frozen=True, kw_only=True):
    """Bring this shard here, verified, and name it under all the tags.

    Attributes:
        tags: one or more tags with the same address.
        holders: peers to ask; every one is tried before the fetch fails.
        backup: name of a backup to ask the local uploader for, after the peers.
        own: whether it is named as saved on this node.
    """

    tags: tuple[Tag, ...]
    holders: tuple[Peer, ...] = ()
    backup: str | None = None
    own: bool = False


class TransferOrders(Tagged, frozen=True, kw_only=True):
    """All that the watcher wants of the transfer now; what is not listed any more is stopped (partials stay).

    Attributes:
        reserve: bytes to leave free for the trainer's next save when a peer's copy asks for room.
        reserve_inodes: the same for inodes.
        trainer: a trainer saves here, so its next save goes before copies and old partials.
    """

    version: Number
    offers: tuple[OfferOrder, ...] = ()
    fetches: tuple[FetchOrder, ...] = ()
    reserve: Number = 0
    reserve_inodes: Number = 0
    trainer: bool = False


class CopyState(StrEnum):
    """How an offer to one peer stands."""

    OFFERED = "offered"
    SENDING = "sending"
    STORED = "stored"
    REFUSED = "refused"
    MUTATED = "mutated"


class Copy(Struct, frozen=True, kw_only=True):
    """One offer to one peer."""

    address: Address
    host: Host
    state: CopyState
    reason: str = ""
    sent: Number = 0


class FetchState(StrEnum):
    """How a fetch stands."""

    FETCHING = "fetching"
    DONE = "done"
    FAILED = "failed"


class Fetch(Struct, frozen=True, kw_only=True):
    """One ordered fetch; `by_source` counts verified bytes by `peer` and `backup`."""

    address: Address
    state: FetchState
    have: Number = 0
    size: Number = 0
    by_source: dict[str, Number] = {}
    reason: str = ""


class TransferReport(Tagged, frozen=True, kw_only=True):
    """The transfer's whole state, at each change and each second.

    Attributes:
        peer: how others reach this transfer.
        version: of the orders that it follows.
        landed: grows when a peer's copy was named here: a wake-up for the watcher to look at its sidecars.
        corrupt: own shards whose bytes differ from their address, found while reading them for a peer.
        lacking: by job the bytes that the largest shard lacked which had no room here of late.
    """

    peer: Peer
    version: Number = 0
    copies: tuple[Copy, ...] = ()
    fetches: tuple[Fetch, ...] = ()
    landed: Number = 0
    corrupt: tuple[Fault, ...] = ()
    lacking: dict[str, Number] = {}


# ---- watcher to uploader and back


class UploaderOrders(Tagged, frozen=True, kw_only=True):
    """All that the watcher wants of the uploader now."""

    version: Number
    orders: tuple[BackupOrder, ...] = ()


class UploaderReport(Tagged, frozen=True, kw_only=True):
    """The uploader's whole state; a result stays until its order is no longer listed.

    Attributes:
        root: the backup root of its config; None without.
        leaves: endpoint at which it takes Want from the local transfer.
        sent: bytes moved so far for each order in hand (progress).
    """

    root: str | None
    version: Number = 0
    results: tuple[BackupResult, ...] = ()
    sent: dict[str, Number] = {}


# ---- transfer to transfer (and transfer to the local uploader as a holder)


class Offer(Tagged, frozen=True, kw_only=True):
    """I hold this shard; the body is its tree, in one frame or several that follow one another.

    Attributes:
        tags: what is offered for replication. Empty in the answer to a Want for the tree.
        address: of the shard, in the answer to a Want for the tree.
    """

    tags: tuple[Tag, ...]
    answer_to: Peer
    address: Address = Address("")


class Run(Struct, frozen=True, kw_only=True):
    """Leaves `first` to `first + count - 1` in the tree's order, counted over all files of the shard."""

    first: Number
    count: Annotated[int, msgspec.Meta(ge=1, lt=1 << 53)]


class Want(Tagged, frozen=True, kw_only=True):
    """Send me these leaves, at most `credit` bytes unacknowledged in all.

    The credit is what was asked for, these leaves included, and has not arrived: so a Want is also the acknowledgement
    of all that was sent before. Without runs and tree it is nothing else; a credit of 0 ends the serving.

    Attributes:
        tree: send the tree first (an Offer).
        backup: for the uploader: which backup to read.
        answer_to: where Leaves, NotYet and Refused go.
    """

    address: Address
    answer_to: Peer
    runs: tuple[Run, ...] = ()
    credit: Number = 0
    tree: bool = False
    backup: str = ""


class Leaves(Tagged, frozen=True, kw_only=True):
    """Bytes; one body frame a run, the leaves of a run one after another."""

    address: Address
    runs: tuple[Run, ...]


class NotYet(Tagged, frozen=True, kw_only=True):
    """These leaves are not here yet (or never will be from me: `gone`)."""

    address: Address
    runs: tuple[Run, ...] = ()
    gone: bool = False
    reason: str = ""


class Stored(Tagged, frozen=True, kw_only=True):
    """The receiver's word: whole, verified and named on my host under all these tags."""

    address: Address
    tags: tuple[Tag, ...]


class Refused(Tagged, frozen=True, kw_only=True):
    """The receiver's no; `retry` says whether to offer again.

    Attributes:
        kind: `no_room`, `busy`, `unsupported`, `clash` (another shard has the name), `failed`;
            `corrupt`: bytes that came differ from the tree.
    """

    address: Address
    kind: str
    reason: str
    retry: bool = True


# ---- people to coordinator


class Wish(Tagged, frozen=True, kw_only=True):
    """What people order; said again until `…:wishes` in Redis answers this id.

    Attributes:
        id: random; a repeated one is the same order.
        kind: a WishKind.
        until: Unix seconds by Redis TIME after which it must not be taken up any more: whoever ordered it gave up.
        save: restore: this save.
        backup: restore: the save in this backup.
        none: restore: nothing, begin anew.
        reason: hold: why, for people.
        ramdisks: forget: what the hosts hold, too.
        force: forget: although sessions run.
    """

    id: str
    kind: str
    until: Amount
    save: Save | None = None
    backup: str | None = None
    none: bool = False
    reason: str = ""
    ramdisks: bool = False
    force: bool = False


Message = (
    NodeReport
    | Beacon
    | TransferOrders
    | TransferReport
    | UploaderOrders
    | UploaderReport
    | Offer
    | Want
    | Leaves
    | NotYet
    | Stored
    | Refused
    | Wish
)


class Envelope(Struct, frozen=True, kw_only=True):
    """What the header frame holds: who to whom, and one message."""

    sender: Party
    receiver: Party
    job: Job
    message: Message
    features: tuple[str, ...] = ()
