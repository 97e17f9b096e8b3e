"""`checkpoint-replicator status`: what the cluster knows of its jobs, out of Redis."""

import asyncio
from typing import Final

import click
import msgspec

from checkpoint_replicator.cli.option import redis_option
from checkpoint_replicator.errors import ProtocolError
from checkpoint_replicator.quote import quote
from checkpoint_replicator.status import (
    UNREADABLE,
    BackupStatus,
    ClusterStatus,
    JobStatus,
    MakingStatus,
    read_cluster,
)
from checkpoint_replicator.store.redis import RedisManifestStore

__all__ = ["MIXED", "age_text", "status", "status_text"]

MIXED: Final = "while it was written; what is shown may be of different moments"
UNITS: Final = (("d", 86400.0), ("h", 3600.0), ("min", 60.0))


@click.command(short_help="Show jobs, nodes, saves and backups.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for scripts.")
@redis_option
def status(redis: str, as_json: bool) -> None:
    """Show jobs, epochs, nodes, saves, replicas, protection and the age of the backup.

    Exit codes: 0 shown, 75 Redis does not answer, 76 a value in Redis does not parse; the other jobs are shown.
    """
    found = asyncio.run(_read(redis))
    click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() if as_json else status_text(found))
    unreadable = [job.reason for job in found.jobs if job.state == UNREADABLE]
    if unreadable:
        raise ProtocolError("; ".join(unreadable))


async def _read(redis: str) -> ClusterStatus:
    store = RedisManifestStore(redis)
    try:
        return await read_cluster(store)
    finally:
        await store.close()


def status_text(status: ClusterStatus) -> str:
    """Write the picture for people."""
    if not status.jobs:
        return f"no job yet; hosts: {', '.join(status.hosts) or 'none'}"
    return "\n\n".join(_job_text(job) for job in status.jobs)


def age_text(seconds: float) -> str:
    """Say an age in its largest whole unit."""
    for name, unit in UNITS:
        if seconds >= unit:
            return f"{seconds // unit:.0f} {name}"
    return f"{max(seconds, 0):.0f} s"


def _job_text(job: JobStatus) -> str:
    if job.state == UNREADABLE:
        return f"job {job.job}: {UNREADABLE}"  # the error that follows names the key
    lines = [f"job {job.job}: epoch {job.epoch}, {job.state}" + (f" ({job.reason})" if job.reason else "")]
    facts = {
        "shape": job.shape or "not known yet",
        "coordinator": job.coordinator or "none",
        "committed": _committed_text(job),
        "restored": job.restored or "nothing",
        "backup": _backup_text(job.backup),
        "laggards": ", ".join(job.laggards) or "none",
    }
    if job.making is not None:
        facts["under way"] = _making_text(job.making)
    if job.failure:
        facts["last start"] = f"failed: {job.failure}"
    if job.line:
        facts["line"] = f"from {job.line} on, as ordered; no backup of it is verified yet"
    if job.ordered:
        facts["ordered"] = f"{job.ordered}, at the next start"
    if job.hold is not None:
        facts["hold"] = "nothing is deleted or backed up" + (f" ({quote(job.hold)})" if job.hold else "")
    if job.forgetting is not None:
        facts["forgetting"] = "the hosts remove all that they have" + (f": {job.forgetting}" if job.forgetting else "")
    if job.mixed:
        facts["read"] = MIXED
    lines += [f"  {name:<12}{text}" for name, text in facts.items()]
    fits = [f"{node.host} fits {node.generations}" for node in job.nodes if node.generations is not None]
    if fits:
        lines.append(f"  {'room':<12}{', '.join(fits)} saves with their copies; 2 are needed, 3 comfortable")
    lines += [f"  {'fault':<12}{node.host}: {fault}" for node in job.nodes for fault in node.faults]
    nodes: list[tuple[str, ...]] = [(str(node.rank), node.host or "-", node.state, node.reason) for node in job.nodes]
    saves: list[tuple[str, ...]] = [(save.save, save.state, str(save.replicas), save.reason) for save in job.saves]
    return "\n".join(
        [
            *lines,
            *_table(("rank", "host", "state", "reason"), nodes),
            *_table(("save", "state", "replicas", "reason"), saves),
        ]
    )


def _committed_text(job: JobStatus) -> str:
    if job.committed is None:
        return "nothing"
    return f"{job.committed}, {job.protection}, replicas: {job.replicas}"


def _backup_text(backup: BackupStatus | None) -> str:
    return "none" if backup is None else f"{backup.name}, save {backup.save}, {age_text(backup.age)} old"


def _making_text(making: MakingStatus) -> str:
    reason = f": {making.reason}" if making.reason else ""
    return f"backup {making.name} of save {making.save} is {making.state}{reason}"


def _table(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in [headings, *rows]) for column in range(len(headings))]
    lines = [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in [headings, *rows]
    ]
    return ["", *(f"  {line}".rstrip() for line in lines)] if rows else []
