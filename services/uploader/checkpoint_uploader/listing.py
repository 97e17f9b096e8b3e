"""What backups a job has, newest first, each with the verdict whether it counts."""

from collections.abc import Iterator
from itertools import groupby
from typing import Final

from checkpoint_replicator.backup import (
    ABANDONED,
    FORCED_NAME,
    MANIFEST_NAME,
    documents_to_read,
    is_backup_name,
    judge,
)
from checkpoint_replicator.blobs import Blob, BlobStore
from checkpoint_replicator.errors import ProtocolError
from checkpoint_replicator.ids import Job, job_fault
from checkpoint_replicator.messages import BackupEntry
from checkpoint_uploader.folder import BackupFolder, read_text
from checkpoint_uploader.progress import Progress

__all__ = ["MOST_ENTRIES", "MOST_TAGS", "forced_restore", "list_backups", "remove_forced"]

MOST_ENTRIES: Final = 4096
"""Backups in one answer, the newest."""

MOST_TAGS: Final = 20_000
"""Shards in one answer, which is repeated in every report of the node; older backups come without theirs."""

MOST_FORCED: Final = 4096
"""Bytes of `restore.version` that are read; a backup's name has 16."""


def list_backups(store: BlobStore, job: Job, progress: Progress, most_tags: int = MOST_TAGS) -> tuple[BackupEntry, ...]:
    """List and judge a job's backups, newest name first.

    Raises:
        UnreachableError: the store did not answer to the end; then there is no list at all.
    """
    if fault := job_fault(job):
        raise ProtocolError(f"job {fault}")
    found = [_judge(store, job, name, blobs, progress) for name, blobs in _groups(store, job, progress)]
    entries: list[BackupEntry] = []
    room = most_tags
    for entry in list(reversed(found))[:MOST_ENTRIES]:
        if entry.tags and len(entry.tags) > room and entries:
            room = 0
            reason = f"not looked at: newer backups have {most_tags} shards already"
            entries.append(BackupEntry(name=entry.name, whole=False, reason=reason))
            continue
        room -= len(entry.tags)
        entries.append(entry)
    return tuple(entries)


def forced_restore(store: BlobStore, job: Job, progress: Progress) -> str:
    """Return what stands in `restore.version`, empty where there is none.

    Raises:
        UnreachableError: the store did not answer.
    """
    blob = _forced(store, job, progress)
    if blob is None:
        return ""
    try:
        return store.read(blob.name, 0, min(blob.size, MOST_FORCED)).decode(errors="replace")
    except FileNotFoundError:
        return ""  # removed meanwhile


def remove_forced(store: BlobStore, job: Job, document: str, progress: Progress) -> None:
    """Remove `restore.version` where it still says this: what people wrote since stays."""
    blob = _forced(store, job, progress)
    if blob is not None and forced_restore(store, job, progress).strip() == document.strip():
        store.delete(blob.name)


def _forced(store: BlobStore, job: Job, progress: Progress) -> Blob | None:
    if fault := job_fault(job):
        raise ProtocolError(f"job {fault}")
    progress.moved()
    return store.stat(f"{job}/{FORCED_NAME}")


def _groups(store: BlobStore, job: Job, progress: Progress) -> Iterator[tuple[str, dict[str, Blob]]]:
    """Yield each backup's objects by their names below its directory; in the order of names they stand together."""
    prefix = f"{job}/"

    def name_of(blob: Blob) -> str:
        progress.moved()
        name, slash, _ = blob.name.removeprefix(prefix).partition("/")
        return name if slash else ""

    for name, blobs in groupby(store.list(prefix), key=name_of):
        if is_backup_name(name):
            yield name, {blob.name.removeprefix(f"{prefix}{name}/"): blob for blob in blobs}


def _judge(store: BlobStore, job: Job, name: str, blobs: dict[str, Blob], progress: Progress) -> BackupEntry:
    entry = _look(store, job, name, blobs, progress)
    if entry.whole or MANIFEST_NAME not in blobs or entry.reason == ABANDONED:
        return entry
    # The manifest may have come while the listing was under way, after objects before it in the order of names.
    blobs = BackupFolder(store, job, name, progress).objects()
    return _look(store, job, name, blobs, progress)


def _look(store: BlobStore, job: Job, name: str, blobs: dict[str, Blob], progress: Progress) -> BackupEntry:
    documents: dict[str, str] = {}
    for wanted in documents_to_read(blobs):
        progress.moved()
        try:
            documents[wanted] = read_text(store, blobs[wanted])
        except FileNotFoundError:
            return BackupEntry(name=name, whole=False, reason=f"{wanted} went while it was read")
    return judge(job, name, blobs, documents)
