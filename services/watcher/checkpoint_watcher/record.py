"""What the watcher writes down below `.replicator/`, so that the next life of the process goes on from there."""

import msgspec

from checkpoint_replicator.fence import ZERO, Stamp
from checkpoint_replicator.ids import Address, Epoch, Job, SessionId
from checkpoint_replicator.save import Save, ShardKey
from checkpoint_replicator.session import Session, SessionSpec, SessionState
from checkpoint_replicator.shape import Shape
from checkpoint_watcher.snapshot import YamlIdentity

__all__ = ["Claim", "FenceRecord", "Lineage", "Marker", "SessionRecord"]


class Claim(msgspec.Struct, frozen=True):
    """A finished save taken from the trainer by rename, before it is hashed; one a name and epoch at a time."""

    job: Job
    save: Save
    shape: Shape
    key: ShardKey

    @property
    def name(self) -> str:
        """Where it lies below `.replicator/claims/`: epoch and public name."""
        return f"{self.save.epoch}/{self.job}-s{self.save.step}-n{self.key.rank}-w{self.key.worker}"


class Lineage(msgspec.Struct, frozen=True):
    """Whose saves the directory holds: the last session that was released, and in which epoch."""

    spec: SessionSpec
    epoch: Epoch


class Marker(msgspec.Struct, frozen=True):
    """One `.restore` entry: a link to a hand-out of the address, or an empty file where there is nothing to restore."""

    name: str
    address: Address | None = None


class SessionRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """`session.json`.

    Attributes:
        id: of the session.
        yaml: which `replicator.yaml` it belongs to.
        seen_at: when that was taken up, monotonic seconds.
        spec: None: the yaml was bad.
        state: see SessionState.
        epoch: the one that released it.
        before: what ran before it in this directory.
        consumed_at: when the yaml was (about to be) removed, monotonic seconds.
        failure: the text of its `replicator.failed`.
        told: `replicator.failed` was written.
        markers: what is published; set together with the state `running`.
        published: they were.
        handout: they lead to hard links; False: to the replica itself, where linking is not possible.
        stamp: of the restore decision that `verified` belongs to.
        verified: own shards that were verified under `stamp`.
        notes: of the yaml's parser.
    """

    id: SessionId
    yaml: YamlIdentity
    seen_at: float
    spec: SessionSpec | None
    state: SessionState
    epoch: Epoch = Epoch(0)
    before: Lineage | None = None
    consumed_at: float | None = None
    failure: str = ""
    told: bool = False
    markers: tuple[Marker, ...] = ()
    published: bool = False
    handout: bool = True
    stamp: Stamp = ZERO
    verified: tuple[Address, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def lineage(self) -> Lineage | None:
        """Whose saves stand in the directory now."""
        if self.epoch and self.spec is not None:
            return Lineage(self.spec, self.epoch)
        return self.before

    def session(self, *, gone: bool) -> Session | None:
        """The session as it is reported; `gone` says whether the yaml is known to be."""
        if self.spec is None:
            return None
        return Session(self.id, self.spec, self.state, self.epoch, consumed=gone)


class FenceRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One job's entry of `fence.json`: written before a decision is acted on, never lowered.

    Attributes:
        stamp: the highest that this node obeyed.
        committed: the newest committed save that it knows of.
        keep: the stamp of the last keep list that it obeyed.
        hold: that list lets nothing go: people look.
    """

    stamp: Stamp = ZERO
    committed: Save | None = None
    keep: Stamp = ZERO
    hold: bool = False
