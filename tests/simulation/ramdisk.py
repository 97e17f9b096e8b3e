"""A model of a node's ramdisk: what survives its processes, and what `Ramdisk` and the services' disks promise."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from checkpoint_replicator.errors import CorruptError, ProtocolError
from checkpoint_replicator.generations import RESERVE
from checkpoint_replicator.ids import Address, Job, Step
from checkpoint_replicator.messages import Held, Room, Run
from checkpoint_replicator.save import Save, ShardKey, Tag
from checkpoint_replicator.session import SessionSpec
from checkpoint_replicator.shape import Shape
from checkpoint_replicator.tree import Tree
from checkpoint_transfer import effects as to_do
from checkpoint_transfer import receiving
from checkpoint_transfer.leaves import LeafSet, leaves_in
from checkpoint_transfer.source import Source
from checkpoint_watcher import effects as do
from checkpoint_watcher import events as did
from checkpoint_watcher.record import Claim, FenceRecord, Lineage, SessionRecord
from checkpoint_watcher.snapshot import Found, Snapshot, YamlIdentity, YamlSeen
from simulation.content import Content, fits

__all__ = ["INODES", "Ramdisk", "TornError", "entries"]

INODES = 1 << 20
NAMES = 2
"""Inodes of one name: a sidecar and a `.meta`."""
TREE = 1
PARTIAL = 4


class TornError(Exception):
    """Something partial was about to get a final name."""


@dataclass
class Partial:
    """A shard that is being received."""

    tree: Tree
    leaves: dict[int, bytes] = field(default_factory=dict)
    rotten: set[int] = field(default_factory=set)
    """Leaves that a fault changed after they were verified."""


@dataclass
class Ramdisk:
    """One ramdisk; a wiped one is another object.

    Attributes:
        size: bytes in all.
        entries_limit: inodes in all.
        rot_found: how many leaves of partials did not verify when they were opened again.
        resumed: how often a partial was opened that held something.
        given: every shard that ever got a name here, with its address; the product's own deletions leave it.
        spoiled: addresses whose bytes a fault changed.
        proven: addresses that were verified since the session in `session` opened.
        handed: the session whose markers were published last, whatever became of `session.json`.
        own_last: what was saved here last, by its trainer.
        unreadable: what of ours was damaged or taken away since the last life of the watcher.
    """

    size: int
    yaml: YamlSeen | None = None
    public: dict[str, tuple[Found, Content]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    handouts: dict[str, Content] = field(default_factory=dict)
    claims: dict[str, tuple[Claim, Content]] = field(default_factory=dict)
    shards: dict[Address, Content] = field(default_factory=dict)
    sidecars: dict[Tag, Held] = field(default_factory=dict)
    partials: dict[Address, Partial] = field(default_factory=dict)
    readers: set[Address] = field(default_factory=set)
    session: SessionRecord | None = None
    fences: dict[Job, FenceRecord] = field(default_factory=dict)
    given: dict[tuple[Job, Save, ShardKey], Address] = field(default_factory=dict)
    spoiled: set[Address] = field(default_factory=set)
    proven: set[Address] = field(default_factory=set)
    handed: SessionRecord | None = None
    own_last: tuple[Tag, Shape] | None = None
    unreadable: list[str] = field(default_factory=list)
    entries_limit: int = INODES
    resumed: int = 0
    rot_found: int = 0
    inodes: int = 0
    changes: int = 0

    # ---- the trainer

    def write_yaml(self, text: bytes) -> None:
        """Put a finished `replicator.yaml` there."""
        self.inodes += 1
        identity = YamlIdentity(self.inodes, len(text), self.inodes, text.decode())
        self.yaml = YamlSeen(identity, text)

    def save(self, name: str, step: int, content: Content, job: Job | None, key: ShardKey) -> None:
        """Finish a save, by rename."""
        self.inodes += 1
        found = Found(name, self.inodes, Step(step), job, key.rank, key.worker, content.size)
        self.public[name] = (found, content)

    # ---- room

    @property
    def used(self) -> int:
        """Bytes in use; a partial has all its room from the beginning."""
        kept = sum(content.size for content in self.shards.values())
        coming = sum(partial.tree.size for partial in self.partials.values())
        return kept + coming + sum(content.size for _, content in (*self.public.values(), *self.claims.values()))

    @property
    def free(self) -> int:
        """Bytes left."""
        return self.size - self.used

    @property
    def entries_free(self) -> int:
        """Inodes left."""
        kept = sum(entries(content.tree) + TREE for content in self.shards.values())
        coming = sum(entries(partial.tree) + PARTIAL for partial in self.partials.values())
        fresh = sum(entries(content.tree) + TREE for _, content in (*self.public.values(), *self.claims.values()))
        return self.entries_limit - kept - coming - fresh - NAMES * len(self.sidecars)

    def snapshot(self) -> Snapshot:
        """Scan."""
        finished = sorted((found for found, _ in self.public.values()), key=lambda found: (found.step, found.worker))
        room = Room(size=self.size, free=self.free, inodes=self.entries_limit, inodes_free=self.entries_free)
        return Snapshot(yaml=self.yaml, finished=tuple(finished), room=room)

    # ---- names

    def held(self) -> tuple[Held, ...]:
        """The inventory, by stat only: spoiled bytes stand as well."""
        return tuple(held for tag, held in sorted(self.sidecars.items()) if tag.address in self.shards)

    def fallen(self) -> tuple[Tag, ...]:
        """What has a name and no bytes."""
        return tuple(tag for tag in sorted(self.sidecars) if tag.address not in self.shards)

    def name(self, content: Content | None, tags: Iterable[Tag], *, own: bool, rotten: bool = False) -> str:
        """Give names to a whole shard, or more names to one that stands; returns why not."""
        self.changes += 1
        for tag in tags:
            for other in self.sidecars:
                if (other.job, other.save, other.key) == (tag.job, tag.save, tag.key) and other.address != tag.address:
                    return f"{tag.name} stands with another address"
        for tag in tags:
            if tag.address not in self.shards:
                if content is None:
                    return "it does not stand here"
                if content.address != tag.address or (content.bad() and not rotten):
                    raise TornError(f"{tag.name} was to be named although {len(content.bad())} leaves are bad")
                self.shards[tag.address] = content
                (self.spoiled.add if rotten else self.spoiled.discard)(tag.address)
                if not rotten:
                    self.proven.add(tag.address)
            known = self.sidecars.get(tag)
            own = own or (known is not None and known.own)
            self.sidecars[tag] = Held(tag=tag, own=own, committed=known is not None and known.committed)
            self.given[tag.job, tag.save, tag.key] = tag.address
        return ""

    def unname(self, tag: Tag) -> bool:
        """Take a name, and the bytes with the last one; False: they are being read."""
        others = any(other.address == tag.address for other in self.sidecars if other != tag)
        if tag in self.sidecars and not others and tag.address in self.readers:
            return False
        self.changes += 1
        self.sidecars.pop(tag, None)
        if not others:
            self.shards.pop(tag.address, None)
        return True

    # ---- the watcher's effects

    def watch(self, effect: do.Effect) -> did.Event | None:
        """Do what the watcher's thread does, at once."""
        match effect:
            case do.ClaimSave(name, inode, claim):
                found = self.public.get(name)
                if found is None or found[0].inode != inode or claim.name in self.claims:
                    return did.SaveGone(claim, "is not there any more")
                del self.public[name]
                self.claims[claim.name] = (claim, found[1])
                return did.SaveClaimed(claim, found[0].size)
            case do.HashClaim(claim):
                if claim.name not in self.claims:
                    return did.SaveGone(claim, "the claim is gone")
                content = self.claims[claim.name][1]
                return did.ClaimHashed(claim, content.address, content.size)
            case do.NameShard(claim, tag):
                if claim.name not in self.claims:
                    return did.SaveGone(claim, "the claim is gone")
                if self.entries_free < NAMES:
                    return did.NamingFailed(claim, tag, "no inode is left")
                fault = self.name(self.claims[claim.name][1], (tag,), own=True)
                if fault:
                    return did.HashFailed(claim, "refused", fault)
                del self.claims[claim.name]
                self.own_last = (tag, claim.shape)
                return did.ShardNamed(claim, tag)
            case do.DropClaim(claim):
                self.claims.pop(claim.name, None)
            case do.TakeInventory():
                return did.InventoryTaken(self.held(), self.fallen())
            case do.MarkCommitted(job, save):
                for tag, held in self.sidecars.items():
                    if tag.job == job and tag.save == save:
                        self.sidecars[tag] = msgspec.structs.replace(held, committed=True)
            case do.DropSaves(tags):
                busy = tuple(tag for tag in tags if not self.unname(tag))
                return did.SavesDropped(tuple(tag for tag in tags if tag not in busy), busy)
            case do.DropForeign(tags):
                busy = tuple(tag for tag in tags if not self.unname(tag))
                return did.ForeignDropped(tuple(tag for tag in tags if tag not in busy), busy)
            case do.ForgetJob(job, session):
                read = [tag for tag in list(self.sidecars) if tag.job == job and not self.unname(tag)]
                self.claims = {name: one for name, one in self.claims.items() if one[0].job != job}
                if read:
                    return did.JobForgotten(job, self.held(), "is being read")
                if session:
                    self.files.clear()
                    self.handouts.clear()
                    self.session = None
                self.fences.pop(job, None)
                return did.JobForgotten(job, self.held())
            case do.VerifyShard(address, stamp):
                if address not in self.shards:
                    return did.ShardVerified(address, stamp, "is not here")
                bad = self.shards[address].bad()
                if not bad:
                    self.proven.add(address)
                return did.ShardVerified(address, stamp, f"{len(bad)} leaves differ" if bad else "")
            case do.Quarantine(address):
                return self.condemn(address)
            case _:
                return self._write(effect)
        return None

    def condemn(self, address: Address) -> did.Event:
        """Take all names of corrupt bytes; the good leaves become a partial."""
        if address in self.readers:
            return did.ShardQuarantined(address, "is being read")
        self.changes += 1
        for tag in [tag for tag in self.sidecars if tag.address == address]:
            del self.sidecars[tag]
        content = self.shards.pop(address, None)
        if content is not None:
            bad = set(content.bad())
            good = {number: data for number, data in enumerate(content.leaves) if number not in bad}
            self.partials[address] = Partial(content.tree, good)
        return did.ShardQuarantined(address)

    def _write(self, effect: do.Effect) -> did.Event | None:
        match effect:
            case do.AdoptStrays(session, _):
                return did.StraysAdopted(session)
            case do.CleanUp():
                self.files.clear()
                self.handouts.clear()
                return did.CleanedUp()
            case do.WriteSession(record):
                if self.session is None or self.session.id != record.id:
                    self.proven.clear()
                self.session = record
                if record.markers:
                    self.handed = record
                return did.SessionWritten(record)
            case do.RemoveYaml(session, identity):
                if self.yaml is not None and self.yaml.identity == identity:
                    self.yaml = None
                return did.YamlRemoved(session)
            case do.WriteFailed(session, text):
                self.files["replicator.failed"] = text
                return did.FailedWritten(session)
            case do.WritePrerestore(step, _):
                self.files["replicator.prerestore"] = "{}" if step is None else f"restore-step: {step}"
            case do.AppendErrors(line):
                self.files["replicator.errors"] = self.files.get("replicator.errors", "") + line + "\n"
            case do.PublishMarkers(session, markers):
                for marker in markers:
                    if marker.name in self.handouts:
                        continue  # the trainer may have taken it already
                    if marker.address is not None:
                        self.handouts[marker.name] = self.shards[marker.address]
                    self.files[marker.name] = marker.address or ""
                return did.MarkersPublished(session)
            case do.WriteFence(job, record):
                self.fences[job] = record
                return did.FenceWritten(job, record)
            case _:
                pass
        return None

    def begin(self) -> did.Started:
        """What a new life of the watcher finds."""
        claims = tuple(claim for claim, _ in self.claims.values())
        for tag, held in sorted(self.sidecars.items()):
            known = self.fences.get(tag.job, FenceRecord())
            if held.committed and (known.committed is None or known.committed < tag.save):
                self.fences[tag.job] = msgspec.structs.replace(known, committed=tag.save)
        lineage = self._lineage() if self.session is None else None
        unreadable, self.unreadable = tuple(self.unreadable), []
        if lineage is not None and not unreadable:
            whose = f"epoch {lineage.epoch} of job {lineage.spec.job}"
            unreadable = (f"session.json: is missing although {whose} saved here",)
        return did.Started(
            session=self.session,
            fences=dict(self.fences),
            held=self.held(),
            fallen=self.fallen(),
            claims=claims,
            lineage=lineage,
            unreadable=unreadable,
        )

    def _lineage(self) -> Lineage | None:
        if self.own_last is None or self.own_last[0] not in self.sidecars:
            return None
        tag, shape = self.own_last
        return Lineage(SessionSpec(tag.job, tag.key.rank, shape), tag.save.epoch)

    # ---- faults

    def lose_session(self, *, damaged: bool) -> None:
        """`session.json` is gone, or is nothing that can be read."""
        self.session = None
        if damaged:
            self.unreadable.append("session.json: no JSON; kept as session.json.unreadable")

    def lose_fences(self, *, damaged: bool) -> None:
        """`fence.json` is gone, or is nothing that can be read."""
        self.fences.clear()
        if damaged:
            self.unreadable.append("fence.json: no JSON; kept as fence.json.unreadable")

    def rot(self, address: Address, number: int, data: bytes) -> None:
        """Bytes of an unfinished copy change; whoever has it open does not look at them again."""
        partial = self.partials[address]
        partial.leaves[number] = data
        partial.rotten.add(number)

    # ---- the transfer's effects

    def open_partial(self, effect: to_do.OpenPartial) -> receiving.ReceiverEvent:
        """Look what is there, or reserve the room."""
        address = effect.address
        if address in self.shards:
            return receiving.ShardStood()
        if address not in self.partials:
            if effect.tree is None:
                return receiving.PartialAbsent()
            try:
                tree = Tree.parse(b"".join(effect.tree))
            except ProtocolError as error:
                return _spoiled(effect.source, str(error))
            if tree.address != address:
                return _spoiled(effect.source, "is another tree")
            reserve = effect.reserve.size if effect.reserve is not None else 0
            if effect.reserve is not None and effect.reserve.alike:
                reserve = int(RESERVE * tree.size)
            if self.free < tree.size + reserve:
                for idle in [idle for idle in self.partials if idle not in self.readers]:
                    del self.partials[idle]
            if self.free < tree.size + reserve:
                lacking = tree.size + reserve - self.free
                return receiving.RoomMissing(f"{tree.size} bytes do not fit beside {reserve}", lacking)
            self.partials[address] = Partial(tree)
        partial = self.partials[address]
        self.readers.add(address)
        for number in [number for number in partial.rotten if not fits(partial.tree, number, partial.leaves[number])]:
            del partial.leaves[number]
            self.rot_found += 1
        partial.rotten.clear()
        if partial.leaves:
            self.resumed += 1
        marks = LeafSet(bytes(number in partial.leaves for number in range(partial.tree.leaves)))
        return receiving.PartialOpened(sizes_of(partial.tree), marks)

    def trim(self, reserve: int, busy: Collection[Address]) -> None:
        """Remove partials that nobody fills while less than the reserve is free."""
        for idle in [idle for idle in self.partials if idle not in self.readers and idle not in busy]:
            if self.free < reserve:
                del self.partials[idle]

    def _fits(self, tree: Tree, effect: to_do.OpenPartial) -> bool:
        size, inodes = (effect.reserve.size, effect.reserve.inodes) if effect.reserve is not None else (0, 0)
        return self.free >= tree.size + size and self.entries_free >= entries(tree) + PARTIAL + inodes

    def store(self, effect: to_do.StoreLeaves) -> receiving.ReceiverEvent:
        """Verify leaves and write the good ones."""
        partial = self.partials.get(effect.address)
        if partial is None:
            return receiving.StoreFailed(effect.source, effect.size, "its partial is gone")
        good, bad = [], []
        for run, frame in zip(effect.runs, effect.body, strict=True):
            offset = 0
            for number in leaves_in((run,)):
                length = partial.tree.leaf(number).size
                data = bytes(frame[offset : offset + length])
                offset += length
                if fits(partial.tree, number, data):
                    partial.leaves[number] = data
                    partial.rotten.discard(number)
                    good.append(number)
                else:
                    bad.append(number)
        return receiving.LeavesStored(effect.source, tuple(good), tuple(bad), effect.size)

    def name_received(self, effect: to_do.NameShard) -> receiving.ReceiverEvent:
        """Give a whole partial its names, or a shard that stands further ones."""
        partial = self.partials.get(effect.address)
        content: Content | None = None
        if partial is not None and len(partial.leaves) == partial.tree.leaves:
            content = Content(partial.tree, [partial.leaves[number] for number in range(partial.tree.leaves)])
        bad = set(content.bad()) if content is not None else set()
        if partial is not None and not bad <= partial.rotten:
            raise TornError(f"{effect.address:.13} was to be named although {len(bad)} leaves are bad")
        for naming in effect.namings:
            fault = self.name(content, naming.tags, own=naming.own, rotten=bool(bad))
            if fault:
                if effect.address not in self.shards:
                    self.partials.pop(effect.address, None)
                return receiving.NamingFailed(fault, clash="another" in fault)
        self.partials.pop(effect.address, None)
        return receiving.ShardNamed()

    # ---- reading

    def tree(self, address: Address) -> Tree | None:
        """The tree of what stands or comes in."""
        if address in self.shards:
            return self.shards[address].tree
        return self.partials[address].tree if address in self.partials else None

    def read(self, address: Address, runs: Sequence[Run]) -> tuple[bytes, ...]:
        """Read leaves as they are.

        Raises:
            CorruptError: they are not here.
        """
        leaves = dict(enumerate(self.shards[address].leaves)) if address in self.shards else {}
        if not leaves and address in self.partials:
            leaves = self.partials[address].leaves
        try:
            return tuple(b"".join(leaves[number] for number in leaves_in((run,))) for run in runs)
        except KeyError as error:
            raise CorruptError(f"{address:.13}: leaf {error} is gone") from error

    @contextmanager
    def open_shard(self, address: Address) -> "Iterator[OpenShard]":
        """Open a shard as the uploader does."""
        if address not in self.shards:
            raise FileNotFoundError(address)
        yield OpenShard(self.shards[address])


class OpenShard:
    """What the uploader reads."""

    def __init__(self, content: Content) -> None:
        self.tree = content.tree
        self._content = content

    def pread_leaf(self, number: int, buffer: bytearray | memoryview) -> int:
        """Read one leaf."""
        data = self._content.leaves[number]
        buffer[: len(data)] = data
        return len(data)


def entries(tree: Tree) -> int:
    """Return the inodes of a shard: its files, and the directory that holds them."""
    return tree.leaves + (tree.address[0] == "D")


def sizes_of(tree: Tree) -> list[int]:
    """Size of each leaf."""
    return [tree.leaf(number).size for number in range(tree.leaves)]


def _spoiled(source: Source | None, reason: str) -> receiving.ReceiverEvent:
    return receiving.PartialAbsent() if source is None else receiving.TreeSpoiled(source, reason)
