"""The coordinator of one job: every decision, no doing; pure.

It acts only while its lease is beyond doubt, with what Redis held when it took the lease and what nodes reported since.
What it decides becomes true when Redis took the write; only then a beacon wakes the nodes.
"""

from collections.abc import Callable, Sequence
from typing import Final, assert_never

from checkpoint_coordinator.border import Checked, check
from checkpoint_coordinator.desk import Desk, Options
from checkpoint_coordinator.facts import facts, inherited
from checkpoint_coordinator.farewell import Farewell
from checkpoint_coordinator.index import Hashes, State, hashes, recall
from checkpoint_coordinator.inventory import take_stock
from checkpoint_coordinator.ledger import Ledger, known
from checkpoint_coordinator.memory import Memory
from checkpoint_coordinator.rendezvous import Rendezvous
from checkpoint_coordinator.restarts import LOOP, loop_text, older, restores
from checkpoint_coordinator.safekeeping import Safekeeping
from checkpoint_coordinator.tenure import Change, Tenure
from checkpoint_coordinator.texts import Texts
from checkpoint_coordinator.wishes import Wishes
from checkpoint_coordinator.words import (
    Effect,
    Event,
    HostsRead,
    JobRemoved,
    LeaseAnswered,
    LeaseRenewed,
    Note,
    Publish,
    ReadHosts,
    ReadSnapshot,
    RemoveJob,
    ReportReceived,
    SnapshotRead,
    StopRequested,
    StoreFailed,
    WishReceived,
    Written,
)
from checkpoint_replicator.backoff import delay
from checkpoint_replicator.fence import ZERO, Stamp
from checkpoint_replicator.ids import Epoch, Host, Job, SessionId, StoreId
from checkpoint_replicator.machine import Ticked
from checkpoint_replicator.messages import Beacon, Party
from checkpoint_replicator.quote import quote
from checkpoint_replicator.records import Lease
from checkpoint_replicator.store import Denial
from checkpoint_replicator.times import Times

__all__ = ["CoordinatorMachine"]

REPAIR_SOON: Final = 1.0
"""Seconds after a write that failed until it is looked whether Redis still holds what was written."""
MOST_KEYS: Final = 8
MOST_ASKED: Final = 1024
"""So many silent hosts are asked for at most whether they call for help."""
FORGET_AGE: Final = 24 * 3600.0
"""A host that said nothing for so long is forgotten."""


class CoordinatorMachine:
    """Decides for one job.

    Args:
        job: which.
        me: what the lease is to say of this process; its token is filled in by Redis.
        times: the table of times.
        options: what people configured.
        new_id: makes random ids.
        chance: a number from 0 to 1, for the spread of retries.
    """

    def __init__(
        self,
        job: Job,
        me: Lease,
        *,
        times: Times,
        options: Options,
        new_id: Callable[[], str],
        chance: Callable[[], float],
    ) -> None:
        self.desk = Desk(job, times, options, new_id)
        self.me = me
        self._rendezvous = Rendezvous(self.desk)
        self._safekeeping = Safekeeping(self.desk, self._rendezvous)
        self._wishes = Wishes(self.desk)
        self._farewell = Farewell(self.desk, self._wishes)
        self._leaving = False
        """The job is forgotten: its keys go, then its name, then this machine is over."""
        self._removal: float | None = None
        """When the job's name is to be taken out of Redis; None: not now."""
        self._went_back = False
        """Redis came back with older data: what it says of people's orders may have been taken back since."""
        self._fence_found: Stamp = ZERO
        """The fence in the snapshot of this tenure."""
        self._tenure = Tenure(times)
        self._ledger = Ledger()
        self._times = times
        self._chance = chance
        self._store = StoreId("")
        self._ready = False
        """The snapshot of this tenure was taken up."""
        self._raising: Stamp | None = None
        """A fence that nodes obeyed and Redis does not know: it is raised before anything else."""
        self._written_before: Stamp = ZERO
        """What Redis had taken when it was last asked about the lease; writes go on while the answer is on its way."""
        self._failures = 0
        self._retry_snapshot: float | None = None
        self._hosts_at: float | None = None
        self._check_at = float("-inf")
        self._memory = Memory()
        self._found = State()
        """What Redis held when the lease was taken."""
        self._rebuilding: float | None = None
        """Until when all waits for N reports, after Redis went back under a coordinator that remembers."""
        self._now = float("-inf")
        self._looked = float("-inf")
        self._due = False
        self._unwritten = False
        self._looped = Epoch(0)
        self._facts: Hashes = {}
        self._inherited: Hashes = {}
        """What an earlier coordinator wrote of nodes; it stands until they report, or another epoch opens."""
        self._inherited_in = Epoch(0)
        self._texts = Texts()
        self._stocked: object = None
        """Of what the desk's stock was made."""
        self._facts_at = float("-inf")
        self._beacon_at = float("-inf")
        self._fault = ""

    @property
    def times(self) -> Times:
        """The table of times."""
        return self._times

    @property
    def active(self) -> bool:
        """Whether this process holds the job's lease and has taken up what Redis knew."""
        return self._tenure.lease is not None and self._ready

    @property
    def over(self) -> bool:
        """Whether the job was forgotten: nothing is done any more."""
        return self._tenure.stopped

    @property
    def lease(self) -> Lease | None:
        """The lease, while it is ours."""
        return self._tenure.lease

    @property
    def fault(self) -> str:
        """Why Redis did not answer last; empty when it does."""
        return self._fault

    def handle(self, event: Event, now: float) -> Sequence[Effect]:
        """Take one event."""
        self._now = now
        effects: list[Effect] = []
        match event:
            case ReportReceived():
                effects += self._hear(event, now)
            case LeaseAnswered():
                effects += self._lease_answered(event, now)
            case LeaseRenewed():
                effects += self._renewed(event, now)
            case SnapshotRead():
                self._take_up(event, now)
            case HostsRead(hosts, calls):
                self.desk.take_hosts(hosts, now)
                self.desk.hearing.called(calls, now)
                self._failures = 0
                self._due = True
                effects += self._settle_doubts(now)
            case Written():
                effects += self._written(event, now)
            case StoreFailed():
                effects += self._failed(event, now)
            case WishReceived(wish):
                self._wishes.take(wish, now)
                self._due = True
            case JobRemoved():
                # The lease runs out by itself: a stand-by that had it before it sees that the name is gone would begin
                # the job anew, and nobody would take its keys away.
                self._tenure.stop(now)
                return [Note("job_removed", {})]
            case StopRequested():
                return self._tenure.stop(now)
            case Ticked():
                self._due = True
            case _:
                assert_never(event)
        asked = self._tenure.wanted(now)
        if asked:
            self._written_before = self._ledger.written
        effects += asked
        if self._tenure.may_act(now):
            effects += self._act(now)
        return effects

    def next_deadline(self) -> float | None:
        """Return when to be asked again."""
        moments = [self._tenure.next_moment(self._now)]
        if self._tenure.lease is not None:
            look = self._looked + (self._times.look if self._due else self._times.beacon)
            moments += (look, self._retry_snapshot, self._removal)
            moments.append(self._ledger.next_moment() if self._unwritten else None)
        next_one = min([moment for moment in moments if moment is not None], default=None)
        # A moment that has passed without effect waits a little: the loop is never always due.
        return None if next_one is None else max(next_one, self._now + self._times.look)

    # ---- what was heard

    def _hear(self, event: ReportReceived, now: float) -> list[Effect]:
        repeated = self.desk.hearing.repeats(event.sender, event.report, now)
        checked = Checked(repeated) if repeated is not None else check(self.desk.job, event.sender, event.report)
        if isinstance(checked, str):
            return [Note("report_refused", {"node": quote(event.sender.host), "reason": quote(checked)})]
        if self._is_doubtful(event.sender, now):
            self.desk.hearing.doubts[event.sender.host] = event.sender, checked
            self._hosts_at = None  # Redis knows which of the two began later
            return []
        return self._take(event.sender, checked, now, news=repeated is None)

    def _is_doubtful(self, sender: Party, now: float) -> bool:
        """Whether a host speaks with two voices: the other one may be that of an earlier life that was under way."""
        hearing = self.desk.hearing
        voice = hearing.voices.get(sender.host)
        if voice is None or voice.incarnation == sender.incarnation or hearing.is_old(sender.incarnation):
            return False
        spoke = voice.fresh and hearing.silence(sender.host, now) < self._times.suspect
        return self._ready and spoke and sender.host in self.desk.registered

    def _settle_doubts(self, now: float) -> list[Effect]:
        """Take up what those said that are registered now; late words of an earlier life are dropped."""
        hearing = self.desk.hearing
        doubts, hearing.doubts = hearing.doubts, {}
        effects: list[Effect] = []
        for host, (sender, checked) in doubts.items():
            voice, record = hearing.voices.get(host), self.desk.registered.get(host)
            if voice is not None and record is not None and record.incarnation == voice.incarnation:
                effects.append(Note("report_superseded", {"node": quote(host)}))
            else:
                effects += self._take(sender, checked, now, news=True)
        return effects

    def _take(self, sender: Party, checked: Checked, now: float, *, news: bool) -> list[Effect]:
        if not self.desk.hearing.take(sender, checked.report, now):
            return []
        self._due = self._due or news
        for text in self.desk.membership.take(sender.host, checked.report.session, now):
            self.desk.note("session_superseded", node=sender.host, reason=text)
        if not checked.struck:
            return []
        return [Note("report_corrected", {"node": quote(sender.host), "reason": "; ".join(checked.struck[:4])})]

    # ---- the lease

    def _lease_answered(self, event: LeaseAnswered, now: float) -> list[Effect]:
        change = self._tenure.answered(event, now)
        self._fault = ""
        if change is not Change.TAKEN or isinstance(event.lease, Denial):
            return []
        self._failures = 0
        self._ready = self._leaving = False
        self._raising = self._removal = None
        self._ledger.forget()
        self.desk.begin(now)
        self._hosts_at = self._check_at = now
        return [
            Note("lease_taken", {"token": str(event.lease.token)}),
            ReadSnapshot(event.lease.token),
            ReadHosts(),
        ]

    def _renewed(self, event: LeaseRenewed, now: float) -> list[Effect]:
        self._fault = ""
        self._failures = 0
        if not self._tenure.awaits(event.began):
            return []
        change = self._tenure.renewed(event)
        if change is Change.LOST:
            return self._lose("the lease is gone from Redis")
        self.desk.unix = event.unix - now
        renewal = event.renewal
        if self._ready and self._store and renewal.store != self._store:
            return [*self._lose("Redis lost its data"), *self._tenure.give_back(now)]
        if self._ready and renewal.fence < self._written_before:
            return [*self._lose("the fence in Redis is lower than it was"), *self._tenure.give_back(now)]
        return []

    def _lose(self, reason: str) -> list[Effect]:
        """Nothing is decided any more before the lease is taken anew and Redis is read again."""
        if self._ready:
            self._memory.leave(self._ledger.written)
        self._ready = False
        self._ledger.forget()
        self._due = True
        return [Note("lease_lost", {"reason": reason})]

    def _take_up(self, event: SnapshotRead, now: float) -> None:
        """Begin a tenure with what Redis holds, or with what we remember where that is the later."""
        lease = self._tenure.lease
        if lease is None or event.token != lease.token:
            return
        if self._ready:
            self._repair(event)
            return
        desk, snapshot = self.desk, event.snapshot
        desk.unix = event.unix - now
        self._store = snapshot.store
        self._found = recall(snapshot.hashes)
        self._found.unreadable.extend(snapshot.spoilt.values())
        self._rebuilding = None
        if self._memory.begin(snapshot.fence, empty=self._found.epoch is None):
            self._rebuilding = now + self._times.lost
            desk.note("index_lost", reason="Redis went back; this coordinator remembers, and waits for all reports")
            self._recall(desk.state, now)
        else:
            self._recall(self._found, now)
        for text in self._found.unreadable[:8]:
            desk.note("record_unreadable", reason=text)
        epoch = desk.state.epoch.number if desk.state.epoch is not None else Epoch(0)
        fence = snapshot.fence
        if desk.stamp.token > lease.token:
            # Redis forgot the tokens that we had: what we remember bears higher stamps than this lease can give.
            self._raising = desk.stamp
            self._went_back = bool(snapshot.hashes)
        desk.stamp = Stamp(lease.token, max(fence.epoch, epoch, desk.stamp.epoch), max(fence.number, desk.stamp.number))
        self._fence_found = fence
        if self._went_back and self._raising is None and not self._memory.better:
            self._doubt_orders()
        self._ledger.reset(known(snapshot), fence)
        self._inherited, self._inherited_in = inherited(snapshot.hashes), epoch
        self._ready = True
        self._due = True
        self._facts_at = float("-inf")
        desk.next_stamp()  # so that the first beacon is news to every node

    def _doubt_orders(self) -> None:
        """What people ordered before Redis went back may be done or withdrawn; a hold harms nothing and stays."""
        self._went_back = False
        self._fence_found = self.desk.stamp
        if self._wishes.doubt():
            self.desk.note("orders_dropped", reason="Redis came back with older data; order again what is still wanted")

    def _repair(self, event: SnapshotRead) -> None:
        """What people or accidents did to keys of ours is undone with the next write."""
        if event.snapshot.store != self._store:
            return  # lost altogether: the next renewal tells
        keys = self._ledger.compare(known(event.snapshot), event.snapshot.fence)
        if keys:
            self._unwritten = True
            self.desk.note("index_repaired", reason=f"not as it was written: {', '.join(keys[:MOST_KEYS])}")

    def _recall(self, state: State, now: float) -> None:
        """Go on from these decisions."""
        desk = self.desk
        desk.state = state
        desk.membership.recall(state.members, state.superseded)
        for host, life in state.lives:
            desk.hearing.supersede(host, life)
        if state.epoch is not None:
            for session, text in state.epoch.refused.items():
                desk.membership.refused.setdefault(SessionId(session), text)
        desk.archive.recall(state.backups, state.last_backup)
        self._rendezvous.recalled(now)

    def _failed(self, event: StoreFailed, now: float) -> list[Effect]:
        self._failures += 1
        pause = delay(self._failures - 1, self._times.retry_least, self._times.retry_most, self._chance())
        match event.request:
            case "acquire" | "renew":
                self._tenure.failed(now, min(pause, self._times.lease_renewed / 2))
            case "write":
                self._ledger.failed(now, pause)
                self._unwritten = True
                self._check_at = min(self._check_at, now + REPAIR_SOON - self._times.repair)  # a key may be spoilt
            case "snapshot":
                self._retry_snapshot = now + pause if not self._ready else None
            case "remove":
                self._removal = now + pause
            case _:  # the hosts are read again in a moment
                self.desk.hosts_fault = self.desk.hosts_fault and event.reason
        if self._fault == event.reason:
            return []
        self._fault = event.reason
        return [Note("store_failed", {"reason": event.reason, "request": event.request})]

    # ---- acting

    def _act(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if not self._ready:
            if self._retry_snapshot is not None and now >= self._retry_snapshot:
                self._retry_snapshot = None
                effects += [ReadSnapshot(self._tenure.lease.token)] if self._tenure.lease is not None else []
            return effects
        if self._hosts_at is None or now - self._hosts_at >= self._times.hosts:
            self._hosts_at = now
            effects.append(ReadHosts(self._silent_hosts(now)))
        if self._removal is not None and now >= self._removal:
            self._removal = None
            return [RemoveJob()]
        if self._leaving:
            return self._write(now)
        if now - self._check_at >= self._times.repair and self._tenure.lease is not None and not self._ledger.busy:
            self._check_at = now
            effects.append(ReadSnapshot(self._tenure.lease.token))
        if now - self._looked >= (self._times.look if self._due else self._times.beacon):
            self._look(now)
            self._unwritten = True
        if self._unwritten:
            effects += self._write(now)
        if now - self._beacon_at >= self._times.beacon:
            effects += self._beacon(now)
        return effects

    def _silent_hosts(self, now: float) -> tuple[Host, ...]:
        """Return the hosts of the job that may call for help."""
        desk = self.desk
        known = desk.hearing.voices.keys() | {member.host for member in desk.members}
        silent = (
            host for host in sorted(known | desk.listed()) if desk.hearing.silence(host, now) >= self._times.suspect
        )
        return tuple(silent)[:MOST_ASKED]

    def _look(self, now: float) -> None:
        """Look at everything and decide what follows."""
        desk = self.desk
        self._looked, self._due = now, False
        top = self._top_obeyed()
        if self._raising is None and top > desk.stamp:
            self._raising = top
            self._went_back = bool(self._ledger.known)
            desk.note("fence_raised", reason=f"nodes obeyed {top}, Redis knew {desk.stamp}")
        stored = desk.archive.top_stamp()
        if self._raising is None and stored > desk.stamp:
            self._raising = stored
            desk.note("fence_raised", reason=f"a backup was written under {stored}, Redis knew {desk.stamp}")
        self._catch_up()
        if self._raising is not None or self._still_rebuilding(now):
            return
        if self._older_than_nodes():
            self._doubt_orders()
        desk.hearing.forget_silent(now, FORGET_AGE)
        desk.look(now)
        self._take_stock()
        desk.decisions = self._ledger.decisions()
        self._wishes.find_hold(now)
        self._wishes.advance(now)
        self._take_stock()  # a backup that is superseded counts where it was ordered just now
        self._farewell.advance(now)
        if self._farewell.complete:
            self._leaving = True
        elif desk.state.forgetting is None:
            self._rendezvous.advance(now)
            self._safekeeping.advance(now)
            self._watch_restarts()

    def _take_stock(self) -> None:
        """See what lies where, unless that is as it was."""
        desk = self.desk
        found = desk.reports(), desk.entries()
        if self._stocked != found:
            self._stocked = found
            desk.stock = take_stock(*found)

    def _catch_up(self) -> None:
        """Number decisions above all that nodes obeyed, also under lower tokens: Redis may have gone back."""
        desk = self.desk
        obeyed = [voice.report.obeyed for voice in desk.hearing.voices.values() if voice.fresh]
        number = max((stamp.number for stamp in obeyed), default=0)
        epoch = max((stamp.epoch for stamp in obeyed), default=Epoch(0))
        if number > desk.stamp.number or epoch > desk.stamp.epoch:
            desk.stamp = Stamp(desk.stamp.token, max(epoch, desk.stamp.epoch), max(number, desk.stamp.number))
            desk.next_stamp()

    def _still_rebuilding(self, now: float) -> bool:
        """After Redis lost its data nothing is decided before all ranks reported anew, or are lost."""
        epoch = self.desk.state.epoch
        if self._rebuilding is None:
            return False
        voices = self.desk.hearing.voices.values()
        heard = {v.report.session.spec.rank for v in voices if v.fresh and v.report.session is not None}
        wanted = set(range(epoch.shape.nodes)) if epoch is not None and epoch.shape is not None else set()
        if not wanted <= heard and now < self._rebuilding:
            return True
        self._rebuilding = None
        top = self._top_obeyed()
        if self._memory.outdone(top):
            self._memory.written()
            self._recall(self._found, now)
            self.desk.note("memory_outdone", reason=f"nodes obeyed {top} of another coordinator since")
        else:
            self.desk.note("index_rebuilt", reason="from memory, confirmed by reports")
        return False

    def _watch_restarts(self) -> None:
        """Three restores of one save without a newer commit are a loop that people must look at."""
        epoch, record = self.desk.state.epoch, self.desk.state.restore
        if epoch is None or record is None or record.save is None or self._looped == epoch.number:
            return
        count = restores(record.save, epoch.number, self.desk.decisions) + self._rendezvous.repeats
        if count >= LOOP:
            self._looped = epoch.number
            reason = loop_text(self.desk.job, record.save, count, older(record.save, self.desk.stock))
            self.desk.note("restart_loop", save=str(record.save), reason=reason)

    def _top_obeyed(self) -> Stamp:
        voices = self.desk.hearing.voices.values()
        return max((voice.report.obeyed for voice in voices if voice.fresh), default=ZERO)

    def _older_than_nodes(self) -> bool:
        """Tell whether nodes obeyed more, under an earlier lease, than Redis knew when this one began."""
        desk = self.desk
        obeyed = (voice.report.obeyed for voice in desk.hearing.voices.values() if voice.fresh)
        newest = max((stamp.number for stamp in obeyed if stamp.token < desk.stamp.token), default=0)
        return newest > self._fence_found.number and not self._memory.better

    def _write(self, now: float) -> list[Effect]:
        lease, desk = self._tenure.lease, self.desk
        if lease is None or self._ledger.resting(now):
            return []
        self._unwritten = False
        if self._raising is not None:
            return [self._ledger.raise_fence(lease, self._raising)]
        if self._rebuilding is not None:
            return []
        if self._leaving:
            cleared = self._ledger.clear(lease, desk.next_stamp(), now)
            return [cleared] if cleared is not None else []
        if now - self._facts_at >= self._times.facts:
            self._facts_at = now
            if desk.state.epoch is not None and desk.state.epoch.number != self._inherited_in:
                self._inherited = {}
            self._facts = {**self._inherited, **facts(desk, now)}
        wanted = {**hashes(desk.state, self._texts), **self._facts}
        write = self._ledger.write(wanted, desk.events, lease, desk.stamp, now)
        if write is None:
            self._memory.written()
            return []
        return [write]

    def _written(self, event: Written, now: float) -> list[Effect]:
        if not self._ledger.awaits(event.stamp):
            return []
        self._unwritten = True
        if event.seen is not None:
            return self._refused(event, now)
        self._failures = 0
        news = event.stamp > self._ledger.written
        count = self._ledger.took(event.stamp)
        self._memory.wrote(event.stamp)
        effects: list[Effect] = [
            Note(entry["event"], {key: text for key, text in entry.items() if key != "event"})
            for entry in self.desk.events[:count]
        ]
        del self.desk.events[:count]
        if self._raising is not None and event.stamp >= self._raising:
            # Ours is below what nodes obeyed: take the lease with a token above it.
            self._raising = None
            return [*effects, *self._lose("nodes obeyed a higher stamp"), *self._tenure.give_back(now)]
        if self._leaving and not self._ledger.known:
            self._removal = now
            return [*effects, Note("job_forgotten", {})]
        if news and self._tenure.may_act(now):
            effects += self._beacon(now)
        return effects

    def _refused(self, event: Written, now: float) -> list[Effect]:
        """Redis saw a higher stamp, or the lease is not ours: a renewal tells which."""
        lease, seen = self._tenure.lease, event.seen
        self._ledger.failed(now, self._times.retry_least)
        if lease is None or seen is None:
            return []
        note = Note("write_refused", {"stamp": str(event.stamp), "seen": str(seen)})
        if seen > event.stamp and self._raising is not None:
            self._raising = None
            return [note, *self._lose("the fence is above what nodes obeyed"), *self._tenure.give_back(now)]
        return [note, *self._lose("a write was refused"), *self._tenure.give_back(now)]

    def _beacon(self, now: float) -> list[Effect]:
        lease = self._tenure.lease
        if lease is None:
            return []
        self._beacon_at = now
        taken = self.desk.hearing.taken()
        return [Publish(Beacon(stamp=self._ledger.written, token=lease.token, store=self._store, taken=taken))]
