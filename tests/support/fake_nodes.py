"""Nodes as a coordinator sees them: they read Redis, obey, and report; files are entries of a dict."""

import json
from collections.abc import Callable, Iterable

import msgspec

from checkpoint_replicator.backup import judge, parse_order
from checkpoint_replicator.blobs import Blob
from checkpoint_replicator.fence import ZERO, Stamp
from checkpoint_replicator.ids import Address, Epoch, Host, Incarnation, Job, Rank, SessionId, Step, StoreId, Worker
from checkpoint_replicator.messages import (
    BackupResult,
    Fault,
    Held,
    NodeReport,
    Party,
    RestoreProgress,
    Room,
    Service,
    ServiceHealth,
)
from checkpoint_replicator.records import BackupOrder, HostRecord, KeepList, NodeView, Outcome, Peer, ShardPlan
from checkpoint_replicator.save import Save, ShardKey, Tag
from checkpoint_replicator.session import Session, SessionSpec, SessionState
from checkpoint_replicator.shape import Shape


class Bucket:
    """A backup store: backup name to object name to bytes."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, bytes]] = {}
        self.forced: str = ""
        """What stands in `restore.version`."""
        self.fault: str | None = None
        """While a text stands here every call fails with it."""


class FakeNode:
    """One host with its three services.

    Args:
        job: of its data.
        host: its name.
        fellows: all nodes by host, for copies and fetches.
        bucket: its backup store; None: no root in its configuration.
    """

    def __init__(self, job: Job, host: str, fellows: dict[Host, "FakeNode"], bucket: Bucket | None = None) -> None:
        self.job = job
        self.host = Host(host)
        self.fellows = fellows
        self.bucket = bucket
        self.held: dict[Tag, Held] = {}
        self.session: Session | None = None
        self.failed: str | None = None
        self.restored: list[tuple[Save | None, Stamp]] = []
        self.dropped: list[Save] = []
        self.obeyed: Stamp = ZERO
        self.newest: Save | None = None
        self.keep: Stamp = ZERO
        self.held_back = False
        self.complete = True
        self.alive = True
        self.copies = True
        """Whether it copies its own saves to its peers."""
        self.requested: tuple[Save, ...] = ()
        self.faults: tuple[Fault, ...] = ()
        self.fetch_fault: str | None = None
        self.room: Room | None = None
        self.stalled = False
        """While it is, a restore makes no progress."""
        self.moving = 0
        """Bytes that a stalled restore goes on by with each look at Redis."""
        self.needed = 10
        """Bytes of a restore."""
        self.store = StoreId("")
        self._lives = 0
        self._version = 0
        self._progress: RestoreProgress | None = None
        self._results: dict[str, BackupResult] = {}
        self._sessions = 0
        self.start()
        fellows[self.host] = self

    # ---- what tests do

    def start(self) -> None:
        """Begin a new life of the services; data and session stay."""
        self._lives += 1
        self._version = 0
        self.alive = True
        self.incarnation = Incarnation(f"{self.host}-life-{self._lives}")

    def wipe(self) -> None:
        """Lose the ramdisk."""
        self.held.clear()
        self.session, self._progress, self.newest, self.obeyed = None, None, None, ZERO
        self.keep, self.held_back = ZERO, False

    def open(self, rank: int, shape: Shape, *, peers_per_node: int | None = 1, minutes: float | None = None) -> None:
        """A trainer wrote a yaml."""
        self._sessions += 1
        spec = SessionSpec(
            job=self.job,
            rank=Rank(rank),
            shape=shape,
            peers_per_node=peers_per_node,
            backup_interval_minutes=minutes,
        )
        self.session = Session(
            id=SessionId(f"{self.host}-session-{self._sessions}"), spec=spec, state=SessionState.OPEN
        )
        self.failed, self._progress = None, None

    def save(self, step: int, content: int | None = None) -> Save:
        """The trainer saved a step, every worker its shard."""
        assert self.session is not None
        save = Save(self.session.epoch, Step(step))
        for worker in range(self.session.spec.shape.workers):
            self.hold(save, self.session.spec.rank, worker, self.session.spec.shape, own=True, content=content)
        return save

    def hold(
        self,
        save: Save,
        rank: int,
        worker: int,
        shape: Shape,
        *,
        own: bool = False,
        committed: bool = False,
        content: int | None = None,
    ) -> Tag:
        """Put a shard here."""
        key = ShardKey(Rank(rank), Worker(worker))
        number = content if content is not None else hash_of(save, key)
        tag = Tag(self.job, save, shape, key, Address(f"{number:064x}"), 10)
        self.held[tag] = Held(tag=tag, own=own, committed=committed)
        return tag

    # ---- what the services do

    @property
    def sender(self) -> Party:
        return Party(host=self.host, service=Service.WATCHER, incarnation=self.incarnation)

    @property
    def peer(self) -> Peer:
        return Peer(host=self.host, incarnation=self.incarnation, control=f"tcp://{self.host}:1", leaves=())

    @property
    def record(self) -> HostRecord:
        return HostRecord(host=self.host, incarnation=self.incarnation, transfer=self.peer, jobs=(self.job,))

    def report(self) -> NodeReport:
        """Say how all stands."""
        self._version += 1
        services = [ServiceHealth(service=Service.TRANSFER, alive=True)]
        if self.bucket is not None:
            services.append(ServiceHealth(service=Service.UPLOADER, alive=True))
        return NodeReport(
            version=self._version,
            session=self.session,
            rank=self.session.spec.rank if self.session else None,
            store=self.store,
            obeyed=self.obeyed,
            newest_committed=self.newest,
            keep=self.keep,
            hold=self.held_back,
            complete=self.complete,
            held=tuple(self.held.values()),
            restore=self._progress,
            faults=self.faults,
            room=self.room,
            services=tuple(services),
            transfer=self.peer,
            backup_root="file:///bucket" if self.bucket is not None else None,
            backup=tuple(self._results.values()),
            backup_requested=self.requested,
        )

    @property
    def knows(self) -> bool:
        """Whether it has anything of the job."""
        return bool(self.held or self.session or self.newest or self.obeyed > ZERO)

    def obey(self, view: NodeView) -> None:
        """Do what Redis says, unless it is older than what was obeyed before."""
        self.store = view.store or self.store
        seen = self.obeyed
        if view.lease is None or view.fence is None or view.fence < seen or view.fence.number < seen.number:
            return
        if view.orders is not None and view.orders.forget and view.orders.stamp.token == view.lease.token:
            if self.session is None or self.session.state is not SessionState.OPEN:
                self.wipe()
            return
        parts = (view.epoch, view.restore, view.plan, view.keep, view.orders)
        self.obeyed = max((seen, *(part.stamp for part in parts if part is not None)))
        self._obey_epoch(view)
        if view.keep is not None and view.keep.stamp.token == view.lease.token:
            self._obey_keep(view.keep)
        if view.orders is not None:
            self._replicate(view)
            self._back_up(view.orders.backup)

    def _obey_epoch(self, view: NodeView) -> None:
        epoch, session = view.epoch, self.session
        if epoch is None or session is None or session.state is not SessionState.OPEN:
            return None
        if session.id in epoch.refused:
            return self._fail(epoch.refused[session.id])
        restore = view.restore
        if all(member.session != session.id for member in epoch.members) or restore is None:
            return None
        if restore.outcome is Outcome.LOST:
            return self._fail(restore.reason)
        if restore.outcome is Outcome.RESTORE and view.plan is not None:
            self._restore(view.plan.shards, restore.stamp)
        verified = self._progress is not None and self._progress.stamp == restore.stamp
        whole = verified and len(self._progress.verified) == session.spec.shape.workers if self._progress else False
        if epoch.released and (restore.outcome is Outcome.NONE or whole):
            self.session = msgspec.structs.replace(session, state=SessionState.RUNNING, epoch=epoch.number)
            self.restored.append((restore.save, restore.stamp))
        return None

    def _fail(self, reason: str) -> None:
        assert self.session is not None
        self.failed = reason
        self.session = msgspec.structs.replace(self.session, state=SessionState.CLOSED)

    def _restore(self, shards: Iterable[ShardPlan], stamp: Stamp) -> None:
        verified: list[ShardKey] = []
        failed: list[Fault] = []
        for shard in shards:
            tag = shard.tag
            sources = [self, *(self.fellows[peer.host] for peer in shard.holders)]
            here = any(node.alive and any(other.address == tag.address for other in node.held) for node in sources)
            if self.bucket is not None and shard.backup in self.bucket.objects:
                here = here or f"{tag.address}.data" in self.bucket.objects[shard.backup]
            if self.stalled:
                continue
            if here and self.fetch_fault is None:
                self.held.setdefault(tag, Held(tag=tag, own=True))
                verified.append(shard.key)
            else:
                failed.append(Fault(kind="corrupt", reason=self.fetch_fault or "every source was tried", key=shard.key))
        have = 0 if self.stalled or failed else self.needed
        if self.stalled and self._progress is not None and self._progress.stamp == stamp:
            have = self._progress.have + self.moving
        self._progress = RestoreProgress(
            stamp=stamp, verified=tuple(verified), failed=tuple(failed), have=have, size=self.needed
        )

    def _obey_keep(self, listed: KeepList) -> None:
        upto, keep, drop = listed.upto, listed.keep, listed.drop
        self.keep, self.held_back = listed.stamp, listed.hold
        if upto is not None:
            self.newest = max(self.newest, upto) if self.newest is not None else upto
        for tag in list(self.held):
            save = tag.save
            goes = save in drop or (upto is not None and save <= upto and save not in keep)
            if goes and not listed.hold:
                del self.held[tag]
                self.dropped.append(save)
            elif save == upto:
                self.held[tag] = msgspec.structs.replace(self.held[tag], committed=True)

    def _replicate(self, view: NodeView) -> None:
        assert view.orders is not None
        if not self.copies:
            return
        session = self.session
        own = [t for t, held in self.held.items() if held.own and session and t.save.epoch == session.epoch]
        gifts = [(tag, peer) for tag in own for peer in view.orders.peers]
        gifts += [(order.tag, peer) for order in view.orders.replicate for peer in order.to]
        for tag, peer in gifts:
            fellow = self.fellows.get(peer.host)
            if fellow is not None and fellow.alive and any(other.address == tag.address for other in self.held):
                fellow.held.setdefault(tag, Held(tag=tag))

    # ---- the uploader

    def _back_up(self, orders: tuple[BackupOrder, ...]) -> None:
        self._results = {order.id: self._results.get(order.id) or self._do(order) for order in orders}

    def _do(self, order: BackupOrder) -> BackupResult:
        answer = BackupResult(id=order.id, kind=order.kind, name=order.name, done=True)
        if self.bucket is None or self.bucket.fault is not None:
            return msgspec.structs.replace(answer, done=False, reason=self.bucket.fault if self.bucket else "no root")
        objects = self.bucket.objects.setdefault(order.name, {}) if order.name else {}
        made: dict[str, bytes] = {}
        match order.kind:
            case "list":
                return msgspec.structs.replace(answer, entries=tuple(self._entries()), forced=self.bucket.forced)
            case "unforce":
                if self.bucket.forced.strip() == order.document:
                    self.bucket.forced = ""
            case "reserve":
                parse_order(order.document)
                if objects.get("ORDER.json", order.document.encode()) != order.document.encode():
                    return msgspec.structs.replace(answer, done=False, reason="ORDER.json exists")
                objects["ORDER.json"] = order.document.encode()
            case "upload":
                for tag in order.tags:
                    assert any(other.address == tag.address for other in self.held)
                    made[f"{tag.address}.data"] = b"x" * tag.size
                    made[f"{tag.address}.tree"] = b"tree"
            case "seal":
                made = {f"{tag.name}.meta": tag.address.encode() for tag in order.tags}
            case "manifest":
                named = json.loads(order.document)["objects"]
                missing = [name for name in named if name not in objects]
                if missing:
                    return msgspec.structs.replace(answer, done=False, reason=f"{missing[0]} is missing")
                objects["MANIFEST.json"] = order.document.encode()
            case _:
                objects["MANIFEST.json"] = b'{"state":"abandoned"}'
                for name in objects.keys() - {"ORDER.json", "MANIFEST.json"}:
                    del objects[name]
        objects.update(made)
        sizes = {name: len(content) for name, content in made.items()}
        return msgspec.structs.replace(answer, sizes=sizes, crc32c=dict.fromkeys(made, "c"), size=sum(sizes.values()))

    def _entries(self) -> Iterable[msgspec.Struct]:
        assert self.bucket is not None
        for name, objects in sorted(self.bucket.objects.items()):
            blobs = {key: Blob(key, len(content), "") for key, content in objects.items()}
            yield judge(self.job, name, blobs, {key: content.decode() for key, content in objects.items()})


def hash_of(save: Save, key: ShardKey) -> int:
    """Return the content number of a shard, another for each."""
    return 1 + save.epoch * 10**9 + save.step * 10**6 + key.rank * 10**3 + key.worker


Send = Callable[[FakeNode, NodeReport], None]
EPOCH_ZERO = Epoch(0)
