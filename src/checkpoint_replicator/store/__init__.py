"""The questions that the services ask Redis, in our words.

`RedisManifestStore` answers them with Redis, `MemoryManifestStore` (tests, simulation) in memory; both pass
`tests/contract/test_store.py`. Every method may raise `UnreachableError`; nothing else from the network comes out.
"""

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from checkpoint_replicator.fence import ZERO, Stamp
from checkpoint_replicator.ids import Host, Incarnation, Job, Rank, StoreId
from checkpoint_replicator.records import Help, HostRecord, Lease, NodeView
from checkpoint_replicator.wishes import WishAnswer

__all__ = ["AddEvent", "Change", "Delete", "Denial", "ManifestStore", "Renewal", "SetHash", "SetScores", "Snapshot"]


class SetHash(msgspec.Struct, frozen=True):
    """Write fields of the hash `ckpt:{<job>}:<key>`; with `replace` the fields not named here go."""

    key: str
    fields: dict[str, str]
    replace: bool = False


class SetScores(msgspec.Struct, frozen=True):
    """Write members of the sorted set `ckpt:{<job>}:<key>`; with `replace` the members not named here go."""

    key: str
    scores: dict[str, float]
    replace: bool = False


class Delete(msgspec.Struct, frozen=True):
    """Remove the key `ckpt:{<job>}:<key>`."""

    key: str


class AddEvent(msgspec.Struct, frozen=True):
    """Append to the capped stream `ckpt:{<job>}:events`."""

    fields: dict[str, str]


Change = SetHash | SetScores | Delete | AddEvent


class Denial(StrEnum):
    """Why a lease was not given."""

    HELD = "held"
    """Another has it."""
    EMPTY = "empty"
    """Redis holds no fence of the job: it lost its data, and who asked patiently leaves it to who remembers them."""


class Renewal(msgspec.Struct, frozen=True):
    """Answer to a renewal: is the lease still ours, in which store life, and how far is the fence."""

    held: bool
    store: StoreId
    fence: Stamp


class Snapshot(msgspec.Struct, frozen=True):
    """All hashes and sorted sets of a job, by key without the prefix; scores as text.

    `spoilt` holds the keys that somebody gave another type, with what is wrong, naming them; they count as not there.
    `mixed` says that the job was written while it was read: its keys may be of different moments.
    """

    store: StoreId
    fence: Stamp
    hashes: dict[str, dict[str, str]]
    spoilt: dict[str, str] = {}
    mixed: bool = False


class ManifestStore(Protocol):
    """Redis as the services see it."""

    async def store_id(self) -> StoreId:
        """Return the random id of this data set, setting it if there is none."""
        ...

    async def time(self) -> float:
        """Return Redis TIME, in seconds since the Unix epoch."""
        ...

    async def jobs(self) -> frozenset[Job]:
        """Return the names in `ckpt:jobs`."""
        ...

    async def add_job(self, job: Job) -> None:
        """Add to `ckpt:jobs` and wake the coordinators; idempotent."""
        ...

    async def remove_job(self, job: Job) -> None:
        """Take out of `ckpt:jobs` a job that was forgotten; idempotent."""
        ...

    async def register(self, record: HostRecord) -> None:
        """Write `ckpt:host:<host>`; idempotent."""
        ...

    async def unregister(self, host: Host, incarnation: Incarnation) -> None:
        """Remove `ckpt:host:<host>` if that incarnation wrote it."""
        ...

    async def hosts(self) -> Mapping[Host, HostRecord]:
        """Return all registered hosts."""
        ...

    async def call_help(self, job: Job, cry: Help, ttl: float) -> None:
        """Write `…:help:<host>` for so many seconds; idempotent."""
        ...

    async def helps(self, job: Job, hosts: Collection[Host]) -> Mapping[Host, Help]:
        """Return which of these hosts call for help."""
        ...

    async def job_added(self, seconds: float) -> bool:
        """Wait until somebody called `add_job`, at most so long; only a wake-up, which may be lost or come in vain."""
        ...

    async def acquire(self, job: Job, lease: Lease, ttl: float, *, patient: bool = False) -> Lease | Denial:
        """Take the lease if nobody has it: returns it with its token, one above the fence's.

        With `patient` it is not taken where there is no fence.

        The fence is raised to that token. Who has it already (the same incarnation) gets it again as it is, so that a
        repeated call is harmless. One that does not parse, does not end, or ends far later than any coordinator asks
        for (the server's clock went back) belongs to nobody.
        """
        ...

    async def renew(self, job: Job, lease: Lease, ttl: float) -> Renewal:
        """Prolong the lease if this incarnation and token hold it."""
        ...

    async def release(self, job: Job, lease: Lease) -> None:
        """Give the lease back if this incarnation and token hold it."""
        ...

    async def apply(
        self, job: Job, lease: Lease, stamp: Stamp, changes: Sequence[Change], after: Stamp = ZERO
    ) -> Stamp | None:
        """Write all changes at once under this stamp and raise the fence to it.

        Refused, changing nothing, unless the lease in Redis names this incarnation and token and the fence is not
        above the stamp nor below `after`, the last stamp that the caller saw there: a Redis that came back with older
        data holds something else than what the changes were made for. Returns None when written, else the stamp seen.

        What is too big for one script is written by several, in the order of the changes and each under the same two
        conditions; so the change that makes the others valid goes last.

        Raises:
            ProtocolError: a key has another type; names the key. The changes before it are written.
        """
        ...

    async def snapshot(self, job: Job, *, mixed: bool = False) -> Snapshot:
        """Return all that is known of a job, of one moment.

        With `mixed` keys of different moments will do where the job is written all the time, for people who look.

        Raises:
            UnreachableError: it was written again and again while it was read.
        """
        ...

    async def view(self, job: Job, host: Host, rank: Rank | None) -> NodeView:
        """Return what a node of this job must obey, read atomically.

        Raises:
            ProtocolError: a value does not parse; names the key.
        """
        ...

    async def wish_answer(self, job: Job, wish: str) -> WishAnswer | None:
        """Return what became of an order of people, by its id; None: nothing yet.

        Raises:
            ProtocolError: the answer does not parse; names the key.
        """
        ...

    async def check(self) -> tuple[str, ...]:
        """Say what is wrong with the server itself (eviction, memory, clients, role), for people; empty: nothing."""
        ...

    async def close(self) -> None:
        """Let go of all connections."""
        ...
