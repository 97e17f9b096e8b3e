"""One sample of every message, as recorded for each protocol version."""

from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import (
    Address,
    Epoch,
    Host,
    Incarnation,
    Job,
    Rank,
    SessionId,
    Step,
    StoreId,
    Worker,
)
from checkpoint_replicator.messages import (
    BackupEntry,
    BackupResult,
    Beacon,
    Copy,
    CopyState,
    Fault,
    Fetch,
    FetchOrder,
    FetchState,
    Held,
    Leaves,
    Message,
    NodeReport,
    NotYet,
    Offer,
    OfferOrder,
    Refused,
    RestoreProgress,
    Room,
    Run,
    Saving,
    Service,
    ServiceHealth,
    Stored,
    TransferOrders,
    TransferReport,
    UploaderOrders,
    UploaderReport,
    Want,
    Wish,
)
from checkpoint_replicator.records import BackupOrder, Peer
from checkpoint_replicator.save import Save, ShardKey, Tag
from checkpoint_replicator.session import Session, SessionSpec, SessionState
from checkpoint_replicator.shape import Shape

FILE = Address("0123456789abcdef" * 4)
FOLDER = Address("D" + "fedcba9876543210" * 4)
SHAPE = Shape(4, 2, 1, "pytorch.distributed")
SAVE = Save(Epoch(2), Step(300))
KEY = ShardKey(Rank(3), Worker(1))
STAMP = Stamp(5, Epoch(2), 17)
TAG = Tag(Job("llama"), SAVE, SHAPE, KEY, FILE, 1 << 20)
PEER = Peer(
    host=Host("node-3"),
    incarnation=Incarnation("a1b2c3d4e5f60718"),
    control="tcp://10.0.0.3:4001",
    leaves=("tcp://10.0.0.3:4002",),
)
FAULT = Fault(kind="corrupt", reason="leaf 3: expected 01, found 02", save=SAVE, key=KEY, address=FILE)
SESSION = Session(
    SessionId("00ff00ff00ff00ff"),
    SessionSpec(Job("llama"), Rank(3), SHAPE, (Rank(2), Rank(1)), None, 30.0, None),
    SessionState.RUNNING,
    Epoch(2),
    True,
)
ORDER = BackupOrder(id="o1", kind="upload", name="2025-06-01_12-00", tags=(TAG,), document="{}")
RESULT = BackupResult(
    id="o0",
    kind="list",
    name="",
    done=True,
    entries=(BackupEntry(name="2025-06-01_11-00", whole=False, tags=(TAG,), reason="no manifest", order="{}"),),
    size=7,
    crc32c={"x.data": "AAAAAA=="},
)

MESSAGES: tuple[Message, ...] = (
    NodeReport(
        version=9,
        session=SESSION,
        rank=Rank(3),
        store=StoreId("s1"),
        obeyed=STAMP,
        newest_committed=SAVE,
        complete=True,
        held=(Held(tag=TAG, committed=True, own=True),),
        saving=(Saving(save=SAVE, key=KEY, size=5),),
        restore=RestoreProgress(
            stamp=STAMP,
            verified=(KEY,),
            failed=(FAULT,),
            have=1,
            size=2,
            by_source={"own": 1, "peer": 1},
            published=True,
        ),
        faults=(FAULT,),
        room=Room(size=100, free=50, reserve=10, inodes=1000, inodes_free=900),
        services=(ServiceHealth(service=Service.TRANSFER, incarnation=Incarnation("i"), alive=True, reason="slow"),),
        transfer=PEER,
        backup_root="file:///backup",
        backup=(RESULT,),
        backup_requested=(SAVE,),
    ),
    Beacon(stamp=STAMP, token=5, store=StoreId("s1"), taken={"i": 9}),
    TransferOrders(
        version=3,
        offers=(OfferOrder(tag=TAG, to=(PEER,)),),
        fetches=(FetchOrder(tags=(TAG,), holders=(PEER,), backup="2025-06-01_11-00"),),
        reserve=10,
        reserve_inodes=20,
    ),
    TransferReport(
        peer=PEER,
        version=3,
        copies=(Copy(address=FILE, host=Host("node-2"), state=CopyState.SENDING, reason="busy", sent=4),),
        fetches=(Fetch(address=FOLDER, state=FetchState.FETCHING, have=1, size=2, by_source={"peer": 1}, reason="r"),),
        landed=2,
        corrupt=(FAULT,),
    ),
    UploaderOrders(version=4, orders=(ORDER,)),
    UploaderReport(root="file:///backup", version=4, results=(RESULT,), sent={"o1": 12}),
    Offer(tags=(TAG,), answer_to=PEER),
    Want(address=FOLDER, answer_to=PEER, runs=(Run(first=4, count=2),), credit=1 << 24, tree=True, backup="b"),
    Leaves(address=FOLDER, runs=(Run(first=4, count=2), Run(first=8, count=1))),
    NotYet(address=FOLDER, runs=(Run(first=4, count=2),), gone=True, reason="dropped"),
    Stored(address=FILE, tags=(TAG,)),
    Refused(address=FILE, kind="no_room", reason="expected 9 bytes free, found 3", retry=False),
    Wish(
        id="w1",
        kind="restore",
        until=1700000000.5,
        save=SAVE,
        backup="2025-06-01_11-00",
        none=True,
        reason="we look",
        ramdisks=True,
        force=True,
    ),
)
