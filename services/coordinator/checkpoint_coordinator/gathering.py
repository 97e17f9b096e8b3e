"""Who is in the next epoch: open sessions are gathered, one that comes late joins, and an epoch is left; pure.

Nothing here looks at running training: a running session is not gathered, and a session that joins takes the decision
that its fellows took.
"""

from collections import Counter

import msgspec

from checkpoint_coordinator.branch import file_order
from checkpoint_coordinator.decision import LISTING_PERIOD, Decision
from checkpoint_coordinator.desk import Desk
from checkpoint_coordinator.membership import Abandon, Join, Open
from checkpoint_coordinator.restore import Facts, newest_epoch, unsourced
from checkpoint_coordinator.witness import backup_silence
from checkpoint_replicator.ids import Epoch, Rank
from checkpoint_replicator.records import EpochRecord, EpochState, Member, Outcome, RestoreRecord
from checkpoint_replicator.session import SessionState
from checkpoint_replicator.shape import Shape

__all__ = ["Gathering"]


class Gathering:
    """The members of one job's epoch."""

    def __init__(self, desk: Desk, decision: Decision) -> None:
        self._desk = desk
        self._decision = decision
        self._listing_at = float("-inf")
        self._joined: Counter[Rank] = Counter()

    def recalled(self) -> None:
        """A coordinator that took over counts anew who joined."""
        self._joined.clear()

    @property
    def repeats(self) -> int:
        """How often this epoch's decision was given again to sessions that joined."""
        return max(self._joined.values(), default=0)

    def advance(self, now: float) -> None:
        """Gather who is there, as far as reports and time allow."""
        self._adopt_running(now)
        self._gather(now)
        self._publish_refusals()

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
            since=desk.moment(now),
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
        choice = self._decision.choice()
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
            since=desk.moment(now),
        )
        desk.state.restore, desk.state.plans = None, {}
        self._decision.recalled(now)
        self.recalled()
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
        self._decision.plan_for(step.joined)
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
