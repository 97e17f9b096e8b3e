"""Backups: when one is due, and the order of its steps; pure.

list → reserve (`ORDER.json`) → upload (all data and trees) → seal (all `.meta`) → manifest. Any uploader of the job
does a step; only after the manifest the backup counts, and only from the last one that counts ages are measured.
"""

from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from checkpoint_coordinator.chores import Chore, Results
from checkpoint_replicator import __version__
from checkpoint_replicator.backup import ObjectMark, manifest_document, next_name, order_document, parse_order, time_of
from checkpoint_replicator.errors import ProtocolError
from checkpoint_replicator.fence import ZERO, Stamp
from checkpoint_replicator.ids import Address, Host
from checkpoint_replicator.messages import BackupEntry
from checkpoint_replicator.records import BackupOrder
from checkpoint_replicator.save import Save, Tag
from checkpoint_replicator.session import SessionSpec
from checkpoint_replicator.shape import Shape
from checkpoint_replicator.times import Times
from checkpoint_replicator.wishes import Branch

__all__ = [
    "CLOSED",
    "Archive",
    "BackupRecord",
    "Interval",
    "LastBackup",
    "Listing",
    "Phase",
    "Situation",
    "due",
    "interval_of",
]

DEFAULT_MINUTES: Final = 30.0
"""The contract's default where a yaml names no interval."""
RETRY: Final = 5.0
"""Seconds after which a failed listing or backup is tried again."""
MOST_FAILURES: Final = 5
"""After so many failed rounds a reserved backup is given up, and a new one begins under a new name."""
MOST_RECORDS: Final = 64


class Phase(StrEnum):
    """How far a backup is."""

    LISTING = "listing"
    RESERVING = "reserving"
    UPLOADING = "uploading"
    SEALING = "sealing"
    CLOSING = "closing"
    COMPLETE = "complete"
    ABANDONED = "abandoned"
    SUPERSEDED = "superseded"
    """People went back behind it, and a later backup of the new line is verified: only an order restores it."""


CLOSED: Final = frozenset({Phase.COMPLETE, Phase.ABANDONED, Phase.SUPERSEDED})
"""Nothing more is done for a backup in these."""


class BackupRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`…:backup:<name>`: one backup, for people and for a coordinator that takes over.

    Attributes:
        name: its directory.
        save: what it holds.
        shape: the save's.
        state: a Phase.
        stamp: under which its name was reserved.
        bytes: of all its objects.
        verified_at: when its manifest stood, in Unix seconds; 0 before.
        reason: why it failed or waits.
    """

    name: str
    save: Save
    shape: Shape
    state: Phase
    stamp: Stamp
    bytes: int = 0
    verified_at: float = 0.0
    reason: str = ""


class LastBackup(msgspec.Struct, frozen=True, kw_only=True):
    """`…:lastbackup`: the last verified one."""

    name: str
    save: Save
    verified_at: float


class Listing(msgspec.Struct, frozen=True):
    """One successful listing of `<root>/<job>/`.

    Attributes:
        asked: when it was ordered, in monotonic seconds.
        entries: the backups.
        forced: what stands in `restore.version`, empty without one; None: its uploader did not look.
    """

    asked: float
    entries: tuple[BackupEntry, ...]
    forced: str | None = None


class Interval(msgspec.Struct, frozen=True):
    """How often the trainers want a backup; None: not by this measure."""

    minutes: float | None
    steps: int | None


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """What the archive looks at.

    Attributes:
        now: monotonic seconds.
        unix: Redis TIME, in seconds; None while it is not known.
        stamp: of decisions made now.
        uploaders: hosts with a backup root and a live uploader, best first.
        results: answers to orders.
        committed: the newest committed save of the running epoch; None without.
        shape: its shape.
        tags: its shards.
        holders: address to the live hosts that hold it.
        interval: what the yamls ask for.
        requested: saves whose directories held `_BACKUP_REQUESTED`.
        hold: people look: nothing is ordered.
    """

    now: float
    unix: float | None
    stamp: Stamp
    uploaders: tuple[Host, ...] = ()
    results: Results = {}
    committed: Save | None = None
    shape: Shape | None = None
    tags: tuple[Tag, ...] = ()
    holders: Mapping[Address, Collection[Host]] = {}
    interval: Interval = Interval(DEFAULT_MINUTES, None)
    requested: Collection[Save] = ()
    hold: bool = False


class Work(msgspec.Struct):
    """The backup in hand."""

    save: Save
    shape: Shape
    tags: tuple[Tag, ...]
    phase: Phase
    begun: float
    name: str = ""
    stamp: Stamp = ZERO
    chores: list[Chore] = msgspec.field(default_factory=list)
    objects: dict[str, ObjectMark] = msgspec.field(default_factory=dict)
    failures: int = 0
    wait_until: float = float("-inf")
    reason: str = ""

    def record(self, state: Phase, reason: str = "", verified_at: float = 0.0) -> BackupRecord:
        """Return what people and a later coordinator are to know of it."""
        return BackupRecord(
            name=self.name,
            save=self.save,
            shape=self.shape,
            state=state,
            stamp=self.stamp,
            bytes=sum(mark.size for mark in self.objects.values()),
            verified_at=verified_at,
            reason=reason,
        )


def interval_of(specs: Collection[SessionSpec]) -> Interval:
    """Return the shortest intervals that any yaml asks for; 30 minutes where none asks for any."""
    minutes = [s.backup_interval_minutes for s in specs if s.backup_interval_minutes is not None]
    steps = [s.backup_interval_steps for s in specs if s.backup_interval_steps is not None]
    if not minutes and not steps:
        return Interval(DEFAULT_MINUTES, None)
    return Interval(min(minutes, default=None), min(steps, default=None))


def due(committed: Save, last: LastBackup | None, unix: float, interval: Interval, requested: Collection[Save]) -> str:
    """Say why a backup of this save is due; empty when it is not."""
    if last is not None and last.save >= committed:
        return ""
    if last is None:
        return "no verified backup yet"
    asked = [save for save in requested if last.save < save <= committed]
    if asked:
        return f"requested with save {max(asked)}"
    age = unix - last.verified_at
    if interval.minutes is not None and (age < 0 or age >= interval.minutes * 60):
        return f"the last verified one is {age / 60:.0f} minutes old"
    if interval.steps is not None:
        behind = committed.step - last.save.step
        if behind >= interval.steps or behind < 0:
            return f"the last verified one is {behind} steps behind"
    return ""


class Archive:
    """The job's backups.

    Attributes:
        last: the last verified one.
        records: what is known of each, by name.
        listing: the last successful listing.
        listing_fault: why the last try to list failed; empty when it did not.
        notes: what people should know since they were last taken.
    """

    def __init__(self, times: Times, new_id: Callable[[], str]) -> None:
        self.last: LastBackup | None = None
        self.records: dict[str, BackupRecord] = {}
        self.listing: Listing | None = None
        self.listing_fault = ""
        self.notes: list[dict[str, str]] = []
        self._times = times
        self._new_id = new_id
        self._work: Work | None = None
        self._list: Chore | None = None
        self._list_asked = 0.0
        self._list_wanted: float | None = None
        self._list_after = float("-inf")
        self._sweep: Chore | None = None
        self._unforce: Chore | None = None
        self._unforce_after = float("-inf")
        self._held = False
        self._unverified_since: float | None = None
        self._overdue = False

    @property
    def superseded(self) -> frozenset[str]:
        """The names of the backups that only an order restores."""
        return frozenset(name for name, record in self.records.items() if record.state is Phase.SUPERSEDED)

    @property
    def save(self) -> Save | None:
        """The save under backup: it is kept."""
        return self._work.save if self._work else None

    @property
    def tags(self) -> tuple[Tag, ...]:
        """The shards of that save: their holders are asked for, however many saves were committed since."""
        return self._work.tags if self._work else ()

    def recall(self, records: Mapping[str, BackupRecord], last: LastBackup | None) -> None:
        """Take up what an earlier coordinator wrote."""
        self.records = dict(records)
        if last is not None and (self.last is None or last.name > self.last.name):
            self.last = last

    def forget(self) -> None:
        """Let go of all that was known of backups: the next listing shows what there is."""
        self.records, self.last, self.listing = {}, None, None
        self._work = self._sweep = self._unforce = None

    def supersede(self, branch: Branch) -> tuple[str, ...]:
        """Take backups that people went back behind out of all later decisions; returns the names of those."""
        names: list[str] = []
        before = self.superseded
        for entry in self.listing.entries if self.listing is not None else ():
            if not entry.whole or not entry.tags or entry.name == branch.backup or entry.name in before:
                continue
            save = entry.tags[0].save
            newer_foreign = save.epoch == 0 and branch.backup is not None and entry.name > branch.backup
            if branch.outdid(save) or (newer_foreign and not branch.bears(save)):
                record = self.records.get(entry.name) or BackupRecord(
                    name=entry.name, save=save, shape=entry.tags[0].shape, state=Phase.COMPLETE, stamp=ZERO
                )
                names.append(entry.name)
                restored = branch.backup or branch.save or "a fresh start"
                reason = f"{restored} was restored by order in epoch {branch.epoch}"
                self._put(msgspec.structs.replace(record, state=Phase.SUPERSEDED, reason=reason))
        return tuple(names)

    def remove_order(self, document: str, at: Situation) -> bool:
        """Have `restore.version` removed where it still says this; True when that is done."""
        if self._unforce is not None and self._unforce.result is not None:
            self._unforce = None
            return True
        if at.hold or at.now < self._unforce_after:
            return False
        if self._unforce is None:
            self._unforce = Chore("unforce", document=document)
        self._unforce.advance(at.now, self._times.uploader_turn, at.uploaders, at.results, self._new_id)
        if self._unforce.exhausted:
            self._unforce, self._unforce_after = None, at.now + RETRY
        return False

    def want_listing(self, since: float) -> None:
        """Ask for a listing that was ordered at this moment or later."""
        if self.listing is None or self.listing.asked < since:
            self._list_wanted = since

    def listed_since(self, moment: float) -> Listing | None:
        """Return the listing if it was ordered at this moment or later."""
        return self.listing if self.listing is not None and self.listing.asked >= moment else None

    def top_stamp(self) -> Stamp:
        """Return the highest stamp under which a backup that counts was written, as far as it was listed."""
        entries = self.listing.entries if self.listing is not None else ()
        return max((entry.stamp for entry in entries if entry.whole), default=ZERO)

    def advance(self, at: Situation) -> None:
        """Go on as far as answers and time allow."""
        self._held = at.hold
        self._watch_age(at)
        self._advance_listing(at)
        if not at.hold:  # what was begun waits as it is
            self._advance_work(at)
            self._advance_sweep(at)

    def orders(self) -> dict[Host, tuple[BackupOrder, ...]]:
        """Return all that uploaders are to do now."""
        others = () if self._held else (self._sweep, self._unforce)
        chores = [chore for chore in (self._list, *others) if chore is not None]
        if self._work is not None and not self._held:
            chores.extend(self._work.chores)
        listed: dict[Host, list[BackupOrder]] = {}
        for chore in chores:
            for host, order in chore.orders():
                listed.setdefault(host, []).append(order)
        return {host: tuple(orders) for host, orders in listed.items()}

    def next_moment(self, now: float) -> float | None:
        """Return when to look again although nothing was reported."""
        busy = self._list is not None or self._work is not None or self._sweep is not None
        busy = busy or self._list_wanted is not None or self._unforce is not None
        return now + 1.0 if busy else None

    def _watch_age(self, at: Situation) -> None:
        """Raise an alarm, once, when the last verified backup is twice as old as it may be."""
        minutes = at.interval.minutes
        if at.committed is None or at.unix is None or minutes is None or not at.uploaders:
            return
        if self.last is not None and self.last.save >= at.committed:
            self._unverified_since, self._overdue = None, False
            return
        if self._unverified_since is None:
            self._unverified_since = at.now
        age = at.unix - self.last.verified_at if self.last is not None else at.now - self._unverified_since
        if age >= 2 * minutes * 60 and not self._overdue:
            self._overdue = True
            found = f"verified {age / 60:.0f} minutes ago" if self.last is not None else "not verified yet"
            reason = f"the last one was {found}, expected one each {minutes:g} minutes"
            self._note("backup_overdue", save=str(at.committed), reason=reason)

    # ---- listing

    def _advance_listing(self, at: Situation) -> None:
        if self._list is None and self._list_wanted is not None and at.now >= self._list_after and at.uploaders:
            self._list, self._list_asked = Chore("list"), at.now
        if self._list is None:
            return
        self._list.advance(at.now, self._times.uploader_turn, at.uploaders, at.results, self._new_id)
        if self._list.result is not None:
            self.listing = Listing(self._list_asked, self._list.result.entries, self._list.result.forced)
            self.listing_fault = ""
            if self._list_wanted is not None and self._list_asked >= self._list_wanted:
                self._list_wanted = None
            self._list = None
            self._adopt(self.listing)
        elif self._list.exhausted or (not at.uploaders and not self._list.orders()):
            self.listing_fault = self._list.reason or "no uploader answers"
            self._list = None
            self._list_after = at.now + RETRY
        elif self._list.reason:
            self.listing_fault = self._list.reason

    def _adopt(self, listing: Listing) -> None:
        """A backup that a listing shows as whole is verified, whoever made it."""
        whole = [entry for entry in listing.entries if entry.whole and entry.tags]
        if not whole:
            return
        for entry in whole:
            record = self.records.get(entry.name)
            if record is not None and record.state is Phase.ABANDONED:
                at = time_of(entry.name) or 0.0
                self._put(msgspec.structs.replace(record, state=Phase.COMPLETE, verified_at=at, reason=""))
        superseded = self.superseded
        valid = [entry for entry in whole if entry.name not in superseded]
        newest = max(valid, key=lambda entry: entry.name, default=None)
        if newest is None:
            return
        if self.last is None or newest.name > self.last.name:
            at = time_of(newest.name) or 0.0
            self.last = LastBackup(name=newest.name, save=newest.tags[0].save, verified_at=at)

    # ---- a backup

    def _advance_work(self, at: Situation) -> None:
        if self._work is None:
            self._begin(at)
        if self._work is None or at.now < self._work.wait_until:
            return
        for _ in Phase:  # each round may finish at most one phase
            phase = self._work.phase
            self._advance_phase(self._work, at)
            if self._work is None or self._work.phase is phase or at.now < self._work.wait_until:
                return

    def _begin(self, at: Situation) -> None:
        if at.committed is None or at.shape is None or at.unix is None or not at.uploaders or not at.tags:
            return
        if self.last is None and self.listing is None:
            self.want_listing(at.now)  # the last verified one may be in the bucket and nowhere else
            return
        unfinished = self._unfinished(at)
        if unfinished is not None:
            self._work = unfinished
            return
        why = due(at.committed, self.last, at.unix, at.interval, at.requested)
        if why:
            self._work = Work(at.committed, at.shape, at.tags, Phase.LISTING, at.now, reason=why)
            self.want_listing(at.now)
            self._note("backup_due", save=str(at.committed), reason=why)

    def _unfinished(self, at: Situation) -> Work | None:
        """Go on with what an earlier coordinator began, if the save still stands: a backup belongs to its save."""
        for record in self.records.values():
            if record.state in CLOSED:
                continue
            if record.save == at.committed and record.shape == at.shape:
                return Work(
                    record.save, record.shape, at.tags, Phase.RESERVING, at.now, name=record.name, stamp=record.stamp
                )
            self._put(
                msgspec.structs.replace(record, state=Phase.ABANDONED, reason="its save is not the newest any more")
            )
            self._abandon(record.name)
            return None
        return None

    def _advance_phase(self, work: Work, at: Situation) -> None:
        match work.phase:
            case Phase.LISTING:
                listing = self.listed_since(work.begun)
                if listing is not None and at.unix is not None:
                    names = {entry.name for entry in listing.entries} | set(self.records)
                    work.name, work.stamp = next_name(at.unix, names), at.stamp
                    self._enter(work, Phase.RESERVING)
                elif self.listing_fault:
                    work.reason = self.listing_fault
            case Phase.RESERVING:
                document = order_document(stamp=work.stamp, save=work.save, shape=work.shape)
                if self._one(work, at, "reserve", document=document) is not None:
                    self._enter(work, Phase.UPLOADING)
            case Phase.UPLOADING:
                self._upload(work, at)
            case Phase.SEALING:
                if self._one(work, at, "seal", tags=work.tags) is not None:
                    self._enter(work, Phase.CLOSING)
            case _:
                self._close(work, at)

    def _one(
        self, work: Work, at: Situation, kind: str, *, tags: tuple[Tag, ...] = (), document: str = ""
    ) -> Chore | None:
        """Have one uploader do one thing; returns the chore when it is done."""
        if not work.chores:
            work.chores = [Chore(kind, work.name, tags, document)]
        chore = work.chores[0]
        chore.advance(at.now, self._times.uploader_turn, at.uploaders, at.results, self._new_id)
        if chore.result is not None:
            self._count(work, chore)
            return chore
        if chore.exhausted:
            self._fail(work, at, chore.reason)
        return None

    def _upload(self, work: Work, at: Situation) -> None:
        """Every address goes up once, from a host that holds it."""
        if not work.chores:
            by_host: dict[Host, list[Tag]] = {}
            for tag in {tag.address: tag for tag in reversed(work.tags)}.values():
                able = [host for host in at.uploaders if host in at.holders.get(tag.address, ())]
                if able:
                    by_host.setdefault(min(able, key=lambda host: len(by_host.get(host, ()))), []).append(tag)
            work.chores = [Chore("upload", work.name, tuple(sorted(tags))) for _, tags in sorted(by_host.items())]
        for chore in work.chores:
            able = [host for host in at.uploaders if all(host in at.holders.get(t.address, ()) for t in chore.tags)]
            chore.advance(at.now, self._times.uploader_turn, able, at.results, self._new_id)
            if chore.result is not None:
                self._count(work, chore)
        done = {tag.address for chore in work.chores if chore.result is not None for tag in chore.tags}
        if all(tag.address in done for tag in work.tags):
            self._enter(work, Phase.SEALING)
            return
        failed = next((chore for chore in work.chores if chore.exhausted), None)
        covered = {tag.address for chore in work.chores for tag in chore.tags}
        homeless = next((tag for tag in work.tags if not at.holders.get(tag.address)), None)
        if homeless is not None and homeless.address not in done:
            self._fail(work, at, f"no live host with an uploader holds {homeless.name}")
        elif failed is not None:
            self._fail(work, at, failed.reason)
        elif any(tag.address not in covered for tag in work.tags):
            self._fail(work, at, "no host with an uploader holds every shard")
        elif any(not chore.orders() and chore.result is None for chore in work.chores) and at.uploaders:
            self._regroup(work, at)

    def _regroup(self, work: Work, at: Situation) -> None:
        """A group of shards that no single host holds any more is taken apart."""
        rest = [chore for chore in work.chores if chore.result is not None or chore.orders()]
        for chore in work.chores:
            if chore not in rest:
                rest.extend(Chore("upload", work.name, (tag,)) for tag in chore.tags)
        if len(rest) == len(work.chores):
            self._fail(work, at, "no host with an uploader holds every shard")
        else:
            work.chores = rest

    def _close(self, work: Work, at: Situation) -> None:
        if not work.chores:
            document = manifest_document(
                save=work.save,
                shape=work.shape,
                stamp=at.stamp,
                version=__version__,
                tags=work.tags,
                objects=work.objects,
            )
            work.chores = [Chore("manifest", work.name, document=document)]
        if self._one(work, at, "manifest") is None or at.unix is None:
            return
        record = work.record(Phase.COMPLETE, verified_at=at.unix)
        self._put(record)
        self.last = LastBackup(name=work.name, save=work.save, verified_at=at.unix)
        self._note("backup_verified", backup=work.name, save=str(work.save), size=str(record.bytes))
        self._work = None

    def _enter(self, work: Work, phase: Phase) -> None:
        work.phase, work.chores, work.reason = phase, [], ""
        self._put(work.record(phase))

    def _count(self, work: Work, chore: Chore) -> None:
        result = chore.result
        if result is None:
            return
        for name, size in result.sizes.items():
            work.objects[name] = ObjectMark(size, result.crc32c.get(name, ""))

    def _fail(self, work: Work, at: Situation, reason: str) -> None:
        """Try the phase again after a pause; after too many rounds give the name up and begin anew."""
        work.failures += 1
        work.chores = []
        work.reason = reason
        work.wait_until = at.now + RETRY
        self._note("backup_failed", backup=work.name, save=str(work.save), reason=reason)
        again = work.failures < MOST_FAILURES and work.phase is not Phase.CLOSING
        if again:
            self._put(work.record(work.phase, reason))
            return
        # A manifest that an earlier coordinator wrote makes this one fail: the next listing shows it as whole.
        self._put(work.record(Phase.ABANDONED, reason))
        self._work = None
        self.want_listing(at.now)
        if work.phase is not Phase.CLOSING:
            self._abandon(work.name)

    # ---- sweeps

    def _abandon(self, name: str) -> None:
        if name and self._sweep is None:
            self._sweep = Chore("abandon", name)

    def _advance_sweep(self, at: Situation) -> None:
        if self._sweep is None:
            self._find_leftover(at)
        if self._sweep is None:
            return
        self._sweep.advance(at.now, self._times.uploader_turn, at.uploaders, at.results, self._new_id)
        if self._sweep.result is not None:
            self._note("backup_abandoned", backup=self._sweep.name)
        elif self._sweep.exhausted:  # what is left shows in the next listing
            self._list_wanted, self._list_after = at.now, at.now + RETRY
        if self._sweep.result is not None or self._sweep.exhausted:
            self._sweep = None

    def _find_leftover(self, at: Situation) -> None:
        """An order without a manifest that nobody works on is closed, so that a late seal is refused."""
        if self._work is not None or self.listing is None or self._list is not None:
            return
        for entry in self.listing.entries:
            known = self.records.get(entry.name)
            if not entry.order or (known is not None and known.state is not Phase.ABANDONED):
                continue
            try:
                stamp = parse_order(entry.order).stamp
            except ProtocolError:
                continue  # not ours to judge
            if stamp < at.stamp:
                rest = tuple(one for one in self.listing.entries if one.name != entry.name)
                self.listing = Listing(self.listing.asked, rest, self.listing.forced)
                self._abandon(entry.name)
                return

    def _put(self, record: BackupRecord) -> None:
        if not record.name:
            return
        self.records[record.name] = record
        while len(self.records) > MOST_RECORDS:
            del self.records[min(self.records)]

    def _note(self, event: str, **fields: str) -> None:
        self.notes.append({"event": event, **fields})
