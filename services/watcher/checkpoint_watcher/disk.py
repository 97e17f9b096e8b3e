"""Perform the machine's effects on the ramdisk. Blocking; `service.py` decides in which thread.

Everything but `hash` and `verify` is called by one thread, so it happens in the order in which it was decided.
"""

import errno
import os
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from checkpoint_replicator import failpoint
from checkpoint_replicator.errors import (
    BusyError,
    CorruptError,
    NoRoomError,
    ProtocolError,
    RefusedError,
    UnsupportedError,
)
from checkpoint_replicator.hashing import Watch, hash_shard, verify_shard
from checkpoint_replicator.ids import Address, Job, SessionId
from checkpoint_replicator.messages import Held
from checkpoint_replicator.ramdisk import Claim as Place
from checkpoint_replicator.ramdisk import FenceRecord as Fences
from checkpoint_replicator.ramdisk import Ramdisk, ShardName, Sidecar, parse_name
from checkpoint_replicator.save import Save, Tag
from checkpoint_replicator.session import SessionSpec
from checkpoint_replicator.tree import Tree
from checkpoint_watcher.effects import (
    AppendErrors,
    ClaimSave,
    CleanUp,
    DropClaim,
    DropForeign,
    DropSaves,
    Effect,
    ForgetJob,
    HashClaim,
    MarkCommitted,
    NameShard,
    PublishMarkers,
    PublishStatus,
    Quarantine,
    RemoveYaml,
    TakeInventory,
    VerifyShard,
    WriteFailed,
    WriteFence,
    WritePrerestore,
    WriteSession,
)
from checkpoint_watcher.entry import YAML, Kind, classify
from checkpoint_watcher.events import (
    ClaimHashed,
    CleanedUp,
    Event,
    FailedWritten,
    FenceWritten,
    ForeignDropped,
    HashFailed,
    InventoryTaken,
    JobForgotten,
    MarkersFailed,
    MarkersPublished,
    NamingFailed,
    SaveClaimed,
    SaveGone,
    SavesDropped,
    SessionWritten,
    ShardNamed,
    ShardQuarantined,
    ShardVerified,
    Started,
    YamlRemoved,
)
from checkpoint_watcher.record import Claim, FenceRecord, Lineage, Marker
from checkpoint_watcher.sessionfile import SessionFile

__all__ = ["Disk"]

MAX_LINE: Final = 2000
"""Characters of one line in `replicator.errors`."""
MAX_NAMED: Final = 8
"""Unreadable files that are named at the start."""
MAX_ERRORS: Final = 64 * 1024
"""Size of `replicator.errors` in bytes from which on nothing more is appended: nobody reads it."""
FORBIDDEN: Final = {errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP}
"""What a save answers that can never be read, whoever tries again."""
BACKUP_WISH: Final = b"_BACKUP_REQUESTED"
"""An empty file in a step's directory by which a trainer asks for a backup of it."""


class Disk:
    """One ramdisk, from the watcher's side.

    Args:
        ramdisk: which one.
        threads: that hash one shard together.
    """

    def __init__(self, ramdisk: Ramdisk, threads: int = 4) -> None:
        self.ramdisk = ramdisk
        self._threads = threads
        self._session = SessionFile(ramdisk)
        self._trees: dict[str, Tree] = {}
        self.stopping = threading.Event()

    def stop(self) -> None:
        """Let hashing in other threads end early."""
        self.stopping.set()

    def start(self) -> Started:
        """Make good what a crash left and read what there is.

        Sidecars tell too what `fence.json` knew of commits, and whose saves stand here where `session.json` is lost;
        then the node waits for the next yaml.
        """
        with failpoint.doing("Start"):
            recovery = self.ramdisk.recover()
            self._clear_notes()
            self.ramdisk.sweep()
        session, no_session = self._session.salvage()
        _, no_fences = self.ramdisk.read_fences()
        sidecars = self.ramdisk.sidecars()
        newest = {one.tag.job: one.tag.save for one in sorted(sidecars, key=_save_of) if one.committed}
        for job, save in newest.items():  # also of data that is gone: it is a trace of the commit
            self.ramdisk.raise_fence(job, committed=save)
        fences, _ = self.ramdisk.read_fences()
        lineage = _lineage(sidecars) if session is None else None
        if lineage is not None and not no_session:
            no_session = (
                f"{self._session.path}: is missing although epoch {lineage.epoch} of job {lineage.spec.job} saved here"
            )
        held, fallen = self._inventory()
        entries, wishing = self._trees_of(sidecars)
        return Started(
            session=session,
            fences={
                Job(job): FenceRecord(fence.obeyed, fence.newest_committed, fence.keep, fence.hold)
                for job, fence in (fences or Fences()).jobs.items()
            },
            held=held,
            fallen=fallen,
            claims=self._claims(session.lineage if session is not None else lineage),
            wished=tuple(sorted({one.tag.save for one in held if one.own and one.tag.address in wishing})),
            entries=entries,
            lineage=lineage,
            sessionless=no_session if session is None else "",
            unreadable=tuple(reason for reason in (no_session, no_fences) if reason)
            + tuple(f"{error}; nothing that it may name is removed" for error in recovery.unreadable[:MAX_NAMED]),
        )

    def perform(self, effect: Effect) -> Event | None:
        """Do it; returns its answer.

        Raises:
            TransientError: for now it cannot be done, mostly for want of room; nothing was changed.
        """
        with failpoint.doing(effect):
            return self._perform(effect)

    def _perform(self, effect: Effect) -> Event | None:
        match effect:
            case ClaimSave():
                return self._claim(effect)
            case NameShard():
                return self._name(effect)
            case DropClaim(claim):
                self._forget(claim)
            case TakeInventory(recover):
                if recover:
                    self.ramdisk.recover()
                return InventoryTaken(*self._inventory())
            case MarkCommitted(job, save):
                self.ramdisk.commit(job, [save])
            case DropSaves(tags):
                return SavesDropped(*self._drop(tags))
            case DropForeign(tags):
                return ForeignDropped(*self._drop(tags))
            case ForgetJob():
                return self._forget_job(effect)
            case Quarantine(address):
                return self._quarantine(address)
            case CleanUp():
                self._clean_up()
                return CleanedUp()
            case WriteSession(record):
                self._session.write(record)
                return SessionWritten(record)
            case RemoveYaml():
                return self._remove_yaml(effect)
            case WritePrerestore(step, backup):
                self.ramdisk.write_public("replicator.prerestore", _prerestore(step, backup))
            case WriteFailed(session, text):
                self.ramdisk.write_public("replicator.failed", text + "\n")
                return FailedWritten(session)
            case AppendErrors(line):
                self._append(line)
            case PublishMarkers(session, markers):
                return self._publish(session, markers)
            case WriteFence(job, record):
                self.ramdisk.raise_fence(job, record.stamp, record.committed, record.keep, hold=record.hold)
                return FenceWritten(job, record)
            case PublishStatus(text):
                with suppress(NoRoomError):  # the old one stays; a later one says more than this one done again
                    self.ramdisk.write_status(text)
            case HashClaim():
                return self.hash(effect)
            case VerifyShard():
                return self.verify(effect)
            case _:
                raise TypeError(type(effect).__name__)
        return None

    def sweep(self) -> None:
        """Free the room of what was removed; may take long."""
        with failpoint.doing("Sweep"):
            self.ramdisk.sweep()

    # ---- beside the others

    def hash(self, effect: HashClaim) -> Event | None:
        """Make a claim's tree; None: stopped."""
        claim = effect.claim
        try:
            tree = hash_shard(self._place(claim).path, self._threads, Watch(stop=self.stopping))
        except FileNotFoundError as error:
            return SaveGone(claim, str(error))
        except CorruptError as error:
            return HashFailed(claim, "mutated", str(error))
        except (UnsupportedError, ProtocolError) as error:
            return HashFailed(claim, "unsupported", str(error))
        except BusyError:
            return None
        except OSError as error:
            if error.errno not in FORBIDDEN:
                raise
            return HashFailed(claim, "unsupported", f"a part of it may not be read: {error.strerror}")
        self._trees[claim.name] = tree
        return ClaimHashed(claim, tree.address, tree.size, len(tree.entries), _wishes(tree))

    def verify(self, effect: VerifyShard) -> Event | None:
        """Compare a named shard with its tree; None: stopped."""
        address, stamp = effect.address, effect.stamp
        try:
            with self.ramdisk.open_shard(address) as shard:
                path = self.ramdisk.layout.data(address)
                difference = verify_shard(path, shard.tree, self._threads, Watch(stop=self.stopping))
        except FileNotFoundError as error:
            return ShardVerified(address, stamp, f"{error.filename or self.ramdisk.layout.tree(address)}: is missing")
        except (CorruptError, ProtocolError) as error:
            return ShardVerified(address, stamp, str(error))
        except BusyError as error:
            return None if self.stopping.is_set() else ShardVerified(address, stamp, str(error))
        return ShardVerified(address, stamp, "" if difference.is_none else f"{address:.13}: {difference}")

    # ---- claims

    def _place(self, claim: Claim) -> Place:
        name = ShardName(claim.job, claim.save.step, claim.key)
        return Place(claim.save.epoch, name, self.ramdisk.layout.claim(claim.save.epoch, name))

    def _forget_note(self, place: Place) -> None:
        note = _note(place)
        try:
            failpoint.change()
            note.unlink(missing_ok=True)
        except OSError:  # somebody's directory in its place
            self.ramdisk.clear([note])

    def _claim(self, effect: ClaimSave) -> Event:
        claim, source = effect.claim, self.ramdisk.root / effect.name
        place = self._place(claim)
        if os.path.lexists(place.path):
            return SaveGone(claim, "an earlier save of this name is still being hashed")
        try:
            if source.lstat().st_ino != effect.inode:
                return SaveGone(claim, "another one took its name")
            note = _note(place)
            note.parent.mkdir(parents=True, exist_ok=True)
            self.ramdisk.document(note, Claim).write(claim)
            self.ramdisk.claim(source, place.epoch, place.name)
        except FileNotFoundError:
            self._forget_note(place)
            return SaveGone(claim, f"{effect.name} is not there any more")
        return SaveClaimed(claim, _size(place.path))

    def _claims(self, lineage: Lineage | None) -> tuple[Claim, ...]:
        """What an earlier life took and did not name yet."""
        claims = []
        for place in self.ramdisk.claims():
            claim: Claim | None = None
            with suppress(ProtocolError):
                claim = self.ramdisk.document(_note(place), Claim).read()
            if claim is None and lineage is not None and place.name.job == lineage.spec.job:
                save = Save(place.epoch, place.name.step)
                claim = Claim(place.name.job, save, lineage.spec.shape, place.name.key)
            if claim is not None and self._place(claim) == place:
                claims.append(claim)
        return tuple(claims)

    def _clear_notes(self) -> None:
        """Remove the notes of claims that were not made, or were named, when an earlier life died."""
        for note in self.ramdisk.layout.claims.glob("*/*.json"):
            if not os.path.lexists(note.with_suffix("")):
                failpoint.change()
                note.unlink(missing_ok=True)

    def _name(self, effect: NameShard) -> Event:
        claim, tag = effect.claim, effect.tag
        place = self._place(claim)
        try:
            tree = self._trees.get(claim.name) or hash_shard(place.path, self._threads)
            self.ramdisk.name_shard(place.path, tree, [tag], own=True)
        except (NoRoomError, BusyError) as error:
            return NamingFailed(claim, tag, str(error))
        except FileNotFoundError as error:
            return SaveGone(claim, str(error))
        except (RefusedError, ProtocolError, CorruptError, UnsupportedError) as error:
            return HashFailed(claim, "refused", str(error))
        self._trees.pop(claim.name, None)
        self._forget_note(place)
        return ShardNamed(claim, tag)

    def _forget(self, claim: Claim) -> None:
        self._trees.pop(claim.name, None)
        place = self._place(claim)
        with suppress(FileNotFoundError):
            self.ramdisk.discard(place)
        self._forget_note(place)

    # ---- shards

    def _inventory(self) -> tuple[tuple[Held, ...], tuple[Tag, ...]]:
        """Return what stands, and what has a name and does not."""
        standing, fallen = self.ramdisk.stocktake()
        held = tuple(Held(tag=sidecar.tag, committed=sidecar.committed, own=sidecar.own) for sidecar in standing)
        return held, tuple(sorted(sidecar.tag for sidecar in fallen))

    def _trees_of(self, sidecars: Iterable[Sidecar]) -> tuple[dict[Address, int], set[Address]]:
        """Count the entries of shards that were saved here; and say again which were to be backed up.

        An earlier life that was asked for a backup may have died before it was made.
        """
        entries: dict[Address, int] = {}
        wishing: set[Address] = set()
        for address in {sidecar.tag.address for sidecar in sidecars if sidecar.own}:
            with suppress(OSError, ProtocolError):
                tree = self.ramdisk.tree(address)
                entries[address] = len(tree.entries)
                if _wishes(tree):
                    wishing.add(address)
        return entries, wishing

    def _drop(self, tags: Sequence[Tag]) -> tuple[tuple[Tag, ...], tuple[Tag, ...]]:
        busy = self.ramdisk.drop_all(tags)
        return tuple(tag for tag in tags if tag not in busy), busy

    def _quarantine(self, address: Address) -> Event:
        try:
            self.ramdisk.condemn(address)
        except BusyError as error:
            return ShardQuarantined(address, str(error))
        return ShardQuarantined(address)

    def _forget_job(self, effect: ForgetJob) -> Event:
        """The fence goes last: until then a crash leaves a host that must be told again."""
        job = effect.job
        busy = self.ramdisk.drop_all([one.tag for one in self.ramdisk.sidecars() if one.tag.job == job])
        for place in self.ramdisk.claims():
            if place.name.job == job:
                self.ramdisk.discard(place)
                self._forget_note(place)
        if not busy:
            if effect.session:
                self._clean_up()
                self._session.remove()
            self.ramdisk.forget_fence(job)
        held, fallen = self._inventory()
        reason = f"{busy[0].name} is being read" if busy else ""
        return JobForgotten(job, held, reason, fallen)

    # ---- the contract

    def _clean_up(self) -> None:
        left = []
        with os.scandir(self.ramdisk.root) as entries:
            for entry in entries:
                link = entry.is_symlink()
                directory = not link and entry.is_dir(follow_symlinks=False)
                if classify(entry.name, directory=directory, link=link) is Kind.LEFTOVER:
                    left.append(Path(entry.path))
        self.ramdisk.clear(left)
        self.ramdisk.handouts.discard()

    def _remove_yaml(self, effect: RemoveYaml) -> Event:
        path, wanted = self.ramdisk.root / YAML, effect.identity
        try:
            with self.ramdisk.names():
                facts = path.lstat()
                if (facts.st_ino, facts.st_size, facts.st_ctime_ns) == (wanted.inode, wanted.size, wanted.changed):
                    failpoint.change()
                    self._take_yaml(path, facts)
        except FileNotFoundError:
            pass
        except OSError as error:
            return YamlRemoved(effect.session, f"{path} cannot be removed: {error.strerror}")
        return YamlRemoved(effect.session)

    def _take_yaml(self, path: Path, facts: os.stat_result) -> None:
        """Remove the yaml that was looked at; one that its trainer put there since then goes back."""
        aside = self.ramdisk.layout.aside / YAML
        path.rename(aside)
        now = aside.lstat()
        if (now.st_ino, now.st_size, now.st_mtime_ns) != (facts.st_ino, facts.st_size, facts.st_mtime_ns):
            with suppress(FileExistsError):  # or a still newer one
                os.link(aside, path, follow_symlinks=False)
        aside.unlink()

    def _append(self, line: str) -> None:
        path = self.ramdisk.root / "replicator.errors"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with suppress(OSError), self.ramdisk.names():  # what cannot be told here stands in the report and in the log
            file = os.open(path, flags, 0o644)
            try:
                if os.fstat(file).st_size < MAX_ERRORS:
                    os.write(file, (" ".join(line.split())[:MAX_LINE] + "\n").encode(errors="backslashreplace"))
            finally:
                os.close(file)

    def _publish(self, session: SessionId, markers: tuple[Marker, ...]) -> Event:
        """Publish what is missing: a marker that the trainer renamed already still leads where it led."""
        handout = True
        taken: set[str] = set()
        for entry in self.ramdisk.root.iterdir():
            with suppress(OSError):  # no link, or gone meanwhile
                taken.add(str(entry.readlink()))
        for marker in markers:
            name = parse_name(marker.name, ".restore")
            if name is None:
                raise ProtocolError(f"{marker.name[:80]!r} is no name of a marker")
            if marker.address is None:
                self.ramdisk.handouts.publish_none(name)
            elif f"{marker.address}.data" in taken:
                handout = False
            elif not any(f"{session}/{marker.address}" in target for target in taken):
                try:
                    handout &= self.ramdisk.publish(session, name, marker.address)
                except (FileNotFoundError, ProtocolError) as error:
                    return MarkersFailed(session, str(error))
        return MarkersPublished(session, handout)


def _note(place: Place) -> Path:
    """Beside a claim stands what it is, since the name does not say the shape."""
    return place.path.with_name(f"{place.path.name}.json")


def _save_of(sidecar: Sidecar) -> Save:
    return sidecar.tag.save


def _lineage(sidecars: Iterable[Sidecar]) -> Lineage | None:
    """Whose saves stand here: those that were saved here last."""
    own = [sidecar for sidecar in sidecars if sidecar.own and sidecar.tag.save.epoch]
    if not own:
        return None
    tag = max(own, key=lambda sidecar: sidecar.verified_at).tag
    return Lineage(SessionSpec(tag.job, tag.key.rank, tag.shape), tag.save.epoch)


def _wishes(tree: Tree) -> bool:
    return any(file.path == BACKUP_WISH for file in tree.files)


def _prerestore(step: int | None, backup: str | None) -> str:
    if step is None:
        return "{}\n"
    return f"restore-step: {step}\n" + (f"restore-backup: {backup}\n" if backup is not None else "")


def _size(path: Path) -> int:
    if not path.is_dir():
        return path.lstat().st_size
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):  # gone meanwhile, or too deep; whoever hashes it says so
                total += (Path(folder) / name).lstat().st_size
    return total
