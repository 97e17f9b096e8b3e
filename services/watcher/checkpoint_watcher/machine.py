"""The watcher's decisions: pure, from events (`events.py`) to effects (`effects.py`).

The machine never looks at the ramdisk itself. A shell (the service, or a simulation's model of a ramdisk) scans,
answers effects with events, and carries messages. What a shell must do:

- begin with `Started`, when it alone owns the ramdisk; send `Scanned` at every wake-up and by a timer;
- perform effects in order; `HashClaim`, `VerifyShard` and `AdoptStrays` may run beside the others, everything else that
  touches the ramdisk runs strictly one after the other (so an inventory never misses a shard that was named before it);
- answer exactly as `effects.py` says; bus messages and Redis answers may be lost, repeated or late.

effect                                             answer
ClaimSave, HashClaim                               SaveClaimed, ClaimHashed | HashFailed | SaveGone
NameShard                                          ShardNamed | NamingFailed | SaveGone
DropClaim, MarkCommitted                           -
TakeInventory                                      InventoryTaken
DropSaves, DropForeign, ForgetJob                  SavesDropped, ForeignDropped, JobForgotten
VerifyShard, Quarantine                            ShardVerified, ShardQuarantined
AdoptStrays                                        StraysAdopted
CleanUp, WriteSession, RemoveYaml                  CleanedUp, SessionWritten, YamlRemoved
WriteFailed, PublishMarkers, WriteFence            FailedWritten, MarkersPublished, FenceWritten
WritePrerestore, AppendErrors, PublishStatus       -
ReadView, Register                                 ViewRead | ViewFailed, Registered
CallHelp, Leave                                    -
Follow, SendReport, SendTransfer, SendUploader     - (BeaconHeard, TransferReported, UploaderReported come unasked)
Announce                                           -

Parts: `session` (yaml and session), `saves` (claims, names, drops), `restore`, `authority` (whom to obey; one a job),
`report` (what is told). The parts share `node`.
"""

from collections.abc import Callable
from typing import Final, assert_never

from checkpoint_replicator.backoff import delay, spread
from checkpoint_replicator.ids import Address, Epoch, Host, Incarnation, Job, SessionId
from checkpoint_replicator.machine import Ticked
from checkpoint_replicator.messages import Copy, CopyState, Fault, Held
from checkpoint_replicator.session import SessionState
from checkpoint_replicator.times import Times
from checkpoint_watcher.authority import Authority
from checkpoint_watcher.effects import AdoptStrays, AppendErrors, Effect, ForgetJob, Leave, TakeInventory
from checkpoint_watcher.events import (
    BeaconHeard,
    ClaimHashed,
    CleanedUp,
    Event,
    FailedWritten,
    FenceWritten,
    ForeignDropped,
    HashFailed,
    InventoryTaken,
    JobForgotten,
    MarkersFailed,
    MarkersPublished,
    NamingFailed,
    Registered,
    SaveClaimed,
    SaveGone,
    SavesDropped,
    Scanned,
    SessionWritten,
    ShardNamed,
    ShardQuarantined,
    ShardVerified,
    Started,
    StraysAdopted,
    TransferReported,
    UploaderReported,
    ViewFailed,
    ViewRead,
    YamlRemoved,
)
from checkpoint_watcher.node import Node
from checkpoint_watcher.record import FenceRecord
from checkpoint_watcher.report import Reporter
from checkpoint_watcher.restore import Restorer
from checkpoint_watcher.saves import Saves
from checkpoint_watcher.session import SessionKeeper

__all__ = ["WatcherMachine"]

MUTATED: Final = "mutated"
UNCOPIED: Final = "uncopied"
SESSION: Final = "session"
HELD_A_GAP: Final = 50
"""Inventories of many shards are costly: each so many make the gap between two one `report_gap` longer."""


class WatcherMachine:
    """One node's watcher; see the module's text.

    Args:
        host: of the node.
        incarnation: of this life of the process.
        times: the table of times.
        new_id: gives random ids.
        backup_root: of the watcher's own config.
    """

    def __init__(
        self,
        host: Host,
        incarnation: Incarnation,
        times: Times,
        new_id: Callable[[], str],
        backup_root: str | None = None,
    ) -> None:
        self.node = Node(host, incarnation, times, backup_root)
        self.keeper = SessionKeeper(self.node, new_id)
        self.saves = Saves(self.node)
        self.restorer = Restorer(self.node, self.keeper)
        self.reporter = Reporter(self.node, self.saves, self.restorer)
        self.authorities: dict[Job, Authority] = {}
        self._started = False
        self._register_at: float | None = None
        self._register_failures = 0
        self._forgetting: dict[Job, float] = {}
        """Jobs that are being removed, with the moment from which on it may be ordered again."""
        self._landed = 0
        self._adopting: SessionId | None = None
        self._stocktake_at: float | None = None
        self._stocktaken_at = float("-inf")
        self._corrupt: set[Fault] = set()
        self._deadline: float | None = None

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one event and return what is to be done, in order."""
        node = self.node
        if isinstance(event, Started):
            self._start(event, now)
            self._advance(now, news=True)
        elif self._started:
            faults = node.faults.copy()
            news = self._take(event, now) or faults != node.faults
            if news or node.effects or self._is_due(now):
                self._advance(now, news=news)
        effects, node.effects = node.effects, []
        return effects

    def next_deadline(self) -> float | None:
        """When `Ticked` is wanted at the latest."""
        return self._deadline

    def _is_due(self, now: float) -> bool:
        """Whether time alone asks for something; a beacon may have moved the moment at which Redis is read."""
        deadline = self._deadline
        for authority in self.authorities.values():
            moment = authority.deadline()
            if moment is not None and (deadline is None or moment < deadline):
                self._deadline = deadline = moment
        return deadline is not None and now >= deadline

    def _next_deadline(self) -> float | None:
        moments = [part.deadline() for part in (self.keeper, self.saves, self.restorer, self.reporter)]
        moments += [self._register_at, self._stocktake_at]
        moments += [moment for moment in self._forgetting.values() if moment < float("inf")]
        moments += [authority.deadline() for authority in self.authorities.values()]
        return min((moment for moment in moments if moment is not None), default=None)

    # ---- events

    def _start(self, event: Started, now: float) -> None:
        self._started = True
        self.node.stocktake(event.held, event.fallen)
        self._stocktake_at = now + self.node.times.stocktake
        self.node.traced = event.lineage
        self.keeper.resume(event.session, now)
        for job, fence in event.fences.items():
            self._authority(job, fence)
        lineage = self.node.lineage
        self.node.jobs.update(event.fences, {lineage.spec.job} if lineage is not None else ())
        if self.node.job is not None:
            self.node.jobs.add(self.node.job)
        for reason in event.unreadable:
            self.node.announce("record_unreadable", reason=reason)
            self.node.emit(AppendErrors(reason))
        if event.sessionless:
            reason = f"no session, nothing is replicated before the trainer restarts: {event.sessionless}"
            self.node.blame(Fault(kind=SESSION, reason=reason))
        self.saves.room.entries.update(event.entries)
        self.saves.resume(event.claims, event.wished)
        self._adopt()
        self._know_jobs(now)
        self._register()

    def _take(self, event: Event, now: float) -> bool:  # noqa: PLR0915 - one flat line or two an event
        """Take an event; False: nothing is different from before, but what its effects will change."""
        match event:
            case Ticked():
                return False
            case Scanned():
                return self._scanned(event, now)
            case InventoryTaken():
                self._stocktaken(event, now)
            case JobForgotten():
                self._forgotten(event, now)
            case SaveClaimed():
                self.saves.claimed(event)
            case SaveGone():
                self.saves.gone(event)
            case ClaimHashed():
                authority = self.authorities.get(event.claim.job)
                self.saves.hashed(event, authority.committed if authority is not None else None)
            case HashFailed():
                self.saves.unhashable(event)
            case ShardNamed():
                self.saves.named(event)
            case NamingFailed():
                self.saves.unnamed(event, now)
            case StraysAdopted(session, adopted, refused):
                self._adopted(session, adopted, refused)
            case CleanedUp():
                self.keeper.cleaned()
            case SessionWritten(record):
                if self.keeper.written(record):
                    self._opened(now)
            case YamlRemoved():
                self.keeper.removed(event, now)
            case FailedWritten(session):
                self.keeper.told(session)
            case MarkersPublished(session, handout):
                self.keeper.published(session, handout=handout)
            case MarkersFailed(session, reason):
                self.keeper.unpublished(session, reason)
            case FenceWritten(job, record):
                if self._authority(job).written(record):
                    self._obey(job, now)
            case ShardVerified():
                self.restorer.verified(event)
            case ShardQuarantined():
                self.restorer.quarantined(event, now)
            case SavesDropped():
                self.saves.dropped(event, now)
            case ForeignDropped(dropped):
                self.saves.let_go(dropped)
                self.saves.room.made(now)
            case ViewRead(job, view):
                self.node.read.add(job)
                if view.keep is not None and view.keep.hold:  # whoever said so, also one that may order nothing now
                    self.node.frozen.add(job)
                if self._authority(job).read(view, now):
                    self._obey(job, now)
            case ViewFailed(job, reason):
                self._authority(job).failed(reason, now)
            case Registered():
                self._registered(event, now)
            case BeaconHeard(job, incarnation, beacon):
                known = job in self.authorities
                self._authority(job).beacon(incarnation, beacon, now)
                return not known
            case TransferReported():
                return self._transfer_reported(event, now)
            case UploaderReported(job, incarnation, report):
                return job in self.node.jobs and self.reporter.hear_uploader(job, incarnation, report, now)
            case Started():
                pass
            case _:
                assert_never(event)
        return True

    def _take_stock(self, now: float) -> None:
        """Have an inventory taken; the more there is, the more time is left to other work between two."""
        gap = self.node.times.report_gap * (len(self.node.held) // HELD_A_GAP)
        soon = max(now, self._stocktaken_at + gap)
        self._stocktake_at = soon if self._stocktake_at is None else min(self._stocktake_at, soon)

    def _stocktaken(self, event: InventoryTaken, now: float) -> None:
        """Take the inventory; what is missing and was not dropped was removed by somebody else."""
        here = {one.tag for one in event.held}
        for tag in sorted(self.node.held.keys() - here):
            own = self.node.held[tag].own
            self.node.announce("shard_vanished", job=tag.job, step=tag.save.step, rank=tag.key.rank, own=own)
            if own and tag.job == self.node.job:
                self.node.complain(f"step {tag.save.step} of {tag.key}: its data here was removed or changed")
        self.node.stocktake(event.held, event.fallen)
        self._stocktaken_at = now
        later = now + self.node.times.stocktake
        self._stocktake_at = later if self._stocktake_at is None else min(self._stocktake_at, later)
        self.restorer.stocktaken()
        for job in self.authorities:  # a copy that was under way when its save was let go goes as well
            self._keep(job)

    def _scanned(self, event: Scanned, now: float) -> bool:
        snapshot = event.snapshot
        news = snapshot != self.node.snapshot
        unclaimed = self.saves.unclaimed
        self.node.snapshot = snapshot
        self.keeper.look(snapshot, now)
        record = self.node.session
        lineage = self.node.lineage
        coming = (
            self.keeper.taking.spec if self.keeper.taking is not None else record.spec if record is not None else None
        )
        authority = self.authorities.get(lineage.spec.job) if lineage is not None else None
        self.saves.look(snapshot, lineage, coming, authority.committed if authority is not None else None)
        self.saves.room.judge()
        self.saves.room.make(now)
        return news or self.saves.unclaimed != unclaimed

    def _adopt(self) -> None:
        """Data of this job that has no sidecar is looked at before this node says that it told all."""
        record = self.node.session
        self._adopting = record.id if record is not None and record.spec is not None and self.keeper.waiting else None
        if self._adopting is not None and record is not None and record.spec is not None:
            self.node.emit(AdoptStrays(record.id, record.spec))

    def _adopted(self, session: SessionId, adopted: tuple[Held, ...], refused: tuple[str, ...]) -> None:
        for held in adopted:
            self.node.hold(held)
            self.node.announce("stray_adopted", step=held.tag.save.step, rank=held.tag.key.rank, size=held.tag.size)
        for reason in refused:
            self.node.announce("stray_refused", reason=reason)
        if refused and session == self._adopting:
            reason = f"{len(refused)} shards without a sidecar are not taken: {'; '.join(refused[:4])}"
            self.node.blame(Fault(kind="stray", reason=reason))
        if session == self._adopting:
            self._adopting = None

    def _opened(self, now: float) -> None:
        """A new session stands in `session.json`."""
        self.restorer.reset()
        self._adopt()
        self._know_jobs(now)
        if self.node.job is not None:
            self._register()
            self._authority(self.node.job).look(now)

    def _transfer_reported(self, event: TransferReported, now: float) -> bool:
        reporter = self.reporter
        if event.incarnation != reporter.transfer.incarnation:
            self._landed = event.report.landed
            self._corrupt.clear()
            self.node.emit(TakeInventory(recover=True))
        news = reporter.hear_transfer(event.incarnation, event.report, now)
        if event.report.peer != self.node.transfer:
            self.node.transfer = event.report.peer
            self._register()
        if event.report.landed != self._landed:
            self._landed = event.report.landed
            self._take_stock(now)
        self.saves.room.lacking = event.report.lacking.get(self.node.job or "", 0)
        self.saves.room.make(now)
        self.restorer.told(event.report.fetches)
        for fault in set(event.report.corrupt) - self._corrupt:
            if fault.address is not None and fault.kind == MUTATED:
                self._mutate(fault.address, fault.reason)
            elif fault.address is not None:
                self.restorer.suspect(fault.address, fault.reason)
        self._corrupt = set(event.report.corrupt)
        for copy in event.report.copies:
            if copy.state is CopyState.MUTATED:
                self._mutate(copy.address, copy.reason)
        self._uncopied(event.report.copies)
        return news

    def _uncopied(self, copies: tuple[Copy, ...]) -> None:
        """Say once of each own save which peer takes no copy and why, until it does or the save needs none any more."""
        node = self.node
        open_ = {copy.address for copy in copies if copy.state is not CopyState.STORED}
        for name in [name for name, fault in node.faults.items() if name[0] == UNCOPIED and fault.address not in open_]:
            del node.faults[name]
        refused = {copy.address: copy for copy in copies if copy.state is CopyState.REFUSED}
        for tag in node.owned.values() if refused else ():
            copy = refused.get(tag.address)
            if copy is None or (UNCOPIED, tag.save, tag.key) in node.faults:
                continue
            reason = f"{copy.host} took no copy of step {tag.save.step} of {tag.key}: {copy.reason}"
            node.blame(Fault(kind=UNCOPIED, reason=reason, save=tag.save, key=tag.key, address=tag.address))

    def _mutate(self, address: Address, reason: str) -> None:
        """An own save was rewritten after it was hashed: it never commits, and goes when a keep list gives it up.

        Anything older is a corrupt copy, own or not.
        """
        node = self.node
        epoch = node.session.epoch if node.session is not None else Epoch(0)
        fresh = [
            tag
            for tag, held in node.held.items()
            if tag.address == address and held.own and not held.committed and tag.save.epoch == epoch
        ]
        if not fresh:
            self.restorer.suspect(address, reason)
        for tag in fresh:
            if (MUTATED, tag.save, tag.key) in node.faults:
                continue
            if self.node.blame(Fault(kind=MUTATED, reason=reason, save=tag.save, key=tag.key, address=address)):
                self.node.announce("save_mutated", step=tag.save.step, rank=tag.key.rank, reason=reason)
                self.node.complain(
                    f"step {tag.save.step} was changed after it was saved and is not replicated: {reason}"
                )

    # ---- Redis

    def _authority(self, job: Job, fence: FenceRecord | None = None) -> Authority:
        if job not in self.authorities:
            self.authorities[job] = Authority(self.node, job, fence or FenceRecord())
            self.node.jobs.add(job)
        return self.authorities[job]

    def _know_jobs(self, now: float) -> None:
        new = self.node.jobs - self.authorities.keys()
        for job in sorted(new):
            self._authority(job).look(now)
        if new:
            self._register()

    def _register(self) -> None:
        self._register_at = None
        self.node.register()

    def _registered(self, event: Registered, now: float) -> None:
        if not event.reason:
            self._register_failures = 0
            return
        times = self.node.times
        chance = spread(self.node.incarnation, self._register_failures)
        self._register_at = now + delay(self._register_failures, times.retry_least, times.retry_most, chance)
        self._register_failures += 1

    def _obey(self, job: Job, now: float) -> None:
        """A view newly counts, and its stamps stand in `fence.json`."""
        authority = self.authorities[job]
        if authority.view is None:
            return
        if authority.forgets:
            self._forget(job, now)
            return
        if job == self.node.job and authority.view.epoch is not None:
            self.keeper.obey(authority.view.epoch, now)
        self._keep(job)

    # ---- forgetting

    def _mine(self, job: Job) -> bool:
        """Whether the session, or the one whose saves stand in the directory, is of this job."""
        record = self.node.session
        lineage = record.lineage if record is not None else None
        return job == self.node.job or (lineage is not None and lineage.spec.job == job)

    def _forget(self, job: Job, now: float) -> None:
        """Remove all of a job, unless a trainer waits for it; nothing may be on its way to a name meanwhile."""
        record = self.node.session
        waits = self.keeper.waiting and job == self.node.job
        if waits or self.keeper.taking is not None or self.saves.on_the_way(job):
            return
        session = record is not None and self._mine(job)
        has = session or self.node.of(job) or self.authorities[job].fence != FenceRecord()
        if not has or now < self._forgetting.get(job, float("-inf")) or not self.keeper.safe:
            return
        self._forgetting[job] = float("inf")
        self.node.announce("job_forgetting", job=job)
        self.node.emit(ForgetJob(job, session))

    def _forgotten(self, event: JobForgotten, now: float) -> None:
        job = event.job
        before = self.node.held.keys() | self.node.fallen
        self.node.stocktake(event.held, event.fallen)
        self.saves.let_go(before - self.node.held.keys() - self.node.fallen)
        if event.reason:
            self._forgetting[job] = now + self.node.times.scan
            self.node.announce("job_not_forgotten", job=job, reason=event.reason)
            return
        self._forgetting.pop(job, None)
        if self._mine(job) and not self.keeper.waiting:
            self.keeper.forget()
            self.restorer.reset()
            self.node.faults.clear()
        if job in self.authorities:
            self.authorities[job].forgotten()
        self.node.announce("job_forgotten", job=job)

    def _leave(self) -> None:
        """A job of which nothing is here and that nobody decides for is none of this host's any more."""
        for job in [job for job, authority in self.authorities.items() if authority.left]:
            if self._mine(job) or self.node.of(job) or self.saves.on_the_way(job) or self.keeper.taking is not None:
                continue
            del self.authorities[job]
            self._forgetting.pop(job, None)
            self.node.jobs.discard(job)
            self.node.read.discard(job)
            self.node.frozen.discard(job)
            self.saves.leave(job)
            self.reporter.leave(job)
            self.node.emit(Leave(job))
            self._register()

    def _keep(self, job: Job) -> None:
        authority = self.authorities[job]
        keep = authority.keep
        if keep is None or authority.view is None:
            return
        (self.node.frozen.add if keep.hold else self.node.frozen.discard)(job)
        busy = set(self.restorer.busy) if job == self.node.job else set()
        if authority.view.orders is not None:
            busy.update(tag.save for order in authority.view.orders.backup for tag in order.tags)
        self.saves.obey(job, keep, self.node.of(job), busy)

    # ---- what is next

    def _advance(self, now: float, *, news: bool) -> None:
        self._know_jobs(now)
        if self._stocktake_at is not None and now >= self._stocktake_at:
            self._stocktake_at = None
            self.node.emit(TakeInventory())
        if self._register_at is not None and now >= self._register_at:
            self._register()
        if self.saves.advance(now):
            for known in self.authorities:
                self._keep(known)
        for forgotten in [job for job, authority in self.authorities.items() if authority.forgets]:
            self._forget(forgotten, now)
        self._forgetting = {job: again for job, again in self._forgetting.items() if again > now}
        self._leave()
        complete = self._complete()
        news = news or complete is not self.reporter.complete
        self.reporter.complete = complete
        self.keeper.advance(now, claims_done=not self.saves.claiming)
        job = self.node.job
        if job is not None:
            authority = self._authority(job)
            self.restorer.advance(authority.view, now)
            if self.keeper.overdue(now):
                self.keeper.fail(self._overdue(authority))
        self.keeper.advance(now, claims_done=not self.saves.claiming)
        if news or self.node.effects:
            self.reporter.touch()
        for one in self.authorities.values():
            one.advance(now)
        self.reporter.advance(self.authorities, now)
        self.restorer.quarantine(self.reporter.told(self.restorer.suspects))
        self._deadline = self._next_deadline()

    def _complete(self) -> bool:
        """Whether every finished save that was found is hashed and named.

        In a running session what is found later is news and no gap: it stands in `saving`, and does not take the word
        back that what there was before is all told.
        """
        snapshot = self.node.snapshot
        if snapshot is None or not snapshot.watching or self.keeper.taking is not None or self._adopting is not None:
            return False
        if self.running and self.reporter.complete:
            return True
        return self.saves.settled and not snapshot.settling

    def _overdue(self, authority: Authority) -> str:
        what = "release" if self.keeper.gathered else "rendezvous"
        parts = [f"no {what} within {int(self.keeper.patience)} s", self.restorer.standstill()]
        epoch = authority.view.epoch if authority.view is not None else None
        if epoch is not None and epoch.reason:
            parts.append(epoch.reason)
        if authority.failure:
            parts.append(authority.failure)
        elif not authority.heard:
            parts.append("Redis has not answered")
        return "; ".join(parts) + "; what is here stays, and the next try goes on from it"

    @property
    def running(self) -> bool:
        """Whether a session has its markers."""
        record = self.node.session
        return record is not None and record.state is SessionState.RUNNING
