"""The ramdisk of a node: layout, names, locks, room. Watcher and transfer share it through this class."""

import os
import threading
import time
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from checkpoint_replicator.errors import BusyError, CorruptError, NoRoomError, ProtocolError
from checkpoint_replicator.fence import ZERO, Stamp
from checkpoint_replicator.ids import Address, Epoch, Job, SessionId, is_address
from checkpoint_replicator.messages import Room
from checkpoint_replicator.ramdisk.documents import Document, FenceRecord, JobFence, StatusRecord
from checkpoint_replicator.ramdisk.files import Files
from checkpoint_replicator.ramdisk.handout import Handouts
from checkpoint_replicator.ramdisk.layout import Layout, ShardName, parse_epoch, parse_name
from checkpoint_replicator.ramdisk.locks import Hold
from checkpoint_replicator.ramdisk.partial import Partial
from checkpoint_replicator.ramdisk.reading import ADDRESS_LIMIT, read_small
from checkpoint_replicator.ramdisk.register import Dropped, Recovery, Register
from checkpoint_replicator.ramdisk.room import admit, inodes_for, measure
from checkpoint_replicator.ramdisk.shard import Shard, read_tree
from checkpoint_replicator.ramdisk.sidecar import Inventory, Sidecar
from checkpoint_replicator.ramdisk.spare import Spare
from checkpoint_replicator.ramdisk.standing import Standing
from checkpoint_replicator.save import Save, Tag
from checkpoint_replicator.tree import Tree

__all__ = ["Claim", "Ramdisk"]

T = TypeVar("T")
DROPPED_AT_ONCE: Final = 16
"""Shards dropped in one section of the names lock: each section reads all sidecars once, and must be short."""


class Claim(msgspec.Struct, frozen=True, order=True):
    """A finished save taken from the trainer, not hashed yet."""

    epoch: Epoch
    name: ShardName
    path: Path


class Ramdisk:
    """One ramdisk. Everything blocks for the length of some system calls: call it from threads where that is long.

    What must be written so that room can be made again (names, sidecars, fence, session) may use a spare.

    Args:
        root: the directory that the trainer sees; it must exist.
        quota: bytes that may stand below it, where it is a plain directory; None: the file system's size.
        files: the system calls.

    Attributes:
        fences: `fence.json`; `raise_fence` writes it.
        status: `status.json`.
        handouts: markers and what they point to.
    """

    def __init__(self, root: Path, quota: int | None = None, files: Files | None = None) -> None:
        self.root = root
        self.quota = quota
        self.layout = Layout(root)
        self._files = files or Files()
        self._register = Register(self.layout, self._files)
        self._standing = Standing(self.layout, self._register)
        self._admission = threading.Lock()
        self._spare = Spare(self.layout.spare)
        for folder in self.layout.folders:
            self._files.make_own(folder)
        self.fences = Document(self.layout.fence, FenceRecord, self._files, self._spare)
        self._fenced: FenceRecord | None = None
        self._spoilt = False
        self.status = Document(self.layout.status, StatusRecord, self._files)
        self.handouts = Handouts(self.layout, self._register, self._files)

    # ---- life

    def hold(self, service: str, owner: str) -> Hold:
        """Take `<service>.lock` for the life of this process; `owner` tells a second one who has it.

        Raises:
            BusyError: another process has it; names it.
        """
        return Hold(self.layout.service_lock(service), owner)

    def recover(self) -> Recovery:
        """Make consistent what a crash left; for the watcher, at its start and when its transfer was started anew.

        Idempotent. A naming that did not end is undone (its bytes still stand in a claim or a partial), a dropping that
        did not end is ended, every `.meta` shows the highest epoch of its name.
        """
        recovery = self._spare.urgently(self._register.recover)
        self._refill()
        return recovery

    def raise_fence(
        self, job: Job, obeyed: Stamp = ZERO, committed: Save | None = None, keep: Stamp = ZERO, *, hold: bool = False
    ) -> JobFence:
        """Write down the highest stamp obeyed and the newest committed save, before acting on them; never lowers.

        `keep` and `hold` are of the last keep list that was obeyed.

        What does not parse any more is set aside, and written anew from what this process knows.

        Raises:
            NoRoomError: the ramdisk is full.
        """
        found, _ = self.read_fences()
        old = found or FenceRecord()
        new = old.raised(job, obeyed, committed, keep, hold=hold)
        if new != old or self._spoilt:
            self.fences.write(new)
            self._fenced, self._spoilt = new, False
        return new.of(job)

    def forget_fence(self, job: Job) -> None:
        """Remove a job's entry from `fence.json`: people ordered that this node forgets the job.

        Raises:
            NoRoomError: the ramdisk is full.
        """
        old, _ = self.read_fences()
        if old is not None and (job in old.jobs or self._spoilt):
            new = FenceRecord(jobs={name: fence for name, fence in old.jobs.items() if name != job})
            self.fences.write(new)
            self._fenced, self._spoilt = new, False

    def read_fences(self) -> tuple[FenceRecord | None, str]:
        """Return what `fence.json` holds, and why it is unreadable: then what this process read or wrote before."""
        found, fault = self.fences.salvage()
        if fault:
            self._spoilt = True
        elif found is not None or not self._spoilt:
            self._fenced, self._spoilt = found, False
        return self._fenced, fault

    def document(self, path: Path, kind: type[T]) -> Document[T]:
        """Return a JSON file of ours that one service owns, such as the watcher's `session.json`."""
        return Document(path, kind, self._files, self._spare)

    # ---- names

    def names(self) -> AbstractContextManager[None]:
        """Hold the names lock, for a short section in which public names are made or removed.

        Raises:
            BusyError: it is not free.
        """
        return self._register.lock()

    def write_public(self, name: str, text: str) -> None:
        """Replace a small public file of the contract (`replicator.failed`) at once.

        Raises:
            NoRoomError: the ramdisk is full and the spare gone; what stood there stays.
            BusyError: the names lock is not free.
        """
        self._spare.urgently(lambda: self._write_public(name, text))

    def _write_public(self, name: str, text: str) -> None:
        with self._register.lock():
            aside = self.layout.aside / name
            self._files.write(aside, text.encode(errors="backslashreplace"))
            self._files.rename(aside, self.root / name)

    def write_status(self, text: str) -> None:
        """Replace `status.json`; see StatusRecord for what at least stands in it.

        Raises:
            NoRoomError: the ramdisk is full; the old one stays.
        """
        aside = self.layout.status.with_name("status.json.tmp")
        self._files.write(aside, text.encode(errors="backslashreplace"))
        self._files.replace(aside, self.layout.status)

    def clear(self, paths: Collection[Path]) -> int:
        """Move public names that nobody needs any more into the trash; returns how many were there."""
        cleared = 0
        with self._register.lock():
            for path in paths:
                with suppress(FileNotFoundError):
                    self._register.trash(path)
                    cleared += 1
        return cleared

    def name_shard(
        self, source: Path, tree: Tree, tags: Collection[Tag], *, own: bool, verified_at: float | None = None
    ) -> tuple[Sidecar, ...]:
        """Give a verified shard its names: the one way in which anything gets a final name.

        The source (a claim, a whole partial) is moved. Where the address stands already, the tags are added and the
        source goes to the trash. What stands under the address but changed since it was verified is replaced.
        Idempotent; a crash at any point leaves nothing partial under a final name.

        Args:
            source: file or directory on the same file system whose bytes were verified against the tree.
            tree: of the source.
            tags: at least one; address and size must be the tree's.
            own: saved on this node.
            verified_at: seconds of the wall clock when the bytes were verified; None: now.

        Raises:
            RefusedError: the same name and epoch stands with another address: the first stays.
            BusyError: the names lock is not free, or what must be replaced is being read.
            NoRoomError: no room for the small files; the source stays.
            ProtocolError: a tag does not fit.
            FileNotFoundError: there is no source.
        """
        when = time.time() if verified_at is None else verified_at
        return self._spare.urgently(lambda: self._register.name(source, tree, tags, own=own, verified_at=when))

    def add_tags(self, tags: Collection[Tag], *, own: bool) -> tuple[Sidecar, ...]:
        """Give further tags to a shard that stands here already.

        Raises:
            CorruptError: it does not stand here (any more).
            RefusedError, BusyError, NoRoomError, ProtocolError: as `name_shard`.
        """
        addresses = {tag.address for tag in tags}
        if len(addresses) != 1:
            raise ProtocolError(f"tags of {len(addresses)} addresses were given, expected one")
        (address,) = addresses
        try:
            tree = self.tree(address)
        except FileNotFoundError as error:
            raise CorruptError(f"{self.layout.data(address)}: has no tree here") from error
        return self._spare.urgently(lambda: self._register.name(None, tree, tags, own=own, verified_at=0.0))

    def drop(self, tag: Tag) -> bool:
        """Take a shard's name away; its bytes go to the trash when nobody else names them. `sweep` frees the room.

        Returns:
            False when there is no such shard.

        Raises:
            BusyError: somebody reads it; nothing was changed, try again.
        """
        (done,) = self._drop([tag])
        if done.busy:
            raise BusyError(f"{self.layout.tree(tag.address)}: the shard is being read")
        return bool(done.gone)

    def drop_all(self, tags: Sequence[Tag]) -> tuple[Tag, ...]:
        """Take the names of many shards away, some in each section of the lock; returns those that somebody reads."""
        return tuple(tag for done in self._drop(tags) for tag in done.busy)

    def _drop(self, tags: Sequence[Tag]) -> list[Dropped]:
        return [
            self._spare.urgently(partial(self._register.drop, tags[start : start + DROPPED_AT_ONCE]))
            for start in range(0, len(tags), DROPPED_AT_ONCE)
        ]

    def condemn(self, address: Address) -> tuple[Sidecar, ...]:
        """Take all names from bytes that are corrupt (after they were reported); returns the sidecars that went.

        The bytes become the seed of a partial, whose good leaves need not travel again.

        Raises:
            BusyError: somebody reads it; nothing was changed, try again.
        """
        return self._spare.urgently(lambda: self._register.condemn(address))

    def commit(self, job: Job, saves: Collection[Save]) -> int:
        """Note in the sidecars that saves are committed; returns how many changed."""
        return self._spare.urgently(lambda: self._register.commit(job, saves))

    def sweep(self) -> int:
        """Empty the trash; returns how many entries could not be removed. May take long."""
        left = self._register.sweep()
        self._refill()
        return left

    # ---- what stands here

    def inventory(self) -> Inventory:
        """Read every sidecar, with the errors of those that do not parse."""
        return self._register.inventory()

    def sidecars(self) -> tuple[Sidecar, ...]:
        """Read every sidecar that parses."""
        return self.inventory().sidecars

    def fault(self, sidecar: Sidecar) -> str | None:
        """Say why a shard does not stand any more, by stat only; None while it stands."""
        return self._register.fault(sidecar)

    def standing(self, sidecar: Sidecar) -> bool:
        """Tell whether names, sizes and inodes are those of when it was verified (stat only)."""
        return self.fault(sidecar) is None

    def stocktake(self) -> tuple[tuple[Sidecar, ...], tuple[Sidecar, ...]]:
        """Read the sidecars once; return those of shards that stand, and of those that do not any more.

        What lies deep inside a directory is looked at now and then.
        """
        sidecars = self.sidecars()
        self._standing.forget({sidecar.tag.address for sidecar in sidecars})
        standing: list[Sidecar] = []
        fallen: list[Sidecar] = []
        for sidecar in sidecars:
            (standing if self._standing.stands(sidecar) else fallen).append(sidecar)
        return tuple(standing), tuple(fallen)

    def stands(self, address: Address) -> bool:
        """Tell whether a shard with this address stands here."""
        if not os.path.lexists(self.layout.data(address)):
            return False
        return any(self.standing(sidecar) for sidecar in self.inventory().of(address))

    def strays(self) -> tuple[tuple[ShardName, str], ...]:
        """List the `.meta` without a sidecar and their text: of another replicator, or of a lost `.replicator`."""
        inventory = self.inventory()
        known = {sidecar.tag.name for sidecar in inventory.sidecars}
        found = []
        for path in sorted(self.root.glob("*.meta")):
            name = parse_name(path.name, ".meta")
            if name is not None and str(name) not in known and not inventory.doubts(str(name)):
                with suppress(FileNotFoundError, ProtocolError):
                    found.append((name, read_small(path, ADDRESS_LIMIT).decode(errors="replace").strip()[:200]))
        return tuple(found)

    def tree(self, address: Address) -> Tree:
        """Read the tree of a named shard.

        Raises:
            FileNotFoundError: there is none.
            ProtocolError: it does not parse or has another address; names the file.
        """
        return read_tree(self.layout.tree(address), address)

    def open_shard(self, address: Address) -> Shard:
        """Open a named shard for reading; while it is open it is not removed.

        Raises:
            FileNotFoundError: it is not here.
            BusyError: it is just being removed.
            CorruptError: its data is missing.
            ProtocolError: its tree does not parse.
        """
        return Shard(address, self.layout.tree(address), self.layout.data(address))

    # ---- claims

    def claim(self, path: Path, epoch: Epoch, name: ShardName) -> Claim:
        """Take a finished save from the trainer by one rename; from then on only its name needs to be made.

        Raises:
            BusyError: an earlier one of the same name and epoch is not hashed yet; leave it where it is meanwhile.
            FileNotFoundError: it is gone.
        """
        return self._spare.urgently(lambda: self._claim(path, epoch, name))

    def _claim(self, path: Path, epoch: Epoch, name: ShardName) -> Claim:
        target = self.layout.claim(epoch, name)
        with self._register.lock():
            if os.path.lexists(target):
                raise BusyError(f"{target}: an earlier save of this name is still being hashed")
            self._files.make_folder(target.parent)
            self._files.rename(path, target)
        return Claim(epoch, name, target)

    def claims(self) -> tuple[Claim, ...]:
        """List the claims in order of epoch and name; names that are not ours are left alone."""
        found = []
        for path in self.layout.claims.glob("*/*"):
            name, epoch = parse_name(path.name), parse_epoch(path.parent.name)
            if name is not None and epoch is not None and not path.parent.is_symlink():
                found.append(Claim(epoch, name, path))
        return tuple(sorted(found))

    def discard(self, claim: Claim) -> None:
        """Move a claim into the trash: a finished save that was refused or skipped."""
        with self._register.lock():
            self._register.trash(claim.path)

    # ---- partials

    def partials(self) -> tuple[Address, ...]:
        """List the partials."""
        names = sorted(os.listdir(self.layout.partials))  # noqa: PTH208 - names, not paths
        return tuple(Address(name) for name in names if is_address(name))

    def partial(self, tree: Tree, *, reserve: int = 0, reserve_inodes: int = 0) -> Partial:
        """Go on with a partial, or make one if it fits beside the reserve; takes good leaves from a seed.

        Raises:
            NoRoomError: it does not fit; nothing was made.
        """
        folder = self.layout.partial(tree.address)
        with self._admission:
            if folder.is_symlink() or not folder.is_dir():
                self._files.remove(folder)
            partial = Partial.open(folder) or self._create(folder, tree, reserve, reserve_inodes)
        if os.path.lexists(folder / "seed"):
            partial.seed(folder / "seed")
            self._files.remove(folder / "seed")
        return partial

    def open_partial(self, address: Address) -> Partial | None:
        """Open a partial that can be gone on with; None otherwise."""
        return Partial.open(self.layout.partial(address))

    def discard_partial(self, address: Address) -> None:
        """Remove a partial, or what is left of one after its data got a name."""
        self._files.remove(self.layout.partial(address))

    def clear_partials(self) -> None:
        """Remove what is left of partials whose data got a name when the transfer died; for the transfer's start."""
        with self._register.lock():
            for address in self.partials():
                folder = self.layout.partial(address)
                if not any(os.path.lexists(folder / name) for name in ("data", "seed")):
                    self._files.remove(folder)

    def partial_age(self, address: Address, now: float) -> float:
        """Return for how many seconds of the wall clock nothing was noted in a partial; infinite for a broken one."""
        try:
            return now - (self.layout.partial(address) / "bitmap").stat().st_mtime
        except OSError:
            return float("inf")

    def _create(self, folder: Path, tree: Tree, reserve: int, reserve_inodes: int) -> Partial:
        inodes = inodes_for(len(tree.entries))
        try:
            admit(self.room(), tree.size, inodes, reserve=reserve, reserve_inodes=reserve_inodes)
            return Partial.create(folder, tree, self._files)
        except NoRoomError:
            if not os.path.lexists(folder / "seed"):
                raise
            self._files.remove(folder)  # better to fetch it whole than not at all
        admit(self.room(), tree.size, inodes, reserve=reserve, reserve_inodes=reserve_inodes)
        return Partial.create(folder, tree, self._files)

    # ---- room

    def room(self) -> Room:
        """Measure the room; with a quota it walks the whole directory."""
        return measure(self.root, self.quota)

    def _refill(self) -> None:
        if not self._spare.is_full:
            room = self.room()
            self._spare.refill(room.size, room.free)

    # ---- host

    @property
    def host(self) -> str | None:
        """The host name that was written here last; None before."""
        try:
            return read_small(self.layout.host, ADDRESS_LIMIT).decode(errors="replace").strip() or None
        except (FileNotFoundError, ProtocolError):
            return None

    def write_host(self, host: str) -> None:
        """Write down whose ramdisk this is."""
        if self.host != host:
            aside = self.layout.host.with_name("host.tmp")
            self._files.write(aside, f"{host}\n".encode(errors="backslashreplace"))
            self._files.replace(aside, self.layout.host)

    def publish(self, session: SessionId, name: ShardName, address: Address) -> bool:
        """Let `<name>.restore` point to a hand-out of a shard; see `Handouts.publish`."""
        tree = self.tree(address)
        return self._spare.urgently(lambda: self.handouts.publish(session, name, tree))

    def publish_none(self, name: ShardName) -> None:
        """Let `<name>.restore`, with step 0, say that there is nothing to restore."""
        self._spare.urgently(lambda: self.handouts.publish_none(name))
