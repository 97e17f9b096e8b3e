"""Carry out a restore decision: verify what is here, have the rest fetched, publish when the coordinator releases.

The own ramdisk is a source like any other: its shards are hashed again before they count, unless this decision
already verified them. A corrupt copy is reported, taken out of its name and fetched anew.
"""

from dataclasses import dataclass, field
from typing import Final

from checkpoint_replicator.fence import ZERO, Stamp
from checkpoint_replicator.ids import Address
from checkpoint_replicator.messages import Fault, Fetch, FetchOrder, FetchState, RestoreProgress
from checkpoint_replicator.records import EpochRecord, FetchPlan, NodeView, Outcome, RestoreRecord, ShardPlan
from checkpoint_replicator.save import Save, Tag
from checkpoint_replicator.session import SessionSpec, SessionState
from checkpoint_watcher.effects import Quarantine, TakeInventory, VerifyShard, WritePrerestore
from checkpoint_watcher.events import ShardQuarantined, ShardVerified
from checkpoint_watcher.node import Node
from checkpoint_watcher.record import Marker, SessionRecord
from checkpoint_watcher.session import SessionKeeper

__all__ = ["Restorer"]

VERIFYING: Final = 1
"""Shards hashed at once; each uses four threads."""


@dataclass(slots=True)
class Restorer:
    """One session's restore; everything is derived anew when the decision's stamp changes.

    Attributes:
        stamp: of the decision in hand; ZERO without.
    """

    node: Node
    keeper: SessionKeeper
    stamp: Stamp = ZERO
    _session: str = ""
    _save: Save | None = None
    _shards: tuple[ShardPlan, ...] = ()
    _said: tuple[int | None, str | None] | None = None
    _verifying: set[Address] = field(default_factory=set)
    _bad: set[Address] = field(default_factory=set)
    _quarantining: set[Address] = field(default_factory=set)
    _fetches: dict[Address, Fetch] = field(default_factory=dict)
    _stocktaking: set[Address] = field(default_factory=set)
    _unknown: str = ""
    _missed: tuple[str, ...] = ()
    """Witnesses of whose silence the trainer was told."""
    _quarantine_at: float | None = None

    @property
    def busy(self) -> tuple[Save, ...]:
        """Saves that must not be dropped now."""
        if self._save is None or not self._open():
            return ()
        return tuple({self._save, *(shard.tag.save for shard in self._shards)})

    def advance(self, view: NodeView | None, now: float) -> None:
        """Take the next step that the decision asks for."""
        if self._quarantine_at is not None and now >= self._quarantine_at:
            self._quarantine_at = None
        record = self.node.session
        if record is None or record.spec is None or view is None or self.keeper.taking is not None:
            return
        epoch, decision = view.epoch, view.restore
        concerned = self._concerns(record, epoch)
        if epoch is not None and epoch.released and not concerned:
            self._let_go()
        if not concerned or epoch is None or decision is None:
            return
        self._adopt(record, decision, view.plan)
        if not self._open() or not self.node.yaml_gone:
            return
        match decision.outcome:
            case Outcome.UNKNOWN:
                self._unknown = decision.reason
            case Outcome.LOST:
                self.keeper.fail(f"nothing can be restored: {decision.reason}")
            case Outcome.NONE:
                self._announce_step(None, None)
                if epoch.released and self.keeper.waiting and self.keeper.safe:
                    self._run(epoch, decision, _empty_markers(record.spec))
            case Outcome.RESTORE:
                self._restore(record.spec, epoch, decision)

    def fetches(self) -> tuple[FetchOrder, ...]:
        """What the transfer is to bring."""
        if not self._open():
            return ()
        orders: dict[Address, FetchOrder] = {}
        for shard in self._shards:
            address = shard.tag.address
            if address in self._bad | self._quarantining or self._whole(shard):
                continue  # a corrupt copy loses its names first: the transfer would take it for the shard
            if self._stands(address) and not self._lacks_name(shard):
                continue  # it is hashed first
            known = orders.get(address)
            tags = (*known.tags, shard.tag) if known is not None and shard.tag not in known.tags else (shard.tag,)
            orders[address] = FetchOrder(
                tags=known.tags if known is not None and shard.tag in known.tags else tags,
                holders=tuple(peer for peer in shard.holders if peer.host != self.node.host),
                backup=shard.backup,
            )
        return tuple(orders[address] for address in sorted(orders))

    def verified(self, event: ShardVerified) -> None:
        """A shard was hashed again."""
        self._verifying.discard(event.address)
        if event.stamp != self.stamp:
            return
        if event.reason:
            self.suspect(event.address, event.reason)
        else:
            self._count(event.address)

    @property
    def suspects(self) -> frozenset[Address]:
        """Corrupt shards that still have their names."""
        return frozenset(self._bad - self._quarantining) if self._bad else frozenset()

    def suspect(self, address: Address, reason: str) -> None:
        """Report a copy whose bytes are not those of its address; once that is sent it loses its names."""
        if address in self._bad or not self.node.standing(address):
            return
        self._bad.add(address)
        self.node.announce("corrupt_copy_found", tier="own", address=address, reason=reason)
        for tag in self._tags(address):
            self.node.blame(Fault(kind="corrupt", reason=reason, save=tag.save, key=tag.key, address=tag.address))
            self.node.complain(
                f"step {tag.save.step}: the copy of {tag.key} in this ramdisk is gone or corrupt: {reason}"
            )

    def quarantine(self, reported: frozenset[Address]) -> None:
        """Take those corrupt shards out of their names that were reported."""
        if self._quarantine_at is not None or not reported:
            return
        for address in sorted(reported & self.suspects):
            self._quarantining.add(address)
            self.node.emit(Quarantine(address), TakeInventory())

    def quarantined(self, event: ShardQuarantined, now: float) -> None:
        """It has no name any more: it may be fetched. One that is being read is tried again."""
        self._quarantining.discard(event.address)
        if event.reason:
            self._quarantine_at = now + self.node.times.scan
            return
        self._bad.discard(event.address)
        self._fetches.pop(event.address, None)
        for tag in self._tags(event.address):
            self.node.let_go(tag)
        self._forgive(event.address)

    def deadline(self) -> float | None:
        """When `advance` has something to do."""
        return self._quarantine_at

    def told(self, fetches: tuple[Fetch, ...]) -> None:
        """The transfer reported."""
        wanted = {order.tags[0].address for order in self.fetches()}
        for fetch in fetches:
            if fetch.address in wanted:
                self._fetches[fetch.address] = fetch
                if fetch.state is FetchState.DONE and fetch.address not in self._stocktaking:
                    self._stocktaking.add(fetch.address)
                    self.node.emit(TakeInventory())

    def stocktaken(self) -> None:
        """The inventory is new: what the transfer named counts as verified, since each leaf was on its arrival."""
        done = {address for address, fetch in self._fetches.items() if fetch.state is FetchState.DONE}
        for address in sorted(self._stocktaking | done):
            if self.node.standing(address) and address not in self._bad | self._quarantining:
                self._count(address)
        self._stocktaking.clear()

    def progress(self) -> RestoreProgress | None:
        """How far it is, for the report."""
        record = self.node.session
        if self.stamp == ZERO or record is None or record.id != self._session:
            return None
        keys = tuple(sorted(shard.key for shard in self._shards if self._whole(shard)))
        failed = tuple(
            Fault(kind="no_source", reason=fetch.reason, save=shard.tag.save, key=shard.key, address=fetch.address)
            for shard in self._shards
            if (fetch := self._fetches.get(shard.tag.address)) is not None
            and fetch.state is FetchState.FAILED
            and not self._verified(shard.tag.address)
        )
        sizes = {shard.tag.address: shard.tag.size for shard in self._shards}
        sources: dict[str, int] = {}
        have = 0
        for address, size in sizes.items():
            brought = self._fetches.get(address)
            for source, count in brought.by_source.items() if brought is not None else ():
                sources[source] = sources.get(source, 0) + count
            if self._verified(address):
                have += size
                if brought is None:
                    sources["own"] = sources.get("own", 0) + size
            elif brought is not None:
                have += min(brought.have, size)
        return RestoreProgress(
            stamp=self.stamp,
            verified=keys,
            failed=failed,
            have=have,
            size=sum(sizes.values()),
            by_source=sources,
            published=record.published,
        )

    def standstill(self) -> str:
        """How far it is, for `replicator.failed`."""
        if self._unknown:
            return self._unknown
        progress = self.progress()
        if progress is None:
            return "no restore decision was made"
        parts = [f"{len(progress.verified)} of {len(self._shards)} shards of this node are verified"]
        if progress.size:
            parts.append(f"{progress.have} of {progress.size} bytes are here")
        parts += [f"{fault.key}: {fault.reason}" for fault in progress.failed[:4]]
        return ", ".join(parts)

    # ---- inside

    def _concerns(self, record: SessionRecord, epoch: EpochRecord | None) -> bool:
        return epoch is not None and record.id in [member.session for member in epoch.members]

    def _let_go(self) -> None:
        """The job went on without this session: nothing is held or fetched for it any more."""
        self.stamp, self._save, self._shards = ZERO, None, ()

    def _open(self) -> bool:
        """Whether there is anything to do: also after the deadline, so that the next try goes on."""
        record = self.node.session
        if record is None or record.spec is None or record.id != self._session:
            return False
        return record.state is SessionState.OPEN or bool(record.failure)

    def _adopt(self, record: SessionRecord, decision: RestoreRecord, plan: FetchPlan | None) -> None:
        """Begin anew where the decision is another one, and take its plan when that is there."""
        if decision.stamp != self.stamp or record.id != self._session:
            self.stamp, self._session, self._save = decision.stamp, record.id, decision.save
            self._shards = ()
            self._fetches.clear()
            self._stocktaking.clear()
            self._unknown = ""
            self.node.announce(
                "restore_decided",
                outcome=decision.outcome,
                step=decision.save.step if decision.save is not None else -1,
                reason=decision.reason,
            )
        if plan is not None and plan.stamp == decision.stamp:
            self._shards = plan.shards

    def _restore(self, spec: SessionSpec, epoch: EpochRecord, decision: RestoreRecord) -> None:
        if decision.save is None:
            return
        self._announce_step(decision.save.step, decision.backup)
        if decision.silent and self._missed != decision.silent:
            self._missed = decision.silent
            self.node.complain(
                f"step {decision.save.step} is restored without an answer of {', '.join(decision.silent)}: "
                "a newer save there would be missed"
            )
        if not self._shards or not self.keeper.safe:
            return
        for shard in self._shards:
            address = shard.tag.address
            if len(self._verifying) >= VERIFYING:
                break
            if self._stands(address) and not self._verified(address) and address not in self._verifying:
                self._verifying.add(address)
                self.node.emit(VerifyShard(address, self.stamp))
        markers = _markers(spec, self._shards)
        whole = all(self._whole(shard) for shard in self._shards)
        if epoch.released and whole and len(markers) == spec.shape.workers and self.keeper.waiting:
            self._run(epoch, decision, markers)

    def _run(self, epoch: EpochRecord, decision: RestoreRecord, markers: tuple[Marker, ...]) -> None:
        self.keeper.run(epoch.number, markers)
        if decision.warning:
            self.node.complain(decision.warning)

    def _announce_step(self, step: int | None, backup: str | None) -> None:
        if self._said != (step, backup):
            self._said = (step, backup)
            self.node.emit(WritePrerestore(step, backup))

    def _stands(self, address: Address) -> bool:
        return address not in self._bad and address not in self._stocktaking and self.node.standing(address)

    def _verified(self, address: Address) -> bool:
        record = self.node.session
        return record is not None and record.stamp == self.stamp and address in record.verified

    def _whole(self, shard: ShardPlan) -> bool:
        """Whether its bytes are verified, and stand under its own name: bytes go when no kept save names them."""
        return self._verified(shard.tag.address) and shard.tag in self.node.held

    def _lacks_name(self, shard: ShardPlan) -> bool:
        """Whether its bytes are verified and stand here, but only under another save's or rank's name."""
        return self._verified(shard.tag.address) and shard.tag not in self.node.held

    def _count(self, address: Address) -> None:
        record = self.node.session
        if record is None or self._verified(address):
            return
        known = record.verified if record.stamp == self.stamp else ()
        self.keeper.save(stamp=self.stamp, verified=(*known, address))

    def _forgive(self, address: Address) -> None:
        """The corrupt bytes have no name any more; what is fetched in their place must not bear their fault."""
        for name, fault in list(self.node.faults.items()):
            if fault.kind == "corrupt" and fault.address == address:
                del self.node.faults[name]

    def _tags(self, address: Address) -> list[Tag]:
        return [tag for tag in self.node.held if tag.address == address]

    def reset(self) -> None:
        """A new session is open: nothing of the last one's restore counts."""
        self.stamp, self._session, self._save, self._shards = ZERO, "", None, ()
        self._said, self._missed = None, ()
        self._fetches.clear()
        self._stocktaking.clear()
        self._unknown = ""


def _empty_markers(spec: SessionSpec) -> tuple[Marker, ...]:
    return tuple(Marker(f"{spec.job}-s0-n{spec.rank}-w{worker}.restore") for worker in range(spec.shape.workers))


def _markers(spec: SessionSpec, shards: tuple[ShardPlan, ...]) -> tuple[Marker, ...]:
    """One a worker, named after the restoring node's rank, whoever saved the shard."""
    named = {
        shard.key.worker: Marker(
            f"{spec.job}-s{shard.tag.save.step}-n{spec.rank}-w{shard.key.worker}.restore", shard.tag.address
        )
        for shard in shards
        if shard.key.rank == spec.rank
    }
    return tuple(named[worker] for worker in sorted(named))
