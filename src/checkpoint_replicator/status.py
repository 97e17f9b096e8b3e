"""Pure: what stands in Redis, as a picture for people and for scripts."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from checkpoint_replicator.errors import ProtocolError
from checkpoint_replicator.ids import Host, Job, Rank
from checkpoint_replicator.records import KeepList, NodeView
from checkpoint_replicator.save import parse_save
from checkpoint_replicator.store import ManifestStore
from checkpoint_replicator.store.fields import from_fields, from_json
from checkpoint_replicator.wishes import Branch, Forced, Forgetting, Hold, WishAnswer

__all__ = [
    "UNREADABLE",
    "BackupStatus",
    "ClusterStatus",
    "JobStatus",
    "MakingStatus",
    "NodeStatus",
    "Protection",
    "SaveStatus",
    "job_status",
    "read_cluster",
    "read_job",
]


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Base: frozen, by keyword; all fields stand in the JSON."""


class Protection(StrEnum):
    """How safe the newest committed save is."""

    NONE = "none"
    """Nothing is committed."""
    UNKNOWN = "unknown"
    """A save was committed, and no node reports any more, or nobody judges: what of it still stands is not known."""
    UNPROTECTED = "unprotected"
    """No copy on another host: the loss of one host loses the save."""
    PROTECTED = "protected"
    """Every shard has the replicas that were asked for."""


UNREADABLE: Final = "unreadable"
"""The state of a job of which a value in Redis does not parse."""
UNJUDGED: Final = "no coordinator judges it"
CLOSED: Final = frozenset({"complete", "abandoned", "superseded"})
"""States of backups that nobody works on."""


class NodeStatus(Status, frozen=True, kw_only=True):
    """One rank: who holds it and how it is.

    Attributes:
        generations: how many saves with the copies for others fit its ramdisk, two being needed; None: not known yet.
        faults: what it could not do as wished.
    """

    rank: int
    host: str = ""
    state: str = "unknown"
    reason: str = ""
    generations: int | None = None
    faults: tuple[str, ...] = ()


class SaveStatus(Status, frozen=True, kw_only=True):
    """One save; `replicas` is the lowest number of copies that a shard has beside the one of its owner.

    The state is that of its key in Redis, or `dropped`: it was committed, and the keep list lets nodes delete it.
    """

    save: str
    state: str
    replicas: int = 0
    reason: str = ""


class BackupStatus(Status, frozen=True, kw_only=True):
    """The newest verified backup; `age` is in seconds by the clock of Redis."""

    name: str
    save: str
    age: float


class MakingStatus(Status, frozen=True, kw_only=True):
    """The backup that is under way: how far it is, and why it does not go on; empty where it does."""

    name: str
    save: str
    state: str
    reason: str = ""


class JobStatus(Status, frozen=True, kw_only=True):
    """One job."""

    job: str
    epoch: int = 0
    state: str = "unknown"
    reason: str = ""
    shape: str = ""
    coordinator: str = ""
    committed: str | None = None
    """The newest committed save, `epoch.step`."""
    protection: Protection = Protection.NONE
    replicas: int = 0
    """Of the newest committed save."""
    restored: str | None = None
    """What the last release restored, `epoch.step`."""
    nodes: tuple[NodeStatus, ...] = ()
    laggards: tuple[str, ...] = ()
    saves: tuple[SaveStatus, ...] = ()
    backup: BackupStatus | None = None
    making: MakingStatus | None = None
    hold: str | None = None
    """Why people hold all deleting; None: they do not."""
    ordered: str = ""
    """What people ordered to be restored next; empty without."""
    line: str = ""
    """What the saves go on from since people ordered it, until that line has a backup; older saves count no more."""
    failure: str = ""
    """Why the last start failed, while trainers are waited for; empty where it did not."""
    forgetting: str | None = None
    """Who is waited for while the hosts remove all that they have of it; None: it is not being forgotten."""
    mixed: bool = False
    """It was written all the time while it was read: the parts may be of different moments."""

    @property
    def committed_step(self) -> int | None:
        """Step of the newest committed save."""
        return None if self.committed is None else int(self.committed.rpartition(".")[2])


class ClusterStatus(Status, frozen=True, kw_only=True):
    """All that one Redis knows."""

    hosts: tuple[str, ...] = ()
    jobs: tuple[JobStatus, ...] = ()


async def read_cluster(store: ManifestStore) -> ClusterStatus:
    """Read everything; a job of which a value does not parse is UNREADABLE, and its reason names the key.

    Raises:
        UnreachableError: Redis does not answer.
        ProtocolError: the names of the jobs or hosts cannot be read; names the key.
    """
    hosts = sorted(await store.hosts())
    jobs: list[JobStatus] = []
    for job in sorted(await store.jobs()):
        try:
            jobs.append(await read_job(store, job))
        except ProtocolError as error:
            jobs.append(JobStatus(job=job, state=UNREADABLE, reason=str(error)))
    return ClusterStatus(hosts=tuple(hosts), jobs=tuple(jobs))


async def read_job(store: ManifestStore, job: Job) -> JobStatus:
    """Read one job.

    Raises:
        UnreachableError: Redis does not answer.
        ProtocolError: a value does not parse; names the key.
    """
    view = await store.view(job, Host(""), None)
    snapshot = await store.snapshot(job, mixed=True)
    try:
        found = job_status(job, view, snapshot.hashes, await store.time())
    except ValueError as error:
        raise ProtocolError(f"job {job}: what stands in Redis does not parse: {error}") from error
    return msgspec.structs.replace(found, mixed=snapshot.mixed)


def job_status(job: Job, view: NodeView, hashes: Mapping[str, Mapping[str, str]], now: float) -> JobStatus:
    """Put the picture of a job together; `now` is the time of Redis in seconds since 1970."""
    epoch = view.epoch
    members = {member.rank: member.host for member in epoch.members} if epoch else {}
    alive = hashes.get("alive", {})
    ranks = range(epoch.shape.nodes) if epoch and epoch.shape else sorted(members)
    nodes = tuple(
        _node(Rank(rank), members.get(Rank(rank)), alive.get(str(rank)), hashes.get(f"node:{rank}", {}))
        for rank in ranks
    )
    if view.lease is None:  # what stands there is of whoever judged last
        nodes = tuple(msgspec.structs.replace(node, state="unknown", reason=UNJUDGED) for node in nodes)
    names = sorted(hashes.get("steps", {}), key=parse_save)
    saves = tuple(_save(name, hashes.get(f"step:{name}", {}), view.keep) for name in names)
    committed = view.keep.upto if view.keep else None
    newest = hashes.get(f"step:{committed}", {})
    return JobStatus(
        job=job,
        epoch=epoch.number if epoch else 0,
        state=str(epoch.state) if epoch else "unknown",
        reason=epoch.reason if epoch else "",
        shape=str(epoch.shape) if epoch and epoch.shape else "",
        coordinator=view.lease.host if view.lease else "",
        committed=None if committed is None else str(committed),
        protection=_protection(newest, nodes) if committed is not None else Protection.NONE,
        replicas=int(newest.get("copies", "0")) if _heard(nodes) else 0,
        restored=str(view.restore.save) if view.restore and view.restore.save else None,
        nodes=nodes,
        laggards=tuple(f"{node.host or f'rank {node.rank}'}: {node.state}" for node in nodes if node.state != "ok"),
        saves=saves,
        backup=_backup(hashes.get("lastbackup", {}), now),
        making=_making(hashes),
        hold=from_fields(Hold, hashes["hold"], "hold").reason if hashes.get("hold") else None,
        ordered=str(from_fields(Forced, hashes["forced"], "forced")) if hashes.get("forced") else "",
        line=str(from_fields(Branch, hashes["branch"], "branch")) if hashes.get("branch") else "",
        failure=epoch.failure if epoch else "",
        forgetting=_forgetting(hashes),
    )


def _heard(nodes: Sequence[NodeStatus]) -> bool:
    """Tell whether any node reports; what Redis says of copies is history else."""
    return any(node.state != "unknown" for node in nodes)


def _protection(fields: Mapping[str, str], nodes: Sequence[NodeStatus]) -> Protection:
    if not _heard(nodes):
        return Protection.UNKNOWN
    return Protection.PROTECTED if fields.get("unprotected") == "no" else Protection.UNPROTECTED


def _backup(fields: Mapping[str, str], now: float) -> BackupStatus | None:
    if not fields:
        return None
    age = now - float(fields.get("verified_at", "0"))
    return BackupStatus(name=fields.get("name", ""), save=fields.get("save", ""), age=round(age, 1))


def _making(hashes: Mapping[str, Mapping[str, str]]) -> MakingStatus | None:
    names = (key.partition(":")[2] for key in hashes if key.startswith("backup:"))
    name = max((name for name in names if hashes[f"backup:{name}"].get("state") not in CLOSED), default=None)
    if name is None:
        return None
    fields = hashes[f"backup:{name}"]
    reason = fields.get("reason", "")
    return MakingStatus(name=name, save=fields.get("save", ""), state=fields.get("state", "unknown"), reason=reason)


def _forgetting(hashes: Mapping[str, Mapping[str, str]]) -> str | None:
    if not hashes.get("forgetting"):
        return None
    text = hashes.get("wishes", {}).get(from_fields(Forgetting, hashes["forgetting"], "forgetting").wish)
    return "" if text is None else from_json(WishAnswer, text, "wishes").reason


def _node(rank: Rank, member: Host | None, alive: str | None, fields: Mapping[str, str]) -> NodeStatus:
    host = member or fields.get("host", "")  # between two epochs nobody is a member: who had the rank last
    if alive is None:
        return NodeStatus(rank=rank, host=host)
    room = from_json(_Room, fields["room"], f"node:{rank} room") if fields.get("room") else _Room()
    faults = from_json(list[str], fields["faults"], f"node:{rank} faults") if fields.get("faults") else []
    found = from_json(_Alive, alive, f"alive {rank}")
    reason = found.reason or ("" if found.state == "ok" else f"last report {found.age:.0f} s ago")
    return NodeStatus(
        rank=rank,
        host=host,
        state=found.state,
        reason=reason,
        generations=room.generations if room.needed else None,
        faults=tuple(faults),
    )


class _Room(msgspec.Struct, frozen=True):
    """What stands in `…:node:<rank>` of its ramdisk."""

    generations: int = 0
    needed: int = 0


class _Alive(msgspec.Struct, frozen=True):
    """What stands in `…:alive` for a rank."""

    state: str
    age: float = 0.0
    reason: str = ""


def _save(name: str, fields: Mapping[str, str], keep: KeepList | None) -> SaveStatus:
    state, reason = fields.get("state", "unknown"), fields.get("reason", "")
    replicas = int(fields.get("copies", "0"))
    save = parse_save(name)
    if state == "committed" and keep and keep.upto and save <= keep.upto and save not in keep.keep:
        state, replicas, reason = "dropped", 0, f"save {keep.upto} is committed"
    return SaveStatus(save=name, state=state, replicas=replicas, reason=reason)
