"""What a report may say: the border where bytes that parsed become facts that can be counted on; pure.

A report that lies about its own nature is refused whole; a part that is out of place is struck and told about. Nothing
behind this border meets an impossible shape, a foreign job or a number that does not fit.
"""

from typing import Final

import msgspec

from checkpoint_replicator.fence import ZERO, Stamp
from checkpoint_replicator.ids import Job, is_address
from checkpoint_replicator.messages import (
    BackupEntry,
    BackupResult,
    Fault,
    Held,
    NodeReport,
    Party,
    RestoreProgress,
    Service,
    ServiceHealth,
)
from checkpoint_replicator.quote import quote
from checkpoint_replicator.records import Peer
from checkpoint_replicator.save import Save, ShardKey, Tag
from checkpoint_replicator.session import Session
from checkpoint_replicator.shape import Shape

__all__ = ["Checked", "check", "shape_fault"]

MOST_NODES: Final = 1 << 16
MOST_WORKERS: Final = 1 << 10
MOST_SHARDS: Final = 1 << 20
MOST_HELD: Final = 1 << 16
MOST_TEXT: Final = 255
MOST_REASON: Final = 1000
MOST_FAULTS: Final = 256
MOST_RESULTS: Final = 256
MOST_SERVICES: Final = 16
MOST_ENDPOINTS: Final = 64
MOST_SAVES: Final = 1 << 14
"""Saves that a node has under way, or wants a backup of."""
MOST_STRUCK: Final = 16
"""Struck parts that are named."""
MOST_TOKEN: Final = 1 << 48
"""Numbers in stamps stay below; Redis scripts count in doubles."""
MOST_NUMBER: Final = 1 << 53


class Checked(msgspec.Struct, frozen=True):
    """A report that may be used, and what was struck from it."""

    report: NodeReport
    struck: tuple[str, ...] = ()


def check(job: Job, sender: Party, report: NodeReport) -> Checked | str:
    """Return the report without its impossible parts, or why it is refused whole."""
    fault = _sender_fault(sender) or _report_fault(job, report)
    if fault:
        return fault
    struck: list[str] = []
    held: list[Held] = []
    for one in report.held:
        wrong = _tag_fault(job, one.tag)
        if wrong:
            struck.append(f"held {one.tag.name[:MOST_TEXT]}: {wrong}")
        else:
            held.append(one)
    saving = tuple(one for one in report.saving if _save_fits(one.save) and _key_fits(one.key))
    requested = tuple(save for save in report.backup_requested if _save_fits(save))
    newest = report.newest_committed
    if newest is not None and not _save_fits(newest):
        struck.append(f"newest committed save {newest}")
        newest = None
    if len(saving) < len(report.saving):
        struck.append("saving: impossible numbers")
    keep, hold = report.keep, report.hold
    if keep > report.obeyed:
        struck.append(f"keep list {keep}: above the stamp obeyed")
        keep, hold = ZERO, False
    transfer = report.transfer
    if transfer is not None and not _peer_fits(transfer):
        struck.append("transfer: impossible endpoints")
        transfer = None
    clean = msgspec.structs.replace(
        report,
        held=tuple(held),
        saving=saving,
        backup_requested=requested,
        newest_committed=newest,
        keep=keep,
        hold=hold,
        backup=tuple(_result(job, result) for result in report.backup[:MOST_RESULTS]),
        faults=tuple(_fault(fault) for fault in report.faults[:MOST_FAULTS]),
        services=tuple(_health(health) for health in report.services[:MOST_SERVICES]),
        restore=_progress(report.restore),
        transfer=transfer,
    )
    for word, before, after in (
        ("results", report.backup, clean.backup),
        ("faults", report.faults, clean.faults),
        ("services", report.services, clean.services),
    ):
        if len(after) < len(before):
            struck.append(f"{len(before) - len(after)} of {len(before)} {word}")
    return Checked(clean, tuple(quote(text, MOST_TEXT) for text in struck[:MOST_STRUCK]))


def _result(job: Job, result: BackupResult) -> BackupResult:
    return msgspec.structs.replace(
        result, reason=quote(result.reason), entries=tuple(_entry(job, entry) for entry in result.entries)
    )


def _fault(fault: Fault) -> Fault:
    return msgspec.structs.replace(fault, kind=quote(fault.kind, MOST_TEXT), reason=quote(fault.reason, MOST_REASON))


def _health(health: ServiceHealth) -> ServiceHealth:
    return msgspec.structs.replace(health, reason=quote(health.reason)) if health.reason else health


def _progress(progress: RestoreProgress | None) -> RestoreProgress | None:
    if progress is None or not progress.failed:
        return progress
    failed = tuple(_fault(fault) for fault in progress.failed[:MOST_WORKERS])
    return msgspec.structs.replace(progress, failed=failed)


def _peer_fits(peer: Peer) -> bool:
    texts = (peer.host, peer.incarnation, peer.control, *peer.leaves)
    return len(peer.leaves) <= MOST_ENDPOINTS and all(0 < len(text) <= MOST_TEXT for text in texts)


def _entry(job: Job, entry: BackupEntry) -> BackupEntry:
    if any(_tag_fault(job, tag) for tag in entry.tags):
        return msgspec.structs.replace(entry, whole=False, tags=(), reason="its tags do not parse", stamp=ZERO)
    # Who may write to the bucket must not bring the numbers of the job to their end.
    within = _stamp_fits(entry.stamp) and entry.stamp.token < MOST_TOKEN >> 8 and entry.stamp.number < MOST_NUMBER >> 8
    return entry if within else msgspec.structs.replace(entry, stamp=ZERO)


def shape_fault(shape: Shape) -> str:
    """Say why no job can have this shape; empty when one can."""
    if not (1 <= shape.nodes <= MOST_NODES and 1 <= shape.workers <= MOST_WORKERS):
        return f"impossible shape: {shape.nodes} nodes x {shape.workers} workers"
    if shape.nodes * shape.workers > MOST_SHARDS:
        return f"more than {MOST_SHARDS} shards: {shape.nodes} nodes x {shape.workers} workers"
    if not 1 <= shape.d <= shape.nodes or shape.nodes % shape.d:
        return f"data parallelism {shape.d} does not divide {shape.nodes} nodes"
    if len(shape.framework) > MOST_TEXT:
        return "a framework's name of more than 255 characters"
    return ""


def _sender_fault(sender: Party) -> str:
    if sender.service is not Service.WATCHER:
        return f"a NodeReport from a {sender.service}, expected from a watcher"
    if not sender.incarnation or len(sender.incarnation) > MOST_TEXT:
        return "a sender without an incarnation"
    if not sender.host or len(sender.host) > MOST_TEXT:
        return "a sender without a host"
    return ""


def _report_fault(job: Job, report: NodeReport) -> str:
    if not 0 <= report.version < MOST_NUMBER:
        return f"version {report.version}"
    if not _stamp_fits(report.obeyed):
        return f"impossible stamp {report.obeyed}"
    if report.restore is not None and not _stamp_fits(report.restore.stamp):
        return f"impossible stamp {report.restore.stamp}"
    if len(report.held) > MOST_HELD:
        return f"{len(report.held)} shards, expected at most {MOST_HELD}"
    if len(report.saving) + len(report.backup_requested) > MOST_SAVES:
        return f"{len(report.saving) + len(report.backup_requested)} saves under way, expected at most {MOST_SAVES}"
    if report.backup_root is not None and len(report.backup_root) > MOST_REASON:
        return f"a backup root of {len(report.backup_root)} characters, expected at most {MOST_REASON}"
    return "" if report.session is None else _session_fault(job, report.session)


def _session_fault(job: Job, session: Session) -> str:
    spec = session.spec
    if spec.job != job:
        return f"a session of job {spec.job!r} in a report for {job!r}"
    if not session.id or len(session.id) > MOST_TEXT:
        return "a session without an id"
    if not 0 <= session.epoch < MOST_NUMBER or abs(spec.rank) >= MOST_NUMBER:
        return "a session with impossible numbers"
    return shape_fault(spec.shape)


def _tag_fault(job: Job, tag: Tag) -> str:
    if tag.job != job:
        return f"is of job {tag.job[:MOST_TEXT]!r}"
    if not is_address(tag.address):
        return "has no address"
    if not (_save_fits(tag.save) and 0 <= tag.size < MOST_NUMBER):
        return "has impossible numbers"
    fault = shape_fault(tag.shape)
    if fault:
        return fault
    if not (0 <= tag.key.rank < tag.shape.nodes and 0 <= tag.key.worker < tag.shape.workers):
        return f"shard {tag.key} is not of {tag.shape}"
    return ""


def _save_fits(save: Save) -> bool:
    return 0 <= save.epoch < MOST_NUMBER and 0 <= save.step < MOST_NUMBER


def _key_fits(key: ShardKey) -> bool:
    return 0 <= key.rank < MOST_NODES and 0 <= key.worker < MOST_WORKERS


def _stamp_fits(stamp: Stamp) -> bool:
    return 0 <= stamp.token < MOST_TOKEN and 0 <= stamp.epoch < MOST_NUMBER and 0 <= stamp.number < MOST_NUMBER
