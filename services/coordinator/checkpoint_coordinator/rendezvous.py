"""From open sessions to a released epoch: gathered, decided, restored, released; pure."""

import msgspec

from checkpoint_coordinator.decision import Decision
from checkpoint_coordinator.desk import Desk
from checkpoint_coordinator.gathering import Gathering
from checkpoint_coordinator.hearing import Voice
from checkpoint_coordinator.restore import Choice
from checkpoint_replicator.ids import Worker
from checkpoint_replicator.liveness import Pace, pace
from checkpoint_replicator.records import EpochState, Member, Outcome, RestoreRecord
from checkpoint_replicator.save import ShardKey
from checkpoint_replicator.session import SessionState

__all__ = ["Rendezvous"]


class Rendezvous:
    """The epoch of one job."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._decision = Decision(desk)
        self._gathering = Gathering(desk, self._decision)
        self._last: float | None = None
        """When something happened last in the job, by the clock of Redis; None: not looked yet in this tenure."""
        self._moved = float("-inf")
        """When something happened last that this process saw, by its own clock."""

    def recalled(self, now: float) -> None:
        """A coordinator that took over goes on with what Redis holds; its waits begin anew."""
        self._decision.recalled(now)
        self._gathering.recalled()
        self._last = None

    @property
    def repeats(self) -> int:
        """How often this epoch's decision was given again to sessions that joined."""
        return self._gathering.repeats

    def choice(self) -> Choice | None:
        """Return what was restored; None where nothing was."""
        return self._decision.choice()

    def advance(self, now: float) -> None:
        """Go on as far as reports and time allow."""
        self._gathering.advance(now)
        self._rest(now)
        self._decision.obey_people(now)
        epoch = self._desk.state.epoch
        if epoch is None or not epoch.members or epoch.released:
            return
        if epoch.state is EpochState.DECIDING:
            self._decision.advance(now)
        elif epoch.state is EpochState.RESTORING:
            self._restore(now)

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
            self._decision.again(record, failed, now)
        elif not laggards:
            self._release(record, now)
        else:
            self._decision.plan_for([member.rank for member in epoch.members])
            self._decision.reword(f"restoring {record.save}: waiting for {', '.join(laggards[:8])}", now)

    def _lag(self, member: Member, voice: Voice | None, now: float, *, begun: bool) -> str:
        name = f"rank {member.rank} on {member.host}"
        silence = self._desk.hearing.silence(member.host, now)
        calls = self._desk.hearing.call(member.host, now)
        if calls:
            return f"{name} (cut off: {calls})"
        if voice is None and silence < self._desk.times.suspect:
            return f"{name} (its session is not reported)"
        verdict = pace(silence, voice.progress if voice and begun else None, now, self._desk.times)
        if verdict.pace is Pace.STUCK and now - self._decision.reason_at < self._desk.times.stuck and not begun:
            return f"{name} (beginning)"
        return f"{name} ({verdict.reason})"

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
            since=desk.moment(now),
        )
        self._decision.released(record)
        desk.note("epoch_released", epoch=str(epoch.number), save=str(record.save))

    def _rest(self, now: float) -> None:
        """A job without saves, open sessions and restores is idle after a day; a new save wakes it."""
        desk, epoch = self._desk, self._desk.state.epoch
        if epoch is None or not epoch.released:
            self._last = 0.0  # whatever happens next happens under this process's eyes
            return
        if desk.unix is None:
            return
        seen = [record.seen for save, record in desk.state.saves.items() if save.epoch == epoch.number]
        last = max([epoch.since or desk.wall(desk.since), *seen])
        if self._last is not None and last != self._last:
            self._moved = now
        self._last = last
        waiting = any(seat.session.state is SessionState.OPEN for seat in desk.membership.seats.values())
        # The clock of Redis may jump; what this process saw itself is younger than a day whatever that clock says.
        rests = not waiting and min(desk.wall(now) - last, now - self._moved) >= desk.times.idle
        state = EpochState.IDLE if rests else EpochState.RUNNING
        if epoch.state is state:
            return
        reason = f"no save and no restore for {desk.times.idle / 3600:g} h" if rests else ""
        desk.note("job_idle" if rests else "job_awake", epoch=str(epoch.number), reason=reason)
        desk.state.epoch = msgspec.structs.replace(
            epoch, stamp=desk.next_stamp(), state=state, reason=reason, since=round(last, 3)
        )
