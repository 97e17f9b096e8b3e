"""How far each save is: committed, protected, failed, given up; pure."""

from typing import Final

import msgspec

from checkpoint_coordinator.backups import CLOSED
from checkpoint_coordinator.commit import UNTAKEN, Crew, SaveState, SaveVerdict, judge, protection
from checkpoint_coordinator.desk import Desk
from checkpoint_coordinator.index import SaveRecord
from checkpoint_coordinator.inventory import Found, Line
from checkpoint_coordinator.rendezvous import Rendezvous
from checkpoint_coordinator.witness import committed_by
from checkpoint_replicator.ids import Host
from checkpoint_replicator.keep import given_up
from checkpoint_replicator.messages import Fault
from checkpoint_replicator.records import Outcome
from checkpoint_replicator.save import Save
from checkpoint_replicator.session import SessionState

__all__ = ["Saves"]

MOST_SAVES: Final = 64
"""So many saves are shown; older ones that nobody holds any more are forgotten."""
FINAL: Final = frozenset({SaveState.COMMITTED, SaveState.ABANDONED})
FAILED: Final = frozenset({SaveState.INCOMPLETE, SaveState.MUTATED, SaveState.SKIPPED, SaveState.ABANDONED})
MOST_FAILED: Final = 3
"""So many saves of an epoch that failed since the last commit are an alarm."""
SHORT: Final = frozenset({SaveState.MUTATED, SaveState.SKIPPED})
"""A shard is missing for good, unless its trainer saves the step again."""
Faults = tuple[tuple[Host, Fault], ...]
"""What hosts could not do for one save."""
UNDECIDED: Final = frozenset({SaveState.SAVING, SaveState.REPLICATING, SaveState.INCOMPLETE})


class Saves:
    """The saves of one job, as the index shows them."""

    def __init__(self, desk: Desk, rendezvous: Rendezvous) -> None:
        self._desk = desk
        self._rendezvous = rendezvous
        self._moved: dict[Save, tuple[SaveVerdict, float]] = {}
        self._judged: dict[Save, tuple[tuple[object, ...], SaveVerdict]] = {}
        """The last verdict of each save, and on what it was found."""
        self._untaken: frozenset[Save] = frozenset()
        """Saves of which some host could not take a shard."""
        self._failing = False

    def advance(self, crew: Crew, now: float) -> None:
        """Judge every save of the running epoch."""
        self._judge(crew, now)
        self._watch_failures()
        self._watch_restored(crew, now)

    def committed(self) -> Save | None:
        """Return the newest committed save; after a release the restored one until a save of the epoch commits."""
        own = self.own()
        if own is not None:
            return own
        record = self._desk.state.restore
        if record is not None and record.outcome is Outcome.RESTORE and self._desk.running:
            return record.save
        return None

    def own(self) -> Save | None:
        """Return the newest committed save of the running epoch."""
        epoch = self._desk.state.epoch
        if epoch is None:
            return None
        saves = self._desk.state.saves.items()
        own = (s for s, record in saves if s.epoch == epoch.number and record.state is SaveState.COMMITTED)
        return max(own, default=None)

    def reported(self) -> set[Save]:
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
                if one.save is not None and one.save.epoch == epoch.number and self._concerns(one.save, one.kind)
            )
        return found

    def _concerns(self, save: Save, kind: str) -> bool:
        """Tell whether a fault says how a save stands: a draft that was not taken says nothing of a committed one."""
        if kind in {"mutated", "skipped"}:
            return True
        record = self._desk.state.saves.get(save)
        if record is not None:
            return kind in UNTAKEN and record.state is not SaveState.COMMITTED
        newest = self.own() if kind == "unsupported" else None
        return kind == "unsupported" and (newest is None or save > newest)

    def flying(self, above: Save | None) -> set[Save]:
        """Return the saves of the running epoch that are not decided yet, above that one; all where it is None."""
        epoch = self._desk.state.epoch
        return {
            save
            for save, record in self._desk.state.saves.items()
            if epoch is not None
            and save.epoch == epoch.number
            and record.state not in FINAL
            and (above is None or save > above)
        }

    def short(self, saves: set[Save]) -> set[Save]:
        """Return those that lack a shard for good, as far as one knows."""
        return {save for save in saves if self._desk.state.saves[save].state in SHORT or save in self._untaken}

    def needed(self) -> frozenset[Save]:
        """Return the saves under backup or restore."""
        desk = self._desk
        needed = {record.save for record in desk.archive.records.values() if record.state not in CLOSED}
        if desk.archive.save is not None:
            needed.add(desk.archive.save)
        record = desk.state.restore
        if record is not None and record.save is not None and not self._all_published():
            needed.add(record.save)
        return frozenset(needed | self._ordered())

    def forget(self) -> None:
        """Old saves that nobody holds any more leave the index."""
        desk = self._desk
        held = {line.save for line in desk.stock.lines} | self.reported() | self.needed()
        committed = self.committed()
        for save in sorted(desk.state.saves)[:-MOST_SAVES]:
            if save not in held and save != committed:
                del desk.state.saves[save]
                self._moved.pop(save, None)

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

    # ---- judging

    def _judge(self, crew: Crew, now: float) -> None:
        desk = self._desk
        saves = desk.state.saves
        reported = sorted(self.reported())
        told = self._faults()
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
                verdict = self._verdict(save, found, crew, told.get(save, ()))
                self._take(save, msgspec.structs.replace(verdict, state=SaveState.COMMITTED, reason=""), crew, now)
                continue
            faults = told.get(save, ())
            if record is None or record.state is not SaveState.ABANDONED:
                self._take(save, self._verdict(save, found, crew, faults), crew, now)
            elif any(fault.kind in UNTAKEN for _, fault in faults):
                self._explain_abandoned(record, self._verdict(save, found, crew, faults), now)
        self._judged = {save: self._judged[save] for save in reported if save in self._judged}
        incomplete = (save for save, (_, verdict) in self._judged.items() if verdict.state is SaveState.INCOMPLETE)
        self._untaken = frozenset(incomplete)  # a verdict says so of these alone: what is stuck is called so by its age
        self._give_up(now)

    def _verdict(self, save: Save, found: Found | None, crew: Crew, faults: Faults) -> SaveVerdict:
        """Judge, where anything is different from last time."""
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
        wall = desk.moment(now)
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
        epoch, newest = self._desk.state.epoch, self.own()
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

    def _explain_abandoned(self, record: SaveRecord, verdict: SaveVerdict, now: float) -> None:
        """A save may be given up before its hash shows why it is not taken: that is told all the same."""
        why = record.reason.partition("; ")[0]
        reason = f"{why}; {verdict.reason}"
        if verdict.state is SaveState.INCOMPLETE and record.reason != reason:
            self._desk.state.saves[record.save] = _replaced(record, SaveState.ABANDONED, reason, self._desk.moment(now))

    def _faults(self) -> dict[Save, Faults]:
        """Return what hosts could not do, by save."""
        found: dict[Save, Faults] = {}
        for host, voice in sorted(self._desk.hearing.voices.items()):
            for fault in voice.report.faults:
                if fault.save is not None:
                    found[fault.save] = (*found.get(fault.save, ()), (host, fault))
        return found

    def _give_up(self, now: float) -> None:
        """What fell behind a committed save or lies between the oldest and the newest in flight never commits."""
        desk = self._desk
        newest = self.own()
        behind = {save for save in self.flying(above=None) if newest is not None and save < newest}
        flying = self.flying(above=newest)
        between = given_up(flying, (), self.needed(), self.short(flying))
        for save in behind | between:
            record = desk.state.saves[save]
            why = f"save {newest} was committed first" if save in behind else "newer saves came"
            reason = f"{why}; {record.reason}" if record.reason else why
            desk.state.saves[save] = _replaced(record, SaveState.ABANDONED, reason, desk.moment(now))
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
                wall = desk.moment(now)
                desk.state.saves[save] = _replaced(record, SaveState.ABANDONED, reason, wall)
                self._moved.pop(save, None)
                desk.note("save_abandoned", save=str(save), reason=reason)

    def _show_protection(self, record: SaveRecord, found: Found | None, crew: Crew, now: float) -> None:
        copies = protection(found, record.shards, crew.live) if found is not None else 0
        if copies == record.copies and record.unprotected == (copies == 0):
            return
        if (copies == 0) != record.unprotected:
            name = "save_unprotected" if copies == 0 else "save_protected"
            self._desk.note(name, save=str(record.save), copies=str(copies))
        self._desk.state.saves[record.save] = _protected(record, copies, self._desk.moment(now))

    def _watch_restored(self, crew: Crew, now: float) -> None:
        """Show how well the restored save is protected until a save of this epoch commits."""
        desk, choice = self._desk, self._rendezvous.choice()
        if choice is None or choice.line is None or self.own() is not None:
            return
        found = desk.stock.lines.get(choice.line)
        shards = {key: tag.address for key, tag in choice.tags.items()}
        record = desk.state.saves.get(choice.line.save)
        if record is None or record.state is not SaveState.COMMITTED:
            wall = desk.moment(now)
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


def _replaced(record: SaveRecord, state: SaveState, reason: str, wall: float) -> SaveRecord:
    return msgspec.structs.replace(record, state=state, reason=reason, since=wall)


def _protected(record: SaveRecord, copies: int, wall: float) -> SaveRecord:
    return msgspec.structs.replace(record, copies=copies, unprotected=copies == 0, since=wall)
