"""The job's backups: what stands in the bucket, which one is made now, what is cleared away; pure.

list → reserve (`ORDER.json`) → upload (all data and trees) → seal (all `.meta`) → manifest. Any uploader of the job
does a step; only after the manifest the backup counts, and only from the last one that counts ages are measured.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from checkpoint_coordinator.backups import CLOSED, BackupRecord, LastBackup, Listing, Phase, Situation, due
from checkpoint_coordinator.chores import Chore
from checkpoint_coordinator.making import RETRY, Making
from checkpoint_replicator.backup import parse_order, time_of
from checkpoint_replicator.errors import ProtocolError
from checkpoint_replicator.fence import ZERO, Stamp
from checkpoint_replicator.ids import Host
from checkpoint_replicator.records import BackupOrder
from checkpoint_replicator.save import Save, Tag
from checkpoint_replicator.shape import Shape
from checkpoint_replicator.times import Times
from checkpoint_replicator.wishes import Branch

__all__ = ["Archive"]

MOST_RECORDS: Final = 64
MOST_ROUNDS: Final = 3
"""So many tries that failed one after another are an alarm."""
MOST_ORDER: Final = 80
"""Characters of `restore.version` that are looked at; a backup's name has 16."""


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
        self._making: Making | None = None
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
        self._trouble = ""
        """Why the last backup failed; empty since one was verified."""
        self._rounds = 0
        """So often one failed since then."""

    @property
    def superseded(self) -> frozenset[str]:
        """The names of the backups that only an order restores."""
        return frozenset(name for name, record in self.records.items() if record.state is Phase.SUPERSEDED)

    @property
    def order(self) -> str | None:
        """What stands in `restore.version`, as far as people are told of it; None: nobody looked."""
        text = self.listing.forced if self.listing is not None else None
        return None if text is None else text.strip()[:MOST_ORDER]

    @property
    def save(self) -> Save | None:
        """The save under backup: it is kept."""
        return self._making.save if self._making else None

    @property
    def tags(self) -> tuple[Tag, ...]:
        """The shards of that save: their holders are asked for, however many saves were committed since."""
        return self._making.tags if self._making else ()

    def recall(self, records: Mapping[str, BackupRecord], last: LastBackup | None) -> None:
        """Take up what an earlier coordinator wrote."""
        self.records = dict(records)
        if last is not None and (self.last is None or last.name > self.last.name):
            self.last = last

    def forget(self) -> None:
        """Let go of all that was known of backups: the next listing shows what there is."""
        self.records, self.last, self.listing = {}, None, None
        self._making = self._sweep = self._unforce = None

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
            self._advance_making(at)
            self._advance_sweep(at)

    def orders(self) -> dict[Host, tuple[BackupOrder, ...]]:
        """Return all that uploaders are to do now."""
        others = () if self._held else (self._sweep, self._unforce)
        chores = [chore for chore in (self._list, *others) if chore is not None]
        if self._making is not None and not self._held:
            chores.extend(self._making.chores)
        listed: dict[Host, list[BackupOrder]] = {}
        for chore in chores:
            for host, order in chore.orders():
                listed.setdefault(host, []).append(order)
        return {host: tuple(orders) for host, orders in listed.items()}

    def next_moment(self, now: float) -> float | None:
        """Return when to look again although nothing was reported."""
        busy = self._list is not None or self._making is not None or self._sweep is not None
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

    def _advance_making(self, at: Situation) -> None:
        if self._making is None:
            self._begin(at)
        making = self._making
        if making is None:
            return
        making.advance(at, self.listed_since(making.begun), self.listing_fault, self.records)
        if making.phase not in CLOSED:
            return
        self._making = None
        if making.last is not None:
            self.last = making.last
            return
        self.want_listing(at.now)
        if not making.usable:
            self._abandon(making.name)

    def _begin(self, at: Situation) -> None:
        if at.committed is None or at.shape is None or at.unix is None or not at.uploaders or not at.tags:
            return
        if self.last is None and self.listing is None:
            self.want_listing(at.now)  # the last verified one may be in the bucket and nowhere else
            return
        if (begun := self._unfinished(at)) is not None:
            self._making = self._make(at, at.committed, at.shape, begun)
        elif why := due(at.committed, self.last, at.unix, at.interval, at.requested):
            self._making = self._make(at, at.committed, at.shape)
            self._making.reason = why
            self.want_listing(at.now)
            self._note("backup_due", save=str(at.committed), reason=why)

    def _make(self, at: Situation, save: Save, shape: Shape, begun: BackupRecord | None = None) -> Making:
        making = Making(
            save=save,
            shape=shape,
            tags=at.tags,
            begun=at.now,
            turn=self._times.uploader_turn,
            new_id=self._new_id,
            put=self._put,
            note=self._note_making,
            before=self._trouble,
        )
        if begun is not None:
            making.phase, making.name, making.stamp = Phase.RESERVING, begun.name, begun.stamp
        return making

    def _unfinished(self, at: Situation) -> BackupRecord | None:
        """Return what an earlier coordinator began, if the save still stands: a backup belongs to its save."""
        for record in self.records.values():
            if record.state in CLOSED:
                continue
            if record.save == at.committed and record.shape == at.shape:
                return record
            self._put(
                msgspec.structs.replace(record, state=Phase.ABANDONED, reason="its save is not the newest any more")
            )
            self._abandon(record.name)
            return None
        return None

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
        if self._making is not None or self.listing is None or self._list is not None:
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

    def _note_making(self, event: str, **fields: str) -> None:
        """Pass on what is told of a backup, and raise an alarm, once, where one after another fails."""
        if event == "backup_verified":
            self._trouble, self._rounds = "", 0
        if event == "backup_failed":
            self._trouble = fields.get("reason", "")
            self._rounds += 1
        self._note(event, **fields)
        if event == "backup_failed" and self._rounds == MOST_ROUNDS:
            reason = f"{self._rounds} tries failed one after another; {self._trouble}"
            self._note("backups_failing", backup=fields.get("backup", ""), save=fields.get("save", ""), reason=reason)

    def _note(self, event: str, **fields: str) -> None:
        self.notes.append({"event": event, **fields})
