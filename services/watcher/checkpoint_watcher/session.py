"""From a `replicator.yaml` to a session, and from a session to its end.

A new yaml: finished saves are claimed, the contract's leftovers removed, `session.json` written, and only then the
session is open. The yaml is consumed when the rendezvous is complete, when the session must fail, or after 60 s. Each
step is taken when the one before it is known to be done, so the order a < b < c < e of the contract holds, and
`session.json` says after any crash what is still to do.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

import msgspec

from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Address, Epoch, SessionId
from checkpoint_replicator.records import EpochRecord
from checkpoint_replicator.session import SessionSpec, SessionState
from checkpoint_replicator.yaml import Accepted, Rejected, read_session
from checkpoint_watcher.effects import CleanUp, PublishMarkers, RemoveYaml, WriteFailed, WriteSession
from checkpoint_watcher.events import YamlRemoved
from checkpoint_watcher.node import Node
from checkpoint_watcher.record import Marker, SessionRecord
from checkpoint_watcher.snapshot import Snapshot, YamlIdentity, YamlSeen

__all__ = ["SessionKeeper"]


MAX_FAILURE: Final = 8000
"""Characters of `replicator.failed`; the text may come out of Redis."""


class Stage(Enum):
    """How far a new yaml's take-up is."""

    CLAIMING = auto()
    CLEANING = auto()
    WRITING = auto()


@dataclass(slots=True)
class TakeUp:
    """A yaml that is becoming a session."""

    seen: YamlSeen
    reading: Accepted | Rejected
    at: float
    stage: Stage = Stage.CLAIMING

    @property
    def spec(self) -> SessionSpec | None:
        """What a good yaml says."""
        return self.reading.spec if isinstance(self.reading, Accepted) else None


@dataclass(slots=True)
class SessionKeeper:
    """Owns `session.json`, `replicator.yaml` and `replicator.failed`; `new_id` gives random ids.

    Attributes:
        taking: a yaml that is becoming a session.
        gathered: an epoch that was read has the open session as a member.
    """

    node: Node
    new_id: Callable[[], str]
    taking: TakeUp | None = None
    gathered: bool = False
    _blank: tuple[YamlIdentity, float] | None = None
    _writing: int = 0
    _removing: bool = False
    _remove_again: float = 0.0
    _telling: bool = False
    _publishing: bool = False

    @property
    def record(self) -> SessionRecord | None:
        """The session as it is, or will be when a write in hand is done."""
        return self.node.session

    @property
    def safe(self) -> bool:
        """Whether `session.json` holds all that is known."""
        return not self._writing

    @property
    def waiting(self) -> bool:
        """Whether the session has a rendezvous or a restore before it."""
        record = self.record
        return record is not None and record.spec is not None and record.state is SessionState.OPEN

    def resume(self, record: SessionRecord | None, now: float) -> None:
        """Go on with what `session.json` says; no clock of it may lie in the future of this boot."""
        if record is not None:
            consumed = None if record.consumed_at is None else min(record.consumed_at, now)
            record = msgspec.structs.replace(record, seen_at=min(record.seen_at, now), consumed_at=consumed)
        self.node.session = record

    def forget(self) -> None:
        """The session went with its job."""
        self.node.session = None
        self.node.yaml_gone = False
        self._removing = self._telling = self._publishing = False

    # ---- the yaml

    def look(self, snapshot: Snapshot, now: float) -> None:
        """See whether there is a new yaml."""
        seen = snapshot.yaml
        if seen is None:
            self._blank = None
            self._unlinked()
            return
        record = self.record
        if record is not None and record.yaml == seen.identity:
            return
        if self.taking is not None and (
            self.taking.seen.identity == seen.identity or self.taking.stage is not Stage.CLAIMING
        ):
            return
        if not seen.finished or self._too_early(seen, now):
            return
        reading = Rejected(seen.obstacle) if seen.obstacle else read_session(seen.text)
        if isinstance(reading, Rejected) and seen.text.strip() and not seen.settled and not seen.obstacle:
            return  # what looks bad may only be unfinished: let it settle first
        self._blank = None
        self.taking = TakeUp(seen, reading, now)
        self.node.announce("yaml_found", reason=reading.reason if isinstance(reading, Rejected) else "")

    def _too_early(self, seen: YamlSeen, now: float) -> bool:
        """Whether an empty yaml may still get its text."""
        if seen.text.strip():
            return False
        if self._blank is None or self._blank[0] != seen.identity:
            self._blank = (seen.identity, now)
        return now < self._blank[1] + self.node.times.empty_yaml

    def _unlinked(self) -> None:
        """Its writer took an unconsumed yaml back: that ends the session."""
        self.taking = self.taking if self.taking and self.taking.stage is not Stage.CLAIMING else None
        record = self.record
        if self.taking is None and self.waiting and record is not None and record.consumed_at is None and self.safe:
            self.node.announce("session_closed", reason="its replicator.yaml was removed by the trainer")
            self.node.yaml_gone = True
            self.save(state=SessionState.CLOSED, consumed_at=record.seen_at, told=True)

    def cleaned(self) -> None:
        """The leftovers are gone."""
        if self.taking is not None and self.taking.stage is Stage.CLEANING:
            self.taking.stage = Stage.WRITING
            self._open(self.taking)

    def _open(self, taking: TakeUp) -> None:
        bad = taking.reading.reason if isinstance(taking.reading, Rejected) else ""
        record = SessionRecord(
            id=SessionId(self.new_id()),
            yaml=taking.seen.identity,
            seen_at=taking.at,
            spec=taking.spec,
            state=SessionState.CLOSED if bad else SessionState.OPEN,
            before=self.node.lineage,
            failure=bad,
            notes=taking.reading.notes if isinstance(taking.reading, Accepted) else (),
        )
        self.node.yaml_gone = self.gathered = False
        # What is corrupt stays so, and loses its names only when it was reported.
        self.node.faults = {name: fault for name, fault in self.node.faults.items() if fault.kind == "corrupt"}
        self._removing = self._telling = self._publishing = False
        if record.spec is not None:
            self.node.jobs.add(record.spec.job)
        self._put(record)
        self.node.announce(
            "session_opened",
            session=record.id,
            job=record.spec.job if record.spec else "",
            reason=bad,
            notes="; ".join(record.notes),
        )

    # ---- session.json

    def save(
        self,
        *,
        state: SessionState | None = None,
        epoch: Epoch | None = None,
        consumed_at: float | None = None,
        failure: str | None = None,
        told: bool | None = None,
        markers: tuple[Marker, ...] | None = None,
        published: bool | None = None,
        handout: bool | None = None,
        stamp: Stamp | None = None,
        verified: tuple[Address, ...] | None = None,
    ) -> None:
        """Change the record, what is None stays."""
        changes = {
            "state": state,
            "epoch": epoch,
            "consumed_at": consumed_at,
            "failure": failure,
            "told": told,
            "markers": markers,
            "published": published,
            "handout": handout,
            "stamp": stamp,
            "verified": verified,
        }
        if self.record is not None:
            self._put(
                msgspec.structs.replace(
                    self.record, **{key: value for key, value in changes.items() if value is not None}
                )
            )

    def _put(self, record: SessionRecord) -> None:
        self.node.session = record
        self._writing += 1
        self.node.emit(WriteSession(record))

    def written(self, record: SessionRecord) -> bool:
        """`session.json` holds this now; True: a new session is open."""
        self._writing -= 1
        if self.taking is not None and self.taking.stage is Stage.WRITING and record.yaml == self.taking.seen.identity:
            self.taking = None
            return True
        return False

    # ---- what is next

    def advance(self, now: float, *, claims_done: bool) -> None:
        """Take the next step that is due."""
        if self._blank is not None and now >= self._blank[1] + self.node.times.empty_yaml and self.node.snapshot:
            self.look(self.node.snapshot, now)
            self._blank = None
        taking = self.taking
        if taking is not None:
            if taking.stage is Stage.CLAIMING and claims_done and self.safe:
                taking.stage = Stage.CLEANING
                self.node.emit(CleanUp())
            return
        record = self.record
        if record is None or not self.safe:
            return
        if record.consumed_at is None:
            if record.failure or now >= record.seen_at + self.node.times.consumed:
                self.consume(now)
            return
        if not self.node.yaml_gone:
            if not self._removing and now >= self._remove_again:
                self._removing = True
                self.node.emit(RemoveYaml(record.id, record.yaml))
            return
        if record.failure and not record.told and not self._telling:
            self._telling = True
            self.node.emit(WriteFailed(record.id, record.failure))
        if record.state is SessionState.RUNNING and not record.published and not self._publishing:
            self._publishing = True
            self.node.emit(PublishMarkers(record.id, record.markers))

    def consume(self, now: float) -> None:
        """Have the yaml removed: the trainer's clock starts."""
        record = self.record
        if record is not None and record.consumed_at is None:
            self.save(consumed_at=now)

    def removed(self, event: YamlRemoved, now: float) -> None:
        """The yaml is gone, or could not be removed."""
        record = self.record
        if record is None or record.id != event.session:
            return
        self._removing = False
        if event.reason:
            self._remove_again = now + self.node.times.scan
            self.node.announce("yaml_not_removed", reason=event.reason)
        else:
            self.node.yaml_gone = True

    def told(self, session: SessionId) -> None:
        """`replicator.failed` stands."""
        if self.record is not None and self.record.id == session:
            self.save(told=True)

    def fail(self, text: str) -> None:
        """End an open session with `replicator.failed`; a running one only gets a line in `replicator.errors`."""
        record = self.record
        if record is None or record.state is SessionState.CLOSED:
            return
        if record.state is SessionState.RUNNING:
            self.node.complain(text)
            return
        self._end(record, text)

    def run(self, epoch: Epoch, markers: tuple[Marker, ...]) -> None:
        """Release: from now on saves belong to this epoch, and the markers are published."""
        self.save(state=SessionState.RUNNING, epoch=epoch, markers=markers)

    def published(self, session: SessionId, *, handout: bool) -> None:
        """The markers stand."""
        if self.record is not None and self.record.id == session:
            self.save(published=True, handout=handout)

    def unpublished(self, session: SessionId, reason: str) -> None:
        """What was to be handed out went away behind our back: the trainer is told, instead of waiting in vain."""
        if self.record is not None and self.record.id == session and not self.record.published:
            self._end(self.record, f"what was to be restored is gone: {reason}")

    def _end(self, record: SessionRecord, text: str) -> None:
        text = text[:MAX_FAILURE]
        self.node.announce("session_failed", session=record.id, reason=text)
        self.save(state=SessionState.CLOSED, failure=text)

    # ---- what the coordinator decided

    def obey(self, epoch: EpochRecord, now: float) -> None:
        """Take what an epoch's record says of this session."""
        record = self.record
        if record is None or record.spec is None or self.taking is not None:
            return
        if record.state is SessionState.OPEN:
            self.gathered = any(member.session == record.id for member in epoch.members)
            if record.id in epoch.refused:
                self.fail(epoch.refused[record.id])
            elif self.gathered:
                self.consume(now)
        elif record.state is SessionState.RUNNING:
            reason = epoch.refused.get(record.id) or _outdone(record, record.spec, epoch)
            if reason:
                self.node.complain(f"this session is superseded: {reason}; its saves are not replicated any more")
                self.node.announce("session_closed", session=record.id, reason=reason)
                self.save(state=SessionState.CLOSED)

    def overdue(self, now: float) -> bool:
        """Whether the session should have had its markers by now."""
        record = self.record
        return (
            self.waiting
            and record is not None
            and record.consumed_at is not None
            and now >= record.consumed_at + self.patience
        )

    @property
    def patience(self) -> float:
        """Seconds from the yaml's consumption to the markers: fewer where the nodes did not even come together."""
        return self.node.times.failed if self.gathered else self.node.times.rendezvous

    def deadline(self) -> float | None:
        """When `advance` or `overdue` have something to do."""
        record = self.record
        moments = [self._blank[1] + self.node.times.empty_yaml] if self._blank is not None else []
        if record is not None and self.taking is None and self.safe:
            if record.consumed_at is None and not record.failure:
                moments.append(record.seen_at + self.node.times.consumed)
            elif not self.node.yaml_gone and not self._removing:
                moments.append(self._remove_again)
            elif self.waiting and record.consumed_at is not None:
                moments.append(record.consumed_at + self.patience)
        return min(moments, default=None)


def _outdone(record: SessionRecord, spec: SessionSpec, epoch: EpochRecord) -> str:
    """Say why a running session has no part in a later epoch; empty where it may have one."""
    if not epoch.released or epoch.number <= record.epoch:
        return ""
    if any(member.session == record.id for member in epoch.members):
        return ""
    holder = next((member for member in epoch.members if member.rank == spec.rank), None)
    if holder is not None:
        return f"rank {spec.rank} is held by {holder.host} since epoch {epoch.number}"
    if epoch.shape is not None and spec.rank >= epoch.shape.nodes:
        return f"epoch {epoch.number} has {epoch.shape.nodes} nodes, this session's rank is {spec.rank}"
    return ""
