"""While an epoch runs: commits, protection, the keep list and every host's orders; pure."""

from typing import Final

import msgspec

from checkpoint_coordinator.backups import CLOSED, Situation, interval_of
from checkpoint_coordinator.commit import Crew, SaveState, SaveVerdict, judge, protection
from checkpoint_coordinator.desk import Desk
from checkpoint_coordinator.index import SaveRecord
from checkpoint_coordinator.inventory import Found, Line
from checkpoint_coordinator.rendezvous import Rendezvous
from checkpoint_coordinator.replication import missing_copies, peers_of
from checkpoint_coordinator.restore import whole
from checkpoint_coordinator.witness import committed_by, trace
from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Address, Host
from checkpoint_replicator.keep import View, given_up, keep_list, says_the_same
from checkpoint_replicator.records import BackupOrder, Orders, Outcome, Peer, ReplicateOrder
from checkpoint_replicator.save import Save, ShardKey, Tag
from checkpoint_replicator.session import SessionState
from checkpoint_replicator.shape import Shape
from checkpoint_replicator.wishes import BY_FILE

__all__ = ["Safekeeping"]

MOST_SAVES: Final = 64
"""So many saves are shown; older ones that nobody holds any more are forgotten."""
FINAL: Final = frozenset({SaveState.COMMITTED, SaveState.ABANDONED})
FAILED: Final = frozenset({SaveState.INCOMPLETE, SaveState.MUTATED, SaveState.SKIPPED, SaveState.ABANDONED})
MOST_FAILED: Final = 3
"""So many saves of an epoch that failed since the last commit are an alarm."""
SHORT: Final = frozenset({SaveState.MUTATED, SaveState.SKIPPED})
"""A shard is missing for good, unless its trainer saves the step again."""
UNDECIDED: Final = frozenset({SaveState.SAVING, SaveState.REPLICATING, SaveState.INCOMPLETE})


class Safekeeping:
    """The saves of one job."""

    def __init__(self, desk: Desk, rendezvous: Rendezvous) -> None:
        self._desk = desk
        self._rendezvous = rendezvous
        self._moved: dict[Save, tuple[SaveVerdict, float]] = {}
        self._judged: dict[Save, tuple[tuple[object, ...], SaveVerdict]] = {}
        """The last verdict of each save, and on what it was found."""
        self._failing = False

    def advance(self, now: float) -> None:
        """Judge every save, go on with backups, write keep list and orders."""
        desk = self._desk
        crew = desk.crew()
        if crew is not None:
            self._judge(crew, now)
            self._watch_failures()
            self._watch_restored(crew, now)
        self._back_up(crew, now)
        self._freeze()
        if crew is not None:
            self._keep(crew)
        self._order(crew)
        self._forget()

    def committed(self) -> Save | None:
        """Return the newest committed save; after a release the restored one until a save of the epoch commits."""
        own = self._own_committed()
        if own is not None:
            return own
        record = self._desk.state.restore
        if record is not None and record.outcome is Outcome.RESTORE and self._desk.running:
            return record.save
        return None

    # ---- commits

    def _own_committed(self) -> Save | None:
        epoch = self._desk.state.epoch
        if epoch is None:
            return None
        saves = self._desk.state.saves.items()
        own = (s for s, record in saves if s.epoch == epoch.number and record.state is SaveState.COMMITTED)
        return max(own, default=None)

    def _reported(self) -> set[Save]:
        """Return the saves of the running epoch that anybody reports."""
        desk, epoch = self._desk, self._desk.state.epoch
        if epoch is None:
            return set()
        found = {line.save for line in desk.stock.lines if line.save.epoch == epoch.number}
        for voice in desk.hearing.voices.values():
            found.update(one.save for one in voice.report.saving if one.save.epoch == epoch.number)
            found.update(
                one.save
                for one in voice.report.faults
                if one.save is not None and one.save.epoch == epoch.number and one.kind in {"mutated", "skipped"}
            )
        return found

    def _judge(self, crew: Crew, now: float) -> None:
        desk = self._desk
        saves = desk.state.saves
        reported = sorted(self._reported())
        known = (saves.get(save) for save in reported)
        lost = any(record is None or record.state is not SaveState.COMMITTED for record in known)
        traced = committed_by(desk) if lost else set()
        for save in reported:
            record = saves.get(save)
            found = desk.stock.lines.get(Line(save, crew.shape))
            if record is not None and record.state is SaveState.COMMITTED:
                self._show_protection(record, found, crew, now)
                continue
            if save in traced:  # the index was lost, and with it that this was committed; a copy may be missing by now
                verdict = self._verdict(save, found, crew)
                self._take(save, msgspec.structs.replace(verdict, state=SaveState.COMMITTED, reason=""), crew, now)
                continue
            if record is not None and record.state in FINAL:
                continue
            self._take(save, self._verdict(save, found, crew), crew, now)
        self._judged = {save: judged for save, judged in self._judged.items() if save in self._moved}
        self._give_up(now)

    def _verdict(self, save: Save, found: Found | None, crew: Crew) -> SaveVerdict:
        """Judge, where anything is different from last time."""
        faults = self._faults(save)
        known = self._judged.get(save)
        if known is None or known[0][0] is not found or known[0][1] is not crew or known[0][2] != faults:
            known = ((found, crew, faults), judge(save, found, crew, faults=faults))
            self._judged[save] = known
        return known[1]

    def _take(self, save: Save, verdict: SaveVerdict, crew: Crew, now: float) -> None:
        desk = self._desk
        before, since = self._moved.get(save, (None, now))
        if before != verdict:
            since = now
        self._moved[save] = (verdict, since)
        state = verdict.state
        if state in {SaveState.SAVING, SaveState.REPLICATING} and now - since >= desk.times.stuck:
            state = SaveState.INCOMPLETE
        record = desk.state.saves.get(save)
        if record is None or record.state is not state:
            desk.note(f"save_{state}", save=str(save), reason=verdict.reason)
        wall = round(desk.wall(now), 3)
        same = record is not None and record.state is state
        desk.state.saves[save] = SaveRecord(
            save=save,
            shape=crew.shape,
            state=state,
            shards=verdict.shards,
            copies=verdict.copies_min,
            unprotected=verdict.unprotected,
            reason=verdict.reason,
            since=record.since if same and record is not None else wall,
            seen=record.seen if record is not None else wall,
        )

    def _watch_failures(self) -> None:
        """Raise an alarm, once, when saves fail one after another: training goes on, but nothing new is safe."""
        epoch, newest = self._desk.state.epoch, self._own_committed()
        failed = sorted(
            save
            for save, record in self._desk.state.saves.items()
            if epoch is not None
            and save.epoch == epoch.number
            and record.state in FAILED
            and (newest is None or save > newest)
        )
        if len(failed) >= MOST_FAILED and not self._failing:
            last = self._desk.state.saves[failed[-1]]
            what = f"{len(failed)} saves failed since {f'save {newest}' if newest is not None else 'the start'}"
            self._desk.note("saves_failing", save=str(last.save), reason=f"{what}; {last.state}: {last.reason}")
        self._failing = len(failed) >= MOST_FAILED

    def _faults(self, save: Save) -> list[tuple[Host, str, str]]:
        return [
            (host, fault.kind, fault.reason)
            for host, voice in sorted(self._desk.hearing.voices.items())
            for fault in voice.report.faults
            if fault.save == save
        ]

    def _give_up(self, now: float) -> None:
        """What fell behind a committed save or lies between the oldest and the newest in flight never commits."""
        desk = self._desk
        newest = self._own_committed()
        behind = {save for save in self._flying(above=None) if newest is not None and save < newest}
        flying = self._flying(above=newest)
        between = given_up(flying, (), self._needed(), self._short(flying))
        for save in behind | between:
            record = desk.state.saves[save]
            why = f"save {newest} was committed first" if save in behind else "newer saves came"
            reason = f"{why}; {record.reason}" if record.reason else why
            desk.state.saves[save] = _replaced(record, SaveState.ABANDONED, reason, round(desk.wall(now), 3))
            self._moved.pop(save, None)
            desk.note("save_abandoned", save=str(save), reason=reason)
        self._give_up_past(now)

    def _give_up_past(self, now: float) -> None:
        """What an ended epoch left in flight never commits; if it is whole it can be restored all the same."""
        desk, epoch, restored = self._desk, self._desk.state.epoch, self._desk.state.restore
        if epoch is None:
            return
        for save, record in list(desk.state.saves.items()):
            is_restored = restored is not None and restored.save == save
            if save.epoch < epoch.number and record.state in UNDECIDED and not is_restored:
                reason = f"epoch {epoch.number} began; {record.reason}".removesuffix("; ")
                wall = round(desk.wall(now), 3)
                desk.state.saves[save] = _replaced(record, SaveState.ABANDONED, reason, wall)
                self._moved.pop(save, None)
                desk.note("save_abandoned", save=str(save), reason=reason)

    def _flying(self, above: Save | None) -> set[Save]:
        epoch = self._desk.state.epoch
        return {
            save
            for save, record in self._desk.state.saves.items()
            if epoch is not None
            and save.epoch == epoch.number
            and record.state not in FINAL
            and (above is None or save > above)
        }

    def _short(self, saves: set[Save]) -> set[Save]:
        return {save for save in saves if self._desk.state.saves[save].state in SHORT}

    def _show_protection(self, record: SaveRecord, found: Found | None, crew: Crew, now: float) -> None:
        copies = protection(found, record.shards, crew.live) if found is not None else 0
        if copies == record.copies and record.unprotected == (copies == 0):
            return
        if (copies == 0) != record.unprotected:
            name = "save_unprotected" if copies == 0 else "save_protected"
            self._desk.note(name, save=str(record.save), copies=str(copies))
        self._desk.state.saves[record.save] = _protected(record, copies, round(self._desk.wall(now), 3))

    def _watch_restored(self, crew: Crew, now: float) -> None:
        """Show how well the restored save is protected until a save of this epoch commits."""
        desk, choice = self._desk, self._rendezvous.choice()
        if choice is None or choice.line is None or self._own_committed() is not None:
            return
        found = desk.stock.lines.get(choice.line)
        shards = {key: tag.address for key, tag in choice.tags.items()}
        record = desk.state.saves.get(choice.line.save)
        if record is None or record.state is not SaveState.COMMITTED:
            wall = round(desk.wall(now), 3)
            record = SaveRecord(
                save=choice.line.save,
                shape=choice.line.shape,
                state=SaveState.COMMITTED,
                shards=shards,
                reason="restored",
                since=wall,
                seen=record.seen if record is not None else wall,
            )
            desk.state.saves[choice.line.save] = record
        self._show_protection(record, found, crew, now)

    # ---- backups

    def _back_up(self, crew: Crew | None, now: float) -> None:
        desk = self._desk
        save = self.committed() if crew is not None else None
        tags, shape = self._content(save)
        situation = Situation(
            now=now,
            unix=desk.wall(now) if desk.unix is not None else None,
            stamp=desk.stamp,
            uploaders=desk.uploaders(now),
            results=desk.results(),
            committed=save if tags else None,
            shape=shape,
            tags=tags,
            holders={tag.address: self._holders(tag.address) for tag in (*tags, *desk.archive.tags)},
            interval=interval_of(tuple(desk.specs().values())),
            requested={save for voice in desk.hearing.voices.values() for save in voice.report.backup_requested},
            hold=desk.state.hold is not None,
        )
        desk.archive.advance(situation)
        self._grow(situation)
        for note in desk.archive.notes:
            desk.note(note["event"], **{key: text for key, text in note.items() if key != "event"})
        desk.archive.notes.clear()
        desk.state.backups = dict(desk.archive.records)
        desk.state.last_backup = desk.archive.last

    def _grow(self, situation: Situation) -> None:
        """With the first verified backup of a new line, what people went back behind counts no more."""
        desk = self._desk
        archive, branch = desk.archive, desk.state.branch
        if branch is None or archive.last is None or not branch.bears(archive.last.save):
            return
        names = archive.supersede(branch)
        if names:
            desk.note("backups_superseded", backups=" ".join(names[:8]), backup=archive.last.name)
        if branch.by == BY_FILE and not archive.remove_order(branch.backup or "", situation):
            return
        desk.state.branch = None
        desk.note("branch_established", epoch=str(branch.epoch), save=str(archive.last.save))

    def _content(self, save: Save | None) -> tuple[tuple[Tag, ...], Shape | None]:
        """Return the shards of a save that stand whole on live hosts, and its shape."""
        if save is None:
            return (), None
        for found in self._desk.stock.of(save):
            if not found.missing() and found.line.shape.framework:
                return tuple(whole(found).values()), found.line.shape
        return (), None

    def _holders(self, address: Address) -> frozenset[Host]:
        return frozenset(copy.host for copy in self._desk.stock.holders.get(address, ()))

    # ---- the keep list

    def _needed(self) -> frozenset[Save]:
        """Return the saves under backup or restore."""
        desk = self._desk
        needed = {record.save for record in desk.archive.records.values() if record.state not in CLOSED}
        if desk.archive.save is not None:
            needed.add(desk.archive.save)
        record = desk.state.restore
        if record is not None and record.save is not None and not self._all_published():
            needed.add(record.save)
        return frozenset(needed | self._ordered())

    def _ordered(self) -> set[Save]:
        """Return what people ordered to be restored: it stays until it is."""
        forced = self._desk.state.forced
        if forced is None or forced.save is None:
            return set()
        return {forced.save}

    def _all_published(self) -> bool:
        voices = [self._desk.voice(member) for member in self._desk.members]
        return all(
            voice is not None
            and voice.report.session is not None
            and voice.report.session.state is not SessionState.OPEN
            for voice in voices
        )

    def _freeze(self) -> None:
        """While people look, the list that stands lets nothing go, whoever reads it only now."""
        desk = self._desk
        before = desk.state.keep
        if desk.state.hold is not None and before is not None and not before.hold:
            stamp = desk.next_stamp()
            desk.state.keep = msgspec.structs.replace(before, stamp=stamp, drop=(), hold=True)
            desk.note("keep_list_frozen", upto=str(before.upto or ""))

    def _keep(self, crew: Crew) -> None:
        desk = self._desk
        gaps = [f"rank {member.rank}" for member in crew.members if not self._complete(member.rank)]
        if desk.common_fault:
            gaps.append("more than a third of the hosts fell silent together")
        committed = self.committed()
        held = {line.save for line in desk.stock.lines}
        epoch = desk.state.epoch
        given = {
            save
            for save, record in desk.state.saves.items()
            if record.state is SaveState.ABANDONED and epoch is not None and save.epoch == epoch.number
        }
        flying = self._flying(above=committed)
        view = View(
            gaps=gaps,
            committed=committed,
            in_flight=flying,
            failed=self._short(flying),
            held=held | self._reported(),
            needed=self._needed(),
            abandoned=given | self._leftovers(crew, committed),
            hold=desk.state.hold is not None,
        )
        keep = keep_list(view, desk.stamp)
        before = desk.state.keep
        if keep is None:
            return
        if before is not None and before.stamp.token == desk.stamp.token and says_the_same(keep, before):
            return  # under a new lease it is said anew: nodes delete on the present coordinator's word alone
        stamp = desk.next_stamp()
        desk.state.keep = msgspec.structs.replace(keep, stamp=stamp)
        desk.note("keep_list_written", upto=str(keep.upto or ""), drop=" ".join(map(str, keep.drop)))

    def _leftovers(self, crew: Crew, committed: Save | None) -> set[Save]:
        """Return newer saves of older epochs where room is short: the job went on without them.

        Not while nobody remembers what was restored: then they may be all that there is.
        """
        desk, epoch, record = self._desk, self._desk.state.epoch, self._desk.state.restore
        if record is None or (committed is None and record.outcome is not Outcome.NONE):
            return set()
        voices = [desk.voice(member) for member in crew.members]
        rooms = [voice.report.room for voice in voices if voice is not None and voice.report.room is not None]
        if epoch is None or all(room.free >= room.reserve for room in rooms):
            return set()
        older = {line.save for line in desk.stock.lines if line.save.epoch < epoch.number}
        last = trace(desk) if committed is None else None  # begun anew by order: one committed save outlives the start
        return {save for save in older if save != last and (committed is None or save > committed)}

    def _complete(self, rank: int) -> bool:
        member = next((one for one in self._desk.members if one.rank == rank), None)
        voice = self._desk.voice(member) if member is not None else None
        return voice is not None and voice.report.complete

    # ---- orders

    def _order(self, crew: Crew | None) -> None:
        desk = self._desk
        peers = desk.peers()
        backup = desk.archive.orders()
        replicate = self._replicate(crew, peers)
        settling = crew is None and desk.running and desk.patient
        wanted: dict[Host, Orders] = {}
        for host in sorted(desk.live | desk.state.orders.keys() if settling else desk.live):
            wanted[host] = self._orders_of(host, crew, peers, backup.get(host, ()), replicate.get(host, ()))
            before = desk.state.orders.get(host)
            if settling and before is not None:  # a new coordinator that has not heard all yet stops no transfer
                wanted[host] = msgspec.structs.replace(wanted[host], peers=before.peers, replicate=before.replicate)
        for host, orders in wanted.items():
            before = desk.state.orders.get(host)
            if before is not None and _same(before, orders):
                wanted[host] = before
        if wanted != desk.state.orders:
            stamp = desk.next_stamp()
            desk.state.orders = {
                host: orders if orders is desk.state.orders.get(host) else _stamped(orders, stamp)
                for host, orders in wanted.items()
            }

    def _orders_of(
        self,
        host: Host,
        crew: Crew | None,
        peers: dict[Host, Peer | None],
        backup: tuple[BackupOrder, ...],
        replicate: tuple[ReplicateOrder, ...],
    ) -> Orders:
        chosen: tuple[Peer, ...] = ()
        if crew is not None:
            for member in crew.members:
                if member.host == host and member.rank in crew.placements:
                    chosen = (*chosen, *peers_of(crew.placements[member.rank], crew.members, peers))
        last = self._desk.archive.last
        return Orders(
            stamp=self._desk.stamp,
            peers=chosen,
            replicate=replicate,
            backup=backup,
            last_backup=last.name if last is not None else "",
        )

    def _replicate(self, crew: Crew | None, peers: dict[Host, Peer | None]) -> dict[Host, tuple[ReplicateOrder, ...]]:
        """Make the newest committed save's copies complete again; not while a fault of the network looks like loss."""
        desk = self._desk
        save = self.committed()
        if crew is None or save is None or desk.common_fault:
            return {}
        tags: dict[ShardKey, Tag]
        choice = self._rendezvous.choice()
        if self._own_committed() is None and choice is not None and choice.line is not None:
            found, tags = desk.stock.lines.get(choice.line), dict(choice.tags)
        else:
            found = desk.stock.lines.get(Line(save, crew.shape))
            tags = whole(found) if found is not None else {}
        return missing_copies(found, tags, crew, desk.stock, peers) if found is not None else {}

    def _forget(self) -> None:
        """Old saves that nobody holds any more leave the index."""
        desk = self._desk
        held = {line.save for line in desk.stock.lines} | self._reported() | self._needed()
        committed = self.committed()
        for save in sorted(desk.state.saves)[:-MOST_SAVES]:
            if save not in held and save != committed:
                del desk.state.saves[save]
                self._moved.pop(save, None)


def _same(one: Orders, other: Orders) -> bool:
    return msgspec.structs.replace(one, stamp=other.stamp) == other


def _stamped(orders: Orders, stamp: Stamp) -> Orders:
    return msgspec.structs.replace(orders, stamp=stamp)


def _replaced(record: SaveRecord, state: SaveState, reason: str, wall: float) -> SaveRecord:
    return msgspec.structs.replace(record, state=state, reason=reason, since=wall)


def _protected(record: SaveRecord, copies: int, wall: float) -> SaveRecord:
    return msgspec.structs.replace(record, copies=copies, unprotected=copies == 0, since=wall)
