"""What the coordinator's machine hears (events, past tense) and what it wants done (effects, imperative)."""

from collections.abc import Mapping

import msgspec

from checkpoint_replicator.fence import ZERO, Stamp
from checkpoint_replicator.ids import Host
from checkpoint_replicator.machine import Ticked
from checkpoint_replicator.messages import Beacon, NodeReport, Party, Wish
from checkpoint_replicator.records import Help, HostRecord, Lease
from checkpoint_replicator.store import AddEvent, Change, Delete, Denial, Renewal, SetHash, Snapshot

__all__ = [
    "AcquireLease",
    "Effect",
    "Event",
    "HostsRead",
    "JobRemoved",
    "LeaseAnswered",
    "LeaseRenewed",
    "Note",
    "Publish",
    "ReadHosts",
    "ReadSnapshot",
    "ReleaseLease",
    "RemoveJob",
    "RenewLease",
    "ReportReceived",
    "SnapshotRead",
    "StopRequested",
    "StoreFailed",
    "WishReceived",
    "Write",
    "Written",
]


class ReportReceived(msgspec.Struct, frozen=True):
    """A watcher said how its node stands."""

    sender: Party
    report: NodeReport


class WishReceived(msgspec.Struct, frozen=True):
    """People ordered something."""

    wish: Wish


class LeaseAnswered(msgspec.Struct, frozen=True):
    """Redis gave the lease, or says why not. `began` is when we asked."""

    began: float
    lease: Lease | Denial


class LeaseRenewed(msgspec.Struct, frozen=True):
    """Redis answered a renewal. `began` is when we asked, `unix` is Redis TIME."""

    began: float
    renewal: Renewal
    unix: float


class SnapshotRead(msgspec.Struct, frozen=True):
    """All that Redis knew of the job when it was asked under this token; `unix` is Redis TIME."""

    token: int
    snapshot: Snapshot
    unix: float


class HostsRead(msgspec.Struct, frozen=True):
    """Which hosts are registered, and which of those that were asked for call for help."""

    hosts: Mapping[Host, HostRecord]
    calls: Mapping[Host, Help] = {}


class Written(msgspec.Struct, frozen=True):
    """Redis took the write (`seen` is None), or refused it and told the stamp that it saw."""

    stamp: Stamp
    seen: Stamp | None


class StoreFailed(msgspec.Struct, frozen=True):
    """Redis did not answer; whether it did what was asked is not known.

    `request` is acquire, renew, snapshot, hosts, write or remove.
    """

    request: str
    reason: str


class JobRemoved(msgspec.Struct, frozen=True):
    """The job is not in `ckpt:jobs` any more."""


class StopRequested(msgspec.Struct, frozen=True):
    """The process is to end."""


Event = (
    ReportReceived
    | WishReceived
    | LeaseAnswered
    | LeaseRenewed
    | SnapshotRead
    | HostsRead
    | Written
    | StoreFailed
    | JobRemoved
    | StopRequested
    | Ticked
)


class AcquireLease(msgspec.Struct, frozen=True):
    """Try to take the lease, `patient` or not; answer LeaseAnswered or StoreFailed(acquire)."""

    began: float
    patient: bool = False


class RenewLease(msgspec.Struct, frozen=True):
    """Prolong the lease; answer LeaseRenewed or StoreFailed(renew)."""

    began: float
    lease: Lease


class ReleaseLease(msgspec.Struct, frozen=True):
    """Give the lease back; no answer is waited for."""

    lease: Lease


class ReadSnapshot(msgspec.Struct, frozen=True):
    """Answer SnapshotRead with this token, or StoreFailed(snapshot)."""

    token: int


class ReadHosts(msgspec.Struct, frozen=True):
    """Answer HostsRead or StoreFailed(hosts); `silent` are the hosts that may call for help."""

    silent: tuple[Host, ...] = ()


class Write(msgspec.Struct, frozen=True):
    """Write all changes under lease and stamp; answer Written or StoreFailed(write).

    `after` is the last stamp seen in Redis: differences fit only what was there then.
    """

    lease: Lease
    stamp: Stamp
    changes: tuple[Change, ...]
    after: Stamp = ZERO

    @property
    def kinds(self) -> tuple[str, ...]:
        """Which keys it writes, and into which state: `keep`, `step=committed`."""
        return tuple(dict.fromkeys(map(_kind, self.changes)))


class RemoveJob(msgspec.Struct, frozen=True):
    """Take the job out of `ckpt:jobs`; answer JobRemoved or StoreFailed(remove)."""


class Publish(msgspec.Struct, frozen=True):
    """Send the beacon to all nodes of the job."""

    beacon: Beacon


class Note(msgspec.Struct, frozen=True):
    """Log an event with its fields."""

    event: str
    fields: Mapping[str, str]


def _kind(change: Change) -> str:
    if isinstance(change, AddEvent):
        return "event"
    key = change.key.partition(":")[0]
    state = change.fields.get("state") if isinstance(change, SetHash) else None
    return f"{key}={state}" if state else f"-{key}" if isinstance(change, Delete) else key


Effect = AcquireLease | RenewLease | ReleaseLease | ReadSnapshot | ReadHosts | Write | RemoveJob | Publish | Note
