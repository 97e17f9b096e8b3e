"""A watcher's shell over a ramdisk in memory: performs the machine's effects at once, in order.

Messages and Redis are left to whoever drives it: `sent` holds what the machine wanted to say.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Address, Epoch, Host, Incarnation, Job, Rank, Step, StoreId, Worker
from checkpoint_replicator.machine import Ticked
from checkpoint_replicator.messages import Held, NodeReport, Room, TransferOrders, UploaderOrders
from checkpoint_replicator.records import (
    EpochRecord,
    EpochState,
    FetchPlan,
    KeepList,
    Lease,
    Member,
    NodeView,
    Orders,
    Outcome,
    RestoreRecord,
    ShardPlan,
)
from checkpoint_replicator.save import Save, Tag
from checkpoint_replicator.times import Times
from checkpoint_watcher import effects as do
from checkpoint_watcher import events as did
from checkpoint_watcher.machine import WatcherMachine
from checkpoint_watcher.record import Claim, FenceRecord, SessionRecord
from checkpoint_watcher.snapshot import Found, Snapshot, YamlIdentity, YamlSeen

__all__ = ["LEASE", "WISH", "ModelRamdisk", "WatcherShell", "yaml_text"]

LEASE = Lease(incarnation=Incarnation("c1"), token=1, host=Host("c"), reports="inproc://r", beacons="inproc://b")

WISH = "please back this up"
"""The content of a save that holds `_BACKUP_REQUESTED`."""


def yaml_text(job: str = "j", rank: int = 0, nodes: int = 2, framework: str = "pytorch", **more: object) -> bytes:
    """The text of a good yaml; underscores in further keys become dashes."""
    keys = {"job-name": job, "framework": framework, "node-rank": rank, "nodes": nodes, "workers-per-node": 1}
    keys |= {key.replace("_", "-"): value for key, value in more.items()}
    return "".join(f"{key}: {value}\n" for key, value in keys.items()).encode()


@dataclass
class ModelRamdisk:
    """What survives a crash of the watcher. Content of a save is its text; its address is derived from it."""

    yaml: YamlSeen | None = None
    public: dict[str, tuple[Found, str]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    """Markers, prerestore, errors, failed and foreign names."""
    claims: dict[str, tuple[Claim, str]] = field(default_factory=dict)
    held: dict[Tag, Held] = field(default_factory=dict)
    contents: dict[Address, str] = field(default_factory=dict)
    session: SessionRecord | None = None
    fences: dict[Job, FenceRecord] = field(default_factory=dict)
    room: Room = field(default_factory=lambda: Room(size=1 << 40, free=1 << 40))
    inodes: int = 0
    misfits: tuple[tuple[str, str], ...] = ()

    def write_yaml(self, text: bytes, *, finished: bool = True, settled: bool = True, obstacle: str = "") -> None:
        """Let a trainer write a yaml; each one has its own identity."""
        self.inodes += 1
        identity = YamlIdentity(self.inodes, len(text), self.inodes, text.decode(errors="replace"))
        self.yaml = YamlSeen(identity, text, finished, settled, obstacle)

    def save(self, step: int, content: str = "", worker: int = 0, rank: int = 0, job: str = "j") -> None:
        """Let a trainer finish a save of framework pytorch."""
        name = f"{job}-s{step}-n{rank}-w{worker}.save"
        self.inodes += 1
        found = Found(name, self.inodes, Step(step), Job(job), Rank(rank), Worker(worker), len(content))
        self.public[name] = (found, content or f"{step}/{rank}/{worker}")

    def save_directory(self, step: int, content: str = "") -> None:
        """Let a trainer finish a save of framework pytorch.distributed."""
        self.inodes += 1
        self.public[str(step)] = (Found(str(step), self.inodes, Step(step), size=len(content)), content or f"{step}")

    def hold(self, tag: Tag, content: str, *, own: bool = True) -> None:
        """Put a named shard there."""
        self.held[tag] = Held(tag=tag, own=own)
        self.contents[tag.address] = content

    def snapshot(self) -> Snapshot:
        """Scan."""
        finished = sorted((found for found, _ in self.public.values()), key=lambda found: (found.step, found.worker))
        return Snapshot(yaml=self.yaml, finished=tuple(finished), misfits=self.misfits, room=self.room)

    @staticmethod
    def address(content: str) -> Address:
        """The address of a content."""
        return Address(content.encode().hex().rjust(64, "0")[-64:])


@dataclass
class WatcherShell:
    """One life of a watcher's process on a ramdisk.

    Attributes:
        done: every effect, in order.
        hold: effects of these types are only noted; `release` performs them.
    """

    disk: ModelRamdisk
    times: Times = field(default_factory=Times)
    now: float = 0.0
    incarnation: str = "w1"
    host: str = "node-0"
    done: list[do.Effect] = field(default_factory=list)
    hold: tuple[type, ...] = ()
    held_back: list[do.Effect] = field(default_factory=list)
    view: NodeView | None = None
    root: str | None = None
    crashed: bool = False
    crash_after: int | None = None
    ids: Callable[[], str] | None = None

    def __post_init__(self) -> None:
        self._ids = 0
        self.machine = WatcherMachine(
            Host(self.host), Incarnation(self.incarnation), self.times, self.ids or self._new_id, self.root
        )

    def _new_id(self) -> str:
        self._ids += 1
        return f"{self.incarnation}-{self._ids}"

    # ---- driving

    def start(self) -> "WatcherShell":
        """Begin, with what the ramdisk holds."""
        disk = self.disk
        claims = tuple(claim for claim, _ in disk.claims.values())
        held = tuple(disk.held.values())
        wished = tuple(one.tag.save for one in held if disk.contents[one.tag.address] == WISH)
        started = did.Started(session=disk.session, fences=dict(disk.fences), held=held, claims=claims, wished=wished)
        self.feed(started)
        return self

    def feed(self, *events: did.Event) -> None:
        """Give events and perform what they lead to, until nothing is left."""
        queue = list(events)
        while queue and not self.crashed:
            for effect in self.machine.handle(queue.pop(0), self.now):
                if self.crash_after is not None and len(self.done) >= self.crash_after:
                    self.crashed = True
                    return
                self.done.append(effect)
                if isinstance(effect, self.hold):
                    self.held_back.append(effect)
                elif (answer := self.perform(effect)) is not None:
                    queue.append(answer)

    def scan(self) -> None:
        """Look at the ramdisk."""
        self.feed(did.Scanned(self.disk.snapshot()))

    def wait(self, seconds: float, *, scan: bool = True) -> None:
        """Let time pass: the machine is asked at each of its deadlines, the ramdisk scanned each second."""
        end = self.now + seconds
        next_scan = self.now + 1
        while not self.crashed:
            deadline = self.machine.next_deadline()
            moment = min(end, next_scan, end if deadline is None else deadline)
            self.now = max(self.now, moment)
            if moment >= end:
                break
            if moment >= next_scan:
                next_scan += 1
                if scan:
                    self.scan()
            else:
                self.feed(Ticked())
                later = self.machine.next_deadline()
                assert later is None or later > self.now, "a machine that is always due starves its inbox"
        self.feed(Ticked())

    def release(self, *kinds: type) -> None:
        """Perform what was held back."""
        waiting = [effect for effect in self.held_back if not kinds or isinstance(effect, kinds)]
        self.held_back = [effect for effect in self.held_back if effect not in waiting]
        self.hold = tuple(kind for kind in self.hold if kinds and kind not in kinds)
        for effect in waiting:
            if (answer := self.perform(effect)) is not None:
                self.feed(answer)

    def read(self, view: NodeView, job: str = "j") -> None:
        """Let Redis hold this, and the node read it."""
        self.view = view
        self.feed(did.ViewRead(Job(job), view))

    # ---- what was done

    def all(self, kind: type[do.Effect]) -> list[do.Effect]:
        """Every effect of a type."""
        return [effect for effect in self.done if isinstance(effect, kind)]

    def order(self, *kinds: type) -> list[str]:
        """The names of the effects of these types, in order."""
        return [type(effect).__name__ for effect in self.done if isinstance(effect, kinds)]

    @property
    def report(self) -> NodeReport:
        """The last report."""
        return [effect.report for effect in self.done if isinstance(effect, do.SendReport)][-1]

    @property
    def transfer(self) -> TransferOrders:
        """The last orders to the transfer."""
        return [effect.orders for effect in self.done if isinstance(effect, do.SendTransfer)][-1]

    @property
    def uploader(self) -> UploaderOrders:
        """The last orders to the uploader."""
        return [effect.orders for effect in self.done if isinstance(effect, do.SendUploader)][-1]

    # ---- the coordinator's part

    def view_of(
        self,
        *,
        outcome: Outcome | None = None,
        released: bool = False,
        number: int = 1,
        counter: int = 1,
        save: Save | None = None,
        shards: tuple[ShardPlan, ...] = (),
        keep: KeepList | None = None,
        orders: Orders | None = None,
        reason: str = "",
        epoch_reason: str = "",
        lease: Lease | None = LEASE,
        refused: dict[str, str] | None = None,
        members: tuple[Member, ...] | None = None,
        token: int = 1,
    ) -> NodeView:
        """A view in which this node's session is a member of the epoch."""
        session = self.machine.node.session
        stamp = Stamp(token, Epoch(number), counter)
        rank = session.spec.rank if session is not None and session.spec is not None else Rank(0)
        member = (Member(rank=rank, host=Host(self.host), session=session.id),) if session is not None else ()
        if refused is not None:
            member = ()
        return NodeView(
            store=StoreId("s1"),
            lease=lease,
            fence=stamp,
            epoch=EpochRecord(
                number=Epoch(number),
                stamp=stamp,
                state=EpochState.RUNNING if released else EpochState.RESTORING,
                members=member if members is None else members,
                released=released,
                reason=epoch_reason,
                refused=refused or {},
            ),
            restore=None
            if outcome is None
            else RestoreRecord(stamp=Stamp(token, Epoch(number), 1), outcome=outcome, save=save, reason=reason),
            plan=FetchPlan(stamp=Stamp(token, Epoch(number), 1), shards=shards) if shards else None,
            keep=keep,
            orders=orders,
        )

    # ---- the ramdisk's part

    def perform(self, effect: do.Effect) -> did.Event | None:
        """Do one thing to the ramdisk."""
        disk = self.disk
        match effect:
            case do.ClaimSave(name, inode, claim):
                found = disk.public.get(name)
                if found is None or found[0].inode != inode or claim.name in disk.claims:
                    return did.SaveGone(claim, "gone")
                del disk.public[name]
                disk.claims[claim.name] = (claim, found[1])
                return did.SaveClaimed(claim, found[0].size)
            case do.HashClaim(claim):
                content = disk.claims[claim.name][1]
                if content.startswith("unsupported"):
                    return did.HashFailed(claim, "unsupported", "a link")
                return did.ClaimHashed(claim, disk.address(content), len(content), wanted=content == WISH)
            case do.NameShard(claim, tag):
                content = disk.claims.pop(claim.name)[1]
                disk.hold(tag, content)
                return did.ShardNamed(claim, tag)
            case do.DropClaim(claim):
                disk.claims.pop(claim.name, None)
            case do.TakeInventory():
                return did.InventoryTaken(tuple(disk.held.values()))
            case do.MarkCommitted(job, save):
                for tag, held in disk.held.items():
                    if tag.job == job and tag.save == save:
                        disk.held[tag] = msgspec.structs.replace(held, committed=True)
            case do.DropSaves(tags):
                for tag in tags:
                    disk.held.pop(tag, None)
                return did.SavesDropped(tags)
            case do.DropForeign(tags):
                for tag in tags:
                    disk.held.pop(tag, None)
                    disk.contents.pop(tag.address, None)
                return did.ForeignDropped(tags)
            case do.ForgetJob(job, session):
                disk.held = {tag: held for tag, held in disk.held.items() if tag.job != job}
                disk.claims = {name: one for name, one in disk.claims.items() if one[0].job != job}
                if session:
                    disk.session = None
                    disk.files.clear()
                disk.fences.pop(job, None)
                return did.JobForgotten(job, tuple(disk.held.values()))
            case do.VerifyShard(address, stamp):
                good = address in disk.contents and disk.address(disk.contents[address]) == address
                return did.ShardVerified(address, stamp, "" if good else "1 leaf differs")
            case do.Quarantine(address):
                for tag in [tag for tag in disk.held if tag.address == address]:
                    del disk.held[tag]
                disk.contents.pop(address, None)
                return did.ShardQuarantined(address)
            case _:
                return self._perform_small(effect)
        return None

    def _perform_small(self, effect: do.Effect) -> did.Event | None:
        disk = self.disk
        match effect:
            case do.AdoptStrays(session, _):
                return did.StraysAdopted(session)
            case do.CleanUp():
                for name in [name for name in disk.files if name.startswith("replicator.") or ".restore" in name]:
                    del disk.files[name]
                return did.CleanedUp()
            case do.WriteSession(record):
                disk.session = record
                return did.SessionWritten(record)
            case do.RemoveYaml(session, identity):
                if disk.yaml is not None and disk.yaml.identity == identity:
                    disk.yaml = None
                return did.YamlRemoved(session)
            case do.WriteFailed(session, text):
                disk.files["replicator.failed"] = text
                return did.FailedWritten(session)
            case do.WritePrerestore(step, _):
                disk.files["replicator.prerestore"] = "{}" if step is None else f"restore-step: {step}"
            case do.AppendErrors(line):
                disk.files["replicator.errors"] = disk.files.get("replicator.errors", "") + line + "\n"
            case do.PublishMarkers(session, markers):
                for marker in markers:
                    disk.files[marker.name] = disk.contents[marker.address] if marker.address else ""
                return did.MarkersPublished(session)
            case do.WriteFence(job, record):
                disk.fences[job] = record
                return did.FenceWritten(job, record)
            case do.ReadView(job, _):
                return did.ViewRead(job, self.view) if self.view is not None else did.ViewFailed(job, "Redis is away")
            case do.Register():
                return did.Registered(StoreId("s1"))
            case _:
                return None
        return None
