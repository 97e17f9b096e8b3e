"""From open sessions to a released epoch: open, decide, restore, release; pure.

Nothing here looks at running training: a running session is not gathered, and a session that joins takes the decision
that its fellows took.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from checkpoint_coordinator.branch import begun, file_order
from checkpoint_coordinator.desk import Desk
from checkpoint_coordinator.hearing import Voice
from checkpoint_coordinator.membership import Abandon, Join, Open
from checkpoint_coordinator.restarts import LOOP, loop_text, older, restores
from checkpoint_coordinator.restore import Choice, Facts, choose, newest_epoch, plan, unsourced
from checkpoint_coordinator.witness import backup_silence, given_up, member_silence, silent, trace, trace_shape
from checkpoint_replicator.ids import Epoch, Rank, Worker
from checkpoint_replicator.liveness import Pace, pace
from checkpoint_replicator.records import (
    EpochRecord,
    EpochState,
    Member,
    Outcome,
    RestoreRecord,
)
from checkpoint_replicator.save import Save, ShardKey
from checkpoint_replicator.session import SessionState
from checkpoint_replicator.shape import Shape
from checkpoint_replicator.wishes import BY_COMMAND, BY_FILE, Forced

__all__ = ["Rendezvous"]

MOST_ROUNDS: Final = 3
ROUNDS_PERIOD: Final = 60.0
"""A save that looks whole is tried so often, and for so many seconds, before it counts as spent: peers restart."""
ROUND_PAUSE: Final = 2.0
"""Seconds before the next round: copies found corrupt are dropped and reported meanwhile."""
REASON_PERIOD: Final = 5.0
"""A reason that tells progress is rewritten this often."""
MOST_SILENT: Final = 16
LISTING_PERIOD: Final = 5.0
"""While a decision waits for the backup store it is asked again this often."""


class Rendezvous:
    """The epoch of one job."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._opened = float("-inf")
        self._choice: Choice | None = None
        self._rounds: dict[Save, list[float]] = {}
        self._spent: dict[Save, str] = {}
        self._reason_at = float("-inf")
        self._listing_at = float("-inf")
        self._again_at = float("-inf")
        self._joined: Counter[Rank] = Counter()

    def recalled(self, now: float) -> None:
        """A coordinator that took over goes on with what Redis holds; its waits begin anew."""
        self._opened = now
        self._choice = None
        self._rounds, self._spent = {}, {}
        self._again_at = float("-inf")
        self._joined.clear()

    @property
    def repeats(self) -> int:
        """How often this epoch's decision was given again to sessions that joined."""
        return max(self._joined.values(), default=0)

    def advance(self, now: float) -> None:
        """Go on as far as reports and time allow."""
        self._adopt_running(now)
        self._gather(now)
        self._publish_refusals()
        self._rest(now)
        self._obey_people(now)
        epoch = self._desk.state.epoch
        if epoch is None or not epoch.members or epoch.released:
            return
        if epoch.state is EpochState.DECIDING:
            self._decide(now)
        elif epoch.state is EpochState.RESTORING:
            self._restore(now)

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

    # ---- gathering

    def _adopt_running(self, now: float) -> None:
        """A coordinator without memory takes the epoch of running sessions as the current one."""
        desk, epoch = self._desk, self._desk.state.epoch
        seats = [seat for seat in desk.membership.seats.values() if seat.session.state is SessionState.RUNNING]
        newest = max((seat.session.epoch for seat in seats), default=Epoch(0))
        if newest <= 0 or (epoch is not None and newest < epoch.number):
            return
        seats = sorted((seat for seat in seats if seat.session.epoch == newest), key=lambda seat: seat.rank)
        running = {seat.rank: Member(rank=seat.rank, host=seat.host, session=seat.session.id) for seat in seats}
        if epoch is not None and epoch.number == newest and epoch.released:
            # One that runs in this epoch was released to it, also where Redis lost that it joined.
            members = {**{member.rank: member for member in epoch.members}, **running}
            if members == {member.rank: member for member in epoch.members}:
                return
        else:
            members = running
            desk.state.restore, desk.state.plans = None, {}
            desk.note("epoch_adopted", epoch=str(newest), reason="its sessions run and nobody remembers it")
        desk.state.epoch = EpochRecord(
            number=newest,
            stamp=desk.next_stamp(newest),
            state=EpochState.RUNNING,
            reason="taken from running sessions",
            shape=seats[0].session.spec.shape,
            members=tuple(members[rank] for rank in sorted(members)),
            released=True,
            since=self._since(now),
        )

    def _gather(self, now: float) -> None:
        desk, epoch = self._desk, self._desk.state.epoch
        restore = desk.state.restore
        saved, barred = epoch is not None and self._saved(epoch.number), self._barred()
        if not saved:
            self._look_for_orders(now)
        step = desk.membership.step(
            epoch,
            desk.live,
            now,
            saved=saved,
            barred=barred,
            settled=self._settled(now),
            failing=restore is not None and restore.outcome in {Outcome.LOST, Outcome.UNKNOWN},
            lost_decision=epoch is not None and epoch.state is EpochState.RESTORING and restore is None,
        )
        match step:
            case Open():
                self._open(step, now)
            case Abandon(reason):
                self._abandon(reason)
            case Join():
                self._join(step)
            case _:
                self._explain(step.reason)

    def _barred(self) -> str:
        """Say why a session that joins cannot be given what its fellows were given; empty: it can.

        Not when a shard of the restored save is nowhere any more, nor when people ordered a restore since: then the
        ranks wait for one another and decide anew.
        """
        record, epoch = self._desk.state.restore, self._desk.state.epoch
        if record is None or epoch is None or epoch.shape is None:
            return "its decision is not known"
        ordered = self._ordered_since(record, epoch.shape)
        if ordered:
            return ordered
        if record.outcome is Outcome.NONE:
            return ""
        choice = self.choice()
        sourced = choice is not None and not unsourced(choice, epoch.shape, self._desk.stock)
        return "" if sourced else f"its save {record.save} is not whole any more"

    def _ordered_since(self, record: RestoreRecord, shape: Shape) -> str:
        """Say what people ordered since this was decided; empty without.

        What stood in `restore.version` then was obeyed, or outdone by a command.
        """
        desk = self._desk
        if desk.state.forced is not None:
            return f"{desk.state.forced} is ordered"
        text = desk.archive.order
        if not text or text == record.order:
            return ""
        forced, fault = file_order(text, desk.state.branch, Facts(shape=shape, stock=desk.stock))
        if fault:
            return fault
        if forced is None or (record.outcome is Outcome.RESTORE and record.backup == forced.backup):
            return ""
        return f"restore.version orders {forced}"

    def _look_for_orders(self, now: float) -> None:
        """Before a session joins, `restore.version` is read: people may have put it there since the release."""
        desk = self._desk
        coming = desk.membership.coming(desk.state.epoch, desk.live)
        if not coming or not desk.roots():
            return
        newest = max(seat.at for seat in coming)
        if newest > self._settled(now):
            desk.archive.want_listing(newest)
        elif desk.archive.order and now - self._listing_at > LISTING_PERIOD:
            self._listing_at = now  # whom it bars may join when people take it back
            desk.archive.want_listing(now)

    def _settled(self, now: float) -> float:
        """Return until when sessions were taken up of which it is known whether they may join.

        A silent backup store is waited for as before a decision; then they join without it.
        """
        desk = self._desk
        if not desk.roots():
            return float("inf")
        late, listing = now - desk.times.bucket_silent, desk.archive.listing
        if listing is None or any(backup_silence(desk, listing.asked)):
            return late
        return max(listing.asked, late)

    def _saved(self, epoch: Epoch) -> bool:
        """Tell whether any save of the epoch was reported."""
        if any(line.save.epoch == epoch for line in self._desk.stock.lines):
            return True
        if any(save.epoch == epoch for save in self._desk.state.saves):
            return True
        voices = self._desk.hearing.voices.values()
        return any(one.save.epoch == epoch for voice in voices for one in voice.report.saving)

    def _open(self, step: Open, now: float) -> None:
        desk = self._desk
        epoch = desk.state.epoch
        heard = [Epoch(0), desk.stamp.epoch, newest_epoch(desk.stock)]
        if epoch is not None:
            heard.append(epoch.number)
        for voice in desk.hearing.voices.values():
            heard.append(voice.report.obeyed.epoch)
            if voice.report.session is not None:
                heard.append(voice.report.session.epoch)
            if voice.report.newest_committed is not None:
                heard.append(voice.report.newest_committed.epoch)
        number = Epoch(max(heard) + 1)
        desk.membership.opened()
        desk.state.epoch = EpochRecord(
            number=number,
            stamp=desk.next_stamp(number),
            state=EpochState.DECIDING,
            reason="looking for the newest whole save",
            shape=step.shape,
            members=step.members,
            refused=self._refusals(),
            since=self._since(now),
        )
        desk.state.restore, desk.state.plans = None, {}
        self.recalled(now)
        desk.note("epoch_opened", epoch=str(number), reason=str(step.shape))

    def _abandon(self, reason: str) -> None:
        desk, epoch = self._desk, self._desk.state.epoch
        if epoch is None:
            return
        made = desk.state.restore
        # Why the last start failed stays readable: its decision goes with the epoch.
        failed = made is not None and made.outcome in {Outcome.LOST, Outcome.UNKNOWN}
        desk.state.epoch = msgspec.structs.replace(
            epoch,
            stamp=desk.next_stamp(),
            state=EpochState.GATHERING,
            reason=reason,
            members=(),
            released=False,
            failure=made.reason if made is not None and failed else "",
        )
        desk.state.restore, desk.state.plans = None, {}
        desk.note("epoch_abandoned", epoch=str(epoch.number), reason=reason)

    def _join(self, step: Join) -> None:
        desk, epoch = self._desk, self._desk.state.epoch
        if epoch is None:
            return
        desk.state.epoch = msgspec.structs.replace(epoch, stamp=desk.next_stamp(), members=step.members, reason="")
        self._plan(step.joined)
        self._joined.update(step.joined)
        for rank in step.joined:
            unread = "; ".join(backup_silence(desk, desk.membership.seats[rank].at))
            reason = f"restore.version was not read: {unread}" if unread else ""
            desk.note("session_joined", epoch=str(epoch.number), rank=str(rank), reason=reason)

    def _explain(self, reason: str) -> None:
        """Let nodes and people read what the job waits for."""
        desk, epoch = self._desk, self._desk.state.epoch
        if epoch is None:
            if reason:
                stamp = desk.next_stamp()
                desk.state.epoch = EpochRecord(
                    number=stamp.epoch, stamp=stamp, state=EpochState.GATHERING, reason=reason
                )
            return
        if (epoch.members and not epoch.released) or reason == epoch.reason or (desk.idle and not reason):
            return  # deciding, restoring and resting tell their own reasons
        desk.state.epoch = msgspec.structs.replace(epoch, stamp=desk.next_stamp(), reason=reason)

    def _refusals(self) -> dict[str, str]:
        return {str(session): text for session, text in self._desk.membership.refused.items()}

    def _publish_refusals(self) -> None:
        desk, epoch = self._desk, self._desk.state.epoch
        refused = self._refusals()
        if epoch is None and refused:
            stamp = desk.next_stamp()
            epoch = EpochRecord(number=stamp.epoch, stamp=stamp, state=EpochState.GATHERING)
        if epoch is None or epoch.refused == refused:
            return
        for session in refused.keys() - epoch.refused.keys():
            desk.note("session_refused", session=session, reason=refused[session])
        desk.state.epoch = msgspec.structs.replace(epoch, stamp=desk.next_stamp(), refused=refused)

    # ---- deciding

    def _decide(self, now: float) -> None:
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
            self._reword(f"waiting for {', '.join(waiting)}", now)
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
            self._reword(choice.reason, now)
            return
        self._publish(choice, facts, now)

    def _with_orders(self, facts: Facts) -> Facts:
        """Add what people ordered; a command counts before the file."""
        desk, listing = self._desk, self._desk.archive.listing
        forced, fault = desk.state.forced, ""
        if forced is None:
            forced, fault = file_order(listing.forced if listing is not None else None, desk.state.branch, facts)
        return msgspec.structs.replace(facts, forced=forced, order_fault=fault)

    def _obey_people(self, now: float) -> None:
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
        again = made is not None and made.outcome is choice.outcome is Outcome.UNKNOWN
        if again and made is not None and (made.reason == choice.reason or now - self._reason_at < REASON_PERIOD):
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
            since=self._since(now),
        )
        self._reason_at = now
        desk.note(
            "restore_decided",
            epoch=str(epoch.number),
            outcome=str(choice.outcome),
            save=str(choice.save or ""),
            reason=choice.reason,
        )
        if released:
            self._released(desk.state.restore)
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

    def _since(self, now: float) -> float:
        return round(self._desk.wall(now), 3)

    # ---- restoring

    def _restore(self, now: float) -> None:
        desk, epoch, record = self._desk, self._desk.state.epoch, self._desk.state.restore
        if epoch is None or epoch.shape is None or record is None or record.outcome is not Outcome.RESTORE:
            return
        failed: list[str] = []
        laggards: list[str] = []
        for member in epoch.members:
            voice = desk.voice(member)
            progress = voice.report.restore if voice is not None else None
            if progress is None or progress.stamp != record.stamp:
                laggards.append(self._lag(member, voice, now, begun=False))
                continue
            if progress.failed:
                failed.append(f"rank {member.rank} on {member.host}: {progress.failed[0].reason}")
            wanted = {ShardKey(member.rank, Worker(worker)) for worker in range(epoch.shape.workers)}
            if not wanted <= set(progress.verified):
                laggards.append(self._lag(member, voice, now, begun=True))
        if failed:
            self._again(record, failed, now)
        elif not laggards:
            self._release(record, now)
        else:
            self._plan([member.rank for member in epoch.members])
            self._reword(f"restoring {record.save}: waiting for {', '.join(laggards[:8])}", now)

    def _lag(self, member: Member, voice: Voice | None, now: float, *, begun: bool) -> str:
        name = f"rank {member.rank} on {member.host}"
        silence = self._desk.hearing.silence(member.host, now)
        calls = self._desk.hearing.call(member.host, now)
        if calls:
            return f"{name} (cut off: {calls})"
        if voice is None and silence < self._desk.times.suspect:
            return f"{name} (its session is not reported)"
        verdict = pace(silence, voice.progress if voice and begun else None, now, self._desk.times)
        if verdict.pace is Pace.STUCK and now - self._reason_at < self._desk.times.stuck and not begun:
            return f"{name} (beginning)"
        return f"{name} ({verdict.reason})"

    def _again(self, record: RestoreRecord, failed: list[str], now: float) -> None:
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

    def _release(self, record: RestoreRecord, now: float) -> None:
        desk, epoch = self._desk, self._desk.state.epoch
        if epoch is None:
            return
        desk.state.epoch = msgspec.structs.replace(
            epoch,
            stamp=desk.next_stamp(),
            state=EpochState.RUNNING,
            released=True,
            reason="",
            since=self._since(now),
        )
        self._released(record)
        desk.note("epoch_released", epoch=str(epoch.number), save=str(record.save))

    def _released(self, record: RestoreRecord) -> None:
        """An order by command is fulfilled by one release, and begins a new line of saves."""
        desk, epoch = self._desk, self._desk.state.epoch
        if epoch is None:
            return
        if record.forced == BY_COMMAND:
            desk.state.forced = None
        desk.state.branch = begun(record, epoch.number, desk.state.branch)

    # ---- rest

    def _rest(self, now: float) -> None:
        """A job without saves, open sessions and restores is idle after a day; a new save wakes it."""
        desk, epoch = self._desk, self._desk.state.epoch
        if epoch is None or not epoch.released or desk.unix is None:
            return
        seen = [record.seen for save, record in desk.state.saves.items() if save.epoch == epoch.number]
        last = max([epoch.since or desk.wall(desk.since), *seen])
        waiting = any(seat.session.state is SessionState.OPEN for seat in desk.membership.seats.values())
        rests = not waiting and desk.wall(now) - last >= desk.times.idle
        state = EpochState.IDLE if rests else EpochState.RUNNING
        if epoch.state is state:
            return
        reason = f"no save and no restore for {desk.times.idle / 3600:g} h" if rests else ""
        desk.note("job_idle" if rests else "job_awake", epoch=str(epoch.number), reason=reason)
        desk.state.epoch = msgspec.structs.replace(
            epoch, stamp=desk.next_stamp(), state=state, reason=reason, since=round(last, 3)
        )

    def _plan(self, ranks: Iterable[Rank]) -> None:
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

    def _reword(self, reason: str, now: float) -> None:
        """Rewrite the reason of an epoch that is not released, now and then."""
        desk, epoch = self._desk, self._desk.state.epoch
        if epoch is None or epoch.reason == reason or now - self._reason_at < REASON_PERIOD:
            return
        self._reason_at = now
        desk.state.epoch = msgspec.structs.replace(epoch, stamp=desk.next_stamp(), reason=reason)
