"""What the parts of the watcher's machine know together about their node."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from checkpoint_replicator.ids import Address, Host, Incarnation, Job
from checkpoint_replicator.messages import Fault, Held
from checkpoint_replicator.quote import quote
from checkpoint_replicator.records import Peer
from checkpoint_replicator.save import Save, ShardKey, Tag
from checkpoint_replicator.times import Times
from checkpoint_watcher.effects import Announce, AppendErrors, Effect, Register
from checkpoint_watcher.record import Lineage, SessionRecord
from checkpoint_watcher.snapshot import Snapshot

__all__ = ["Node"]

MAX_FAULTS: Final = 64
MAX_REASON: Final = 1000
"""Characters of a fault's reason; it may repeat what a peer or a file said."""


@dataclass(slots=True)
class Node:
    """Shared state; the parts write to it, the report shows it.

    Attributes:
        effects: what the event in hand has led to so far.
        session: what `session.json` holds, or will as soon as a write in hand is done.
        traced: where there was none at the start: whose saves stand here, as the sidecars tell it.
        yaml_gone: the session's yaml is known to be gone from the directory.
        held: the inventory, all jobs.
        owned: of it, what was saved here.
        fallen: what has a name here and does not stand any more: it counts for nothing, and what is left of it takes
            room until a keep list lets it go.
        jobs: every job of which this node had a session or data.
        transfer: how peers reach this node, as its transfer said last.
        read: jobs of which this life of the process read in Redis what is decided; what is not known may be a hold.
        frozen: jobs of which nothing is deleted, since people look.
        faults: what it could not do as wished; see Fault.
    """

    host: Host
    incarnation: Incarnation
    times: Times
    backup_root: str | None = None
    effects: list[Effect] = field(default_factory=list)
    session: SessionRecord | None = None
    traced: Lineage | None = None
    yaml_gone: bool = False
    snapshot: Snapshot | None = None
    held: dict[Tag, Held] = field(default_factory=dict)
    owned: dict[tuple[Job, Save, ShardKey], Tag] = field(default_factory=dict)
    fallen: set[Tag] = field(default_factory=set)
    jobs: set[Job] = field(default_factory=set)
    transfer: Peer | None = None
    read: set[Job] = field(default_factory=set)
    frozen: set[Job] = field(default_factory=set)
    faults: dict[tuple[str, Save | None, ShardKey | None], Fault] = field(default_factory=dict)

    @property
    def lineage(self) -> Lineage | None:
        """Whose saves stand in the directory now."""
        return self.session.lineage if self.session is not None else self.traced

    @property
    def job(self) -> Job | None:
        """The session's job."""
        return self.session.spec.job if self.session is not None and self.session.spec is not None else None

    def emit(self, *effects: Effect) -> None:
        """Have these done, in order."""
        self.effects.extend(effects)

    def register(self) -> None:
        """Have this host and its jobs written into Redis."""
        effect = Register(tuple(sorted(self.jobs)), self.transfer)
        if effect not in self.effects:
            self.emit(effect)

    def announce(self, event: str, **fields: str | float) -> None:
        """Have something logged and counted."""
        self.emit(Announce(event, dict(fields)))

    def complain(self, line: str) -> None:
        """Tell the trainer something that is wrong but not fatal; only within a session whose yaml is consumed."""
        if self.session is not None and self.session.spec is not None and self.yaml_gone:
            self.emit(AppendErrors(line))

    def blame(self, fault: Fault) -> bool:
        """Keep a fault for the reports; False: it is known."""
        fault = msgspec.structs.replace(fault, reason=quote(fault.reason, MAX_REASON))
        name = (fault.kind, fault.save, fault.key)
        if self.faults.get(name) == fault:
            return False
        if name not in self.faults and len(self.faults) >= MAX_FAULTS:
            del self.faults[next(iter(self.faults))]
        self.faults[name] = fault
        self.announce("fault_found", kind=fault.kind, reason=fault.reason)
        return True

    def hold(self, held: Held) -> None:
        """Add to the inventory, or change it."""
        self.held[held.tag] = held
        self.jobs.add(held.tag.job)
        if held.own:
            self.owned[held.tag.job, held.tag.save, held.tag.key] = held.tag

    def let_go(self, tag: Tag) -> None:
        """Take out of the inventory."""
        self.held.pop(tag, None)
        self.fallen.discard(tag)
        if self.owned.get((tag.job, tag.save, tag.key)) == tag:
            del self.owned[tag.job, tag.save, tag.key]

    def stocktake(self, inventory: Iterable[Held], fallen: Iterable[Tag] = ()) -> None:
        """Replace the inventory; what is known as committed stays so, though its sidecar may not say it yet."""
        self.fallen = set(fallen)
        committed = {tag for tag, held in self.held.items() if held.committed}
        self.held.clear()
        self.owned.clear()
        for held in inventory:
            known = held.committed or held.tag not in committed
            self.hold(held if known else msgspec.structs.replace(held, committed=True))

    def standing(self, address: Address) -> bool:
        """Tell whether the inventory has this content."""
        return any(tag.address == address for tag in self.held)

    def of(self, job: Job) -> list[Held]:
        """The inventory of one job."""
        return [held for tag, held in self.held.items() if tag.job == job]
