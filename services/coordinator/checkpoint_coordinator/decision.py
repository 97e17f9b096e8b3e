"""What all nodes of an epoch restore: looked for or ordered, written once, and decided anew where it fails; pure."""

from collections.abc import Iterable
from typing import Final

import msgspec

from checkpoint_coordinator.branch import begun, file_order
from checkpoint_coordinator.desk import Desk
from checkpoint_coordinator.restarts import LOOP, loop_text, older, restores
from checkpoint_coordinator.restore import Choice, Facts, choose, newest_epoch, plan
from checkpoint_coordinator.witness import backup_silence, given_up, member_silence, silent, trace, trace_shape
from checkpoint_replicator.ids import Epoch, Job, Rank
from checkpoint_replicator.records import EpochRecord, EpochState, Outcome, RestoreRecord
from checkpoint_replicator.save import Save
from checkpoint_replicator.wishes import BY_COMMAND, BY_FILE, Forced

__all__ = ["LISTING_PERIOD", "Decision", "ways_out"]

MOST_ROUNDS: Final = 3
ROUNDS_PERIOD: Final = 60.0
"""A save that looks whole is tried so often, and for so many seconds, before it counts as spent: peers restart."""
ROUND_PAUSE: Final = 2.0
"""Seconds before the next round: copies found corrupt are dropped and reported meanwhile."""
REASON_PERIOD: Final = 5.0
"""A reason that tells progress is rewritten this often."""
MOST_SILENT: Final = 16
LISTING_PERIOD: Final = 5.0
"""While one waits for the backup store it is asked again this often."""


class Decision:
    """The restore decision of one job's epoch.

    Attributes:
        reason_at: when the reason of the epoch was last written.
    """

    def __init__(self, desk: Desk) -> None:
        self.reason_at = float("-inf")
        self._desk = desk
        self._opened = float("-inf")
        self._choice: Choice | None = None
        self._rounds: dict[Save, list[float]] = {}
        self._spent: dict[Save, str] = {}
        self._listing_at = float("-inf")
        self._again_at = float("-inf")

    def recalled(self, now: float) -> None:
        """An epoch opened, or a coordinator took over: its waits begin anew."""
        self._opened = now
        self._choice = None
        self._rounds, self._spent = {}, {}
        self._again_at = float("-inf")

    def choice(self) -> Choice | None:
        """Return what was restored, from memory or from what the decision names; None where nothing was."""
        record, epoch = self._desk.state.restore, self._desk.state.epoch
        if record is None or record.outcome is not Outcome.RESTORE or epoch is None or epoch.shape is None:
            return None
        if self._choice is not None and self._choice.save == record.save:
            return self._choice
        forced = Forced(save=record.save, backup=record.backup if record.save and not record.save.epoch else None)
        choice = choose(Facts(shape=epoch.shape, stock=self._desk.stock, forced=forced))
        if choice.outcome is not Outcome.RESTORE:
            return None
        self._choice = choice
        return choice

    def advance(self, now: float) -> None:
        """Decide as soon as all that can be known is known."""
        desk, epoch = self._desk, self._desk.state.epoch
        if epoch is None or epoch.shape is None:
            return
        made = desk.state.restore
        if made is not None and made.outcome is Outcome.LOST:
            return  # final for this epoch: the sessions fail
        if now < self._again_at:
            return
        if desk.roots() and desk.archive.listed_since(self._opened) is None and now - self._listing_at > LISTING_PERIOD:
            self._listing_at = now
            desk.archive.want_listing(self._opened)
        patient = now - self._opened < desk.times.bucket_silent
        waiting = [*member_silence(desk, now), *backup_silence(desk, self._opened)]
        if waiting and patient:
            self.reword(f"waiting for {', '.join(waiting)}", now)
            return
        shape, epoch = epoch.shape, self._above_all_data(epoch)
        newest = trace(desk)
        facts = Facts(
            shape=shape,
            stock=desk.stock,
            trace=newest,
            trace_shape=trace_shape(desk, newest),
            silent=silent(desk, self._opened, now),
            given_up=tuple(given_up(desk, now)),
            spent=self._spent,
            fresh_start=desk.options.fresh_start,
            superseded=tuple(sorted(desk.archive.superseded)),
        )
        facts = self._with_orders(facts)
        choice = choose(facts)
        if choice.outcome is Outcome.UNKNOWN and patient:
            self.reword(choice.reason, now)
            return
        self._publish(choice, facts, now)

    def obey_people(self, now: float) -> None:
        """What is ordered while others still restore something else is decided now, for all."""
        desk, epoch, record = self._desk, self._desk.state.epoch, self._desk.state.restore
        forced = desk.state.forced
        if forced is None or record is None or epoch is None or epoch.released or not epoch.members:
            return
        if epoch.state is not EpochState.RESTORING or self._fulfils(record, forced):
            return
        desk.note("restore_reordered", epoch=str(epoch.number), reason=f"{forced} was ordered")
        desk.state.epoch = msgspec.structs.replace(
            epoch, stamp=desk.next_stamp(), state=EpochState.DECIDING, reason=f"deciding again: {forced} was ordered"
        )
        self._again_at = now

    def again(self, record: RestoreRecord, failed: list[str], now: float) -> None:
        """A save that cannot be completed somewhere is decided anew, for all."""
        desk, epoch = self._desk, self._desk.state.epoch
        if record.save is None or epoch is None:
            return
        rounds = self._rounds.setdefault(record.save, [])
        rounds.append(now)
        if len(rounds) >= MOST_ROUNDS and now - rounds[0] >= ROUNDS_PERIOD:
            self._spent[record.save] = f"it could not be completed: {'; '.join(failed[:4])}"
        desk.note("restore_failed", save=str(record.save), reason="; ".join(failed[:4]), round=str(len(rounds)))
        desk.state.epoch = msgspec.structs.replace(
            epoch, stamp=desk.next_stamp(), state=EpochState.DECIDING, reason=f"deciding again: {'; '.join(failed[:4])}"
        )
        self._again_at = now + ROUND_PAUSE

    def plan_for(self, ranks: Iterable[Rank]) -> None:
        """Say anew who holds what: peers come and go while a restore goes on."""
        desk, epoch, record, choice = self._desk, self._desk.state.epoch, self._desk.state.restore, self.choice()
        if epoch is None or epoch.shape is None or record is None or choice is None:
            return
        wanted = set(ranks)
        members = tuple(member for member in epoch.members if member.rank in wanted)
        plans = {**desk.state.plans, **plan(choice, epoch.shape, members, desk.stock, record.stamp)}
        if plans != desk.state.plans:
            desk.state.plans = plans
            desk.next_stamp()

    def reword(self, reason: str, now: float) -> None:
        """Rewrite the reason of an epoch that is not released, now and then."""
        desk, epoch = self._desk, self._desk.state.epoch
        if epoch is None or epoch.reason == reason or now - self.reason_at < REASON_PERIOD:
            return
        self.reason_at = now
        desk.state.epoch = msgspec.structs.replace(epoch, stamp=desk.next_stamp(), reason=reason)

    def released(self, record: RestoreRecord) -> None:
        """An order by command is fulfilled by one release, and begins a new line of saves."""
        desk, epoch = self._desk, self._desk.state.epoch
        if epoch is None:
            return
        if record.forced == BY_COMMAND:
            desk.state.forced = None
        desk.state.branch = begun(record, epoch.number, desk.state.branch)

    def _with_orders(self, facts: Facts) -> Facts:
        """Add what people ordered; a command counts before the file."""
        desk, listing = self._desk, self._desk.archive.listing
        forced, fault = desk.state.forced, ""
        if forced is None:
            forced, fault = file_order(listing.forced if listing is not None else None, desk.state.branch, facts)
        return msgspec.structs.replace(facts, forced=forced, order_fault=fault)

    @staticmethod
    def _fulfils(record: RestoreRecord, forced: Forced) -> bool:
        if record.forced != BY_COMMAND:
            return False
        if forced.none:
            return record.outcome is Outcome.NONE
        return record.backup == forced.backup if forced.backup is not None else record.save == forced.save

    def _above_all_data(self, epoch: EpochRecord) -> EpochRecord:
        """Number the epoch anew where a listing or a late report shows data of it: its saves must be its own."""
        desk, newest = self._desk, newest_epoch(self._desk.stock)
        if newest < epoch.number:
            return epoch
        number = Epoch(newest + 1)
        desk.note("epoch_renumbered", epoch=str(number), reason=f"data of epoch {newest} was found")
        desk.state.epoch = msgspec.structs.replace(epoch, number=number, stamp=desk.next_stamp(number))
        return desk.state.epoch

    def _publish(self, choice: Choice, facts: Facts, now: float) -> None:
        """Write the decision, unless it says what the last one said."""
        desk, epoch = self._desk, self._desk.state.epoch
        made = desk.state.restore
        if epoch is None or epoch.shape is None:
            return
        if choice.outcome is Outcome.LOST and facts.forced is None and not facts.order_fault:
            choice = msgspec.structs.replace(choice, reason=f"{choice.reason}; {ways_out(desk.job)}")
        again = made is not None and made.outcome is choice.outcome is Outcome.UNKNOWN
        if again and made is not None and (made.reason == choice.reason or now - self.reason_at < REASON_PERIOD):
            return
        stamp = desk.next_stamp()
        desk.state.restore = RestoreRecord(
            stamp=stamp,
            outcome=choice.outcome,
            save=choice.save,
            backup=choice.backup,
            reason=choice.reason,
            rejected=choice.rejected,
            forced="" if facts.forced is None else BY_COMMAND if desk.state.forced is not None else BY_FILE,
            warning=self._warning(choice, facts, epoch),
            silent=choice.silent[:MOST_SILENT],
            order=desk.archive.order if desk.archive.listed_since(self._opened) is not None else None,
        )
        self._choice = choice
        desk.state.plans = {}
        state, released = EpochState.DECIDING, False
        if choice.outcome is Outcome.RESTORE:
            state = EpochState.RESTORING
            desk.state.plans = plan(choice, epoch.shape, epoch.members, desk.stock, stamp)
        elif choice.outcome is Outcome.NONE:
            state, released = EpochState.RUNNING, True
        desk.state.epoch = msgspec.structs.replace(
            epoch,
            stamp=stamp,
            state=state,
            released=released,
            reason="" if released else choice.reason,
            since=desk.moment(now),
        )
        self.reason_at = now
        desk.note(
            "restore_decided",
            epoch=str(epoch.number),
            outcome=str(choice.outcome),
            save=str(choice.save or ""),
            reason=choice.reason,
        )
        if released:
            self.released(desk.state.restore)
            desk.note("epoch_released", epoch=str(epoch.number), save="")

    def _warning(self, choice: Choice, facts: Facts, epoch: EpochRecord) -> str:
        """Say what people must read in `replicator.errors`; empty where all is as usual."""
        desk = self._desk
        newest = facts.trace
        if facts.forced is not None:
            return choice.reason
        if choice.outcome is Outcome.NONE:
            forgotten = desk.state.forgotten
            gone = f"{choice.reason}; people had save {forgotten.upto} forgotten" if forgotten is not None else ""
            return choice.reason if newest is not None else gone
        if choice.outcome is not Outcome.RESTORE or choice.save is None:
            return ""
        count = restores(choice.save, epoch.number, desk.decisions)
        if count >= LOOP:
            return loop_text(desk.job, choice.save, count, older(choice.save, facts.stock))
        return choice.reason if newest is not None and choice.save < newest else ""


def ways_out(job: Job) -> str:
    """Say how people begin anew where all is lost."""
    return (
        f"to begin anew: `checkpoint-replicator restore --job {job} --none` for one release, "
        f"or `checkpoint-replicator forget --job {job}`"
    )
