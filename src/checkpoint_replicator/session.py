"""A session: one `replicator.yaml` taken up by one node."""

from enum import StrEnum

import msgspec

from checkpoint_replicator.ids import Amount, Epoch, Job, Number, Rank, SessionId
from checkpoint_replicator.shape import Shape

__all__ = ["Session", "SessionSpec", "SessionState"]


class SessionSpec(msgspec.Struct, frozen=True):
    """What a `replicator.yaml` says, checked.

    Attributes:
        job: `job-name`.
        rank: `node-rank`, below shape.nodes.
        shape: `nodes`, `workers-per-node` (1 when absent), `assume-data-parallelism` (1 when absent), `framework`.
        peer_ranks: `peer-ranks`, without self and duplicates; None when absent.
        peers_per_node: `peers-per-node`; None when absent. `peer_ranks` wins where both stand.
        backup_interval_minutes: None when absent.
        backup_interval_steps: None when absent.
    """

    job: Job
    rank: Rank
    shape: Shape
    peer_ranks: tuple[Rank, ...] | None = None
    peers_per_node: Number | None = None
    backup_interval_minutes: Amount | None = None
    backup_interval_steps: Number | None = None


class SessionState(StrEnum):
    """Where a session stands."""

    OPEN = "open"
    """Taken up; no marker published yet."""
    RUNNING = "running"
    """Markers published."""
    CLOSED = "closed"
    """Got `replicator.failed`, was replaced by a newer yaml, or its rank is out of a later released epoch."""


class Session(msgspec.Struct, frozen=True):
    """One session as a node reports it.

    Attributes:
        id: random.
        spec: the checked yaml.
        state: open, running or closed.
        epoch: the epoch that released it; 0 before.
        consumed: whether the yaml is gone from the directory.
    """

    id: SessionId
    spec: SessionSpec
    state: SessionState
    epoch: Epoch = Epoch(0)
    consumed: bool = False
