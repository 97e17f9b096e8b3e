"""One backup in the making: its name is reserved, its data goes up, it is sealed, its manifest is written; pure.

Any uploader of the job does a step. A step that fails is tried again after a pause; what fails too often is given up.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final, Protocol

from checkpoint_coordinator.backups import CLOSED, BackupRecord, LastBackup, Listing, Phase, Situation
from checkpoint_coordinator.chores import Chore
from checkpoint_replicator import __version__
from checkpoint_replicator.backup import ObjectMark, manifest_document, next_name, order_document
from checkpoint_replicator.fence import ZERO, Stamp
from checkpoint_replicator.ids import Host
from checkpoint_replicator.save import Save, Tag
from checkpoint_replicator.shape import Shape

__all__ = ["RETRY", "Making", "Note"]

RETRY: Final = 5.0
"""Seconds after which a failed listing or backup is tried again."""
MOST_FAILURES: Final = 5
"""After so many failed rounds a reserved backup is given up, and a new one begins under a new name."""


class Note(Protocol):
    """What tells people of an event."""

    def __call__(self, event: str, **fields: str) -> None:
        """Note it, with what it is about."""
        ...


@dataclass(slots=True, kw_only=True)
class Making:
    """A backup that is being made.

    Attributes:
        save: what it holds.
        shape: the save's.
        tags: the save's shards.
        begun: when, in monotonic seconds: a listing that was ordered since then shows which names are taken.
        turn: seconds that one uploader may keep a step to itself without moving.
        new_id: makes random ids.
        put: takes its record whenever that changed.
        note: tells people.
        before: why the one before it failed; its record says so until it is further than its name.
        phase: how far it is; one of CLOSED at its end.
        name: its directory; empty before one is chosen.
        stamp: under which that is reserved.
        chores: what uploaders are asked for in this phase.
        reason: why it is made or waits.
        usable: whether what stands under its name may be whole although it was given up.
        last: what it is once it is complete.
    """

    save: Save
    shape: Shape
    tags: tuple[Tag, ...]
    begun: float
    turn: float
    new_id: Callable[[], str]
    put: Callable[[BackupRecord], None]
    note: Note
    before: str = ""
    phase: Phase = Phase.LISTING
    name: str = ""
    stamp: Stamp = ZERO
    chores: list[Chore] = field(default_factory=list)
    reason: str = ""
    usable: bool = False
    last: LastBackup | None = None
    _objects: dict[str, ObjectMark] = field(default_factory=dict)
    _failures: int = 0
    _wait_until: float = float("-inf")

    def advance(self, at: Situation, listing: Listing | None, fault: str, known: Collection[str]) -> None:
        """Go on as far as answers and time allow.

        Args:
            at: what is so now.
            listing: one that was ordered since it was begun; None before there is one.
            fault: why there is none.
            known: names of backups that are taken though a listing may not show them.
        """
        for _ in Phase:  # each round may finish at most one phase
            phase = self.phase
            if phase in CLOSED or at.now < self._wait_until:
                return
            self._advance_phase(at, listing, fault, known)
            if self.phase is phase:
                return

    def _advance_phase(self, at: Situation, listing: Listing | None, fault: str, known: Collection[str]) -> None:
        match self.phase:
            case Phase.LISTING:
                if listing is not None and at.unix is not None:
                    self.name = next_name(at.unix, {entry.name for entry in listing.entries} | set(known))
                    self.stamp = at.stamp
                    self._enter(Phase.RESERVING)
                elif fault:
                    self.reason = fault
            case Phase.RESERVING:
                document = order_document(stamp=self.stamp, save=self.save, shape=self.shape)
                if self._one(at, "reserve", document=document):
                    self._enter(Phase.UPLOADING)
            case Phase.UPLOADING:
                self._upload(at)
            case Phase.SEALING:
                if self._one(at, "seal", tags=self.tags):
                    self._enter(Phase.CLOSING)
            case _:
                self._close(at)

    def _one(self, at: Situation, kind: str, *, tags: tuple[Tag, ...] = (), document: str = "") -> bool:
        """Have one uploader do one thing; True when it is done."""
        if not self.chores:
            self.chores = [Chore(kind, self.name, tags, document)]
        chore = self.chores[0]
        self._ask(chore, at, at.uploaders)
        if chore.exhausted:
            self._fail(at, chore.reason)
        return chore.result is not None

    def _ask(self, chore: Chore, at: Situation, able: Collection[Host]) -> None:
        chore.advance(at.now, self.turn, able, at.results, self.new_id)
        if chore.result is not None:
            for name, size in chore.result.sizes.items():
                self._objects[name] = ObjectMark(size, chore.result.crc32c.get(name, ""))

    def _upload(self, at: Situation) -> None:
        """Every address goes up once, from a host that holds it."""
        if not self.chores:
            by_host: dict[Host, list[Tag]] = {}
            for tag in {tag.address: tag for tag in reversed(self.tags)}.values():
                able = [host for host in at.uploaders if host in at.holders.get(tag.address, ())]
                if able:
                    by_host.setdefault(min(able, key=lambda host: len(by_host.get(host, ()))), []).append(tag)
            self.chores = [Chore("upload", self.name, tuple(sorted(tags))) for _, tags in sorted(by_host.items())]
        for chore in self.chores:
            able = [host for host in at.uploaders if all(host in at.holders.get(t.address, ()) for t in chore.tags)]
            self._ask(chore, at, able)
        done = {tag.address for chore in self.chores if chore.result is not None for tag in chore.tags}
        if all(tag.address in done for tag in self.tags):
            self._enter(Phase.SEALING)
            return
        failed = next((chore for chore in self.chores if chore.exhausted), None)
        covered = {tag.address for chore in self.chores for tag in chore.tags}
        homeless = next((tag for tag in self.tags if not at.holders.get(tag.address)), None)
        if homeless is not None and homeless.address not in done:
            self._fail(at, f"no live host with an uploader holds {homeless.name}")
        elif failed is not None:
            self._fail(at, failed.reason)
        elif any(tag.address not in covered for tag in self.tags):
            self._fail(at, "no host with an uploader holds every shard")
        elif any(not chore.orders() and chore.result is None for chore in self.chores) and at.uploaders:
            self._regroup(at)

    def _regroup(self, at: Situation) -> None:
        """A group of shards that no single host holds any more is taken apart."""
        rest = [chore for chore in self.chores if chore.result is not None or chore.orders()]
        for chore in self.chores:
            if chore not in rest:
                rest.extend(Chore("upload", self.name, (tag,)) for tag in chore.tags)
        if len(rest) == len(self.chores):
            self._fail(at, "no host with an uploader holds every shard")
        else:
            self.chores = rest

    def _close(self, at: Situation) -> None:
        document = ""
        if not self.chores:  # written once: the answer is held to what was ordered
            document = manifest_document(
                save=self.save,
                shape=self.shape,
                stamp=at.stamp,
                version=__version__,
                tags=self.tags,
                objects=self._objects,
            )
        if not self._one(at, "manifest", document=document) or at.unix is None:
            return
        self.last = LastBackup(name=self.name, save=self.save, verified_at=at.unix)
        self.phase = Phase.COMPLETE
        record = self._record(verified_at=at.unix)
        self.put(record)
        self.note("backup_verified", backup=self.name, save=str(self.save), size=str(record.bytes))

    def _enter(self, phase: Phase) -> None:
        again = f"tried again: {self.before}" if self.before and phase is Phase.RESERVING else ""
        self.phase, self.chores, self.reason = phase, [], again
        self.put(self._record(again))

    def _fail(self, at: Situation, reason: str) -> None:
        """Try the phase again after a pause; after too many rounds give the name up."""
        self._failures += 1
        self.chores = []
        self.reason = reason
        self._wait_until = at.now + RETRY
        self.note("backup_failed", backup=self.name, save=str(self.save), reason=reason)
        # A manifest that an earlier coordinator wrote makes this one fail: the next listing shows it as whole.
        self.usable = self.phase is Phase.CLOSING
        if self.usable or self._failures >= MOST_FAILURES:
            self.phase = Phase.ABANDONED
        self.put(self._record(reason))

    def _record(self, reason: str = "", verified_at: float = 0.0) -> BackupRecord:
        """Return what people and a later coordinator are to know of it."""
        return BackupRecord(
            name=self.name,
            save=self.save,
            shape=self.shape,
            state=self.phase,
            stamp=self.stamp,
            bytes=sum(mark.size for mark in self._objects.values()),
            verified_at=verified_at,
            reason=reason,
        )
