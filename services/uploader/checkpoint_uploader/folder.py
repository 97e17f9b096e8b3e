"""One backup's directory in the store: its objects by their names below it, and its documents."""

import io
from typing import Final

from checkpoint_replicator.backup import (
    MANIFEST_NAME,
    MAX_DOCUMENT,
    ORDER_NAME,
    Manifest,
    OrderDocument,
    is_backup_name,
    parse_manifest,
    parse_order,
)
from checkpoint_replicator.blobs import Blob, BlobStore
from checkpoint_replicator.blobs.crc32c import crc32c_of
from checkpoint_replicator.errors import ProtocolError
from checkpoint_replicator.ids import Job, job_fault
from checkpoint_uploader.progress import Progress

__all__ = ["BackupFolder", "read_text"]

_MAX_META: Final = 4096
"""Longest `.meta` in bytes that is read; an address has 64 or 65."""


class BackupFolder:
    """`<root>/<job>/<name>/`.

    Raises:
        ProtocolError: these are no names of a job and a backup.
    """

    def __init__(self, store: BlobStore, job: Job, name: str, progress: Progress) -> None:
        if fault := job_fault(job):
            raise ProtocolError(f"job {fault}")
        if not is_backup_name(name):
            raise ProtocolError(f"backup name is {name!r}, expected YYYY-MM-DD_HH-MM")
        self.store = store
        self.progress = progress
        self.name = name
        self.prefix = f"{job}/{name}/"

    def objects(self) -> dict[str, Blob]:
        """List everything, by name below the directory."""
        found: dict[str, Blob] = {}
        for blob in self.store.list(self.prefix):
            self.progress.moved()
            found[blob.name.removeprefix(self.prefix)] = blob
        return found

    def stat(self, name: str) -> Blob | None:
        """Return size and sum of one object."""
        self.progress.moved()
        return self.store.stat(self.prefix + name)

    def put(self, name: str, data: bytes) -> Blob:
        """Create a small object; one with the same content is there already after a repeated order.

        Raises:
            RefusedError: it is there with other content.
        """
        self.progress.moved()
        blob = Blob(self.prefix + name, len(data), crc32c_of(data))
        self.store.put_new(blob.name, io.BytesIO(data), blob.size, blob.crc32c)
        return blob

    def delete(self, name: str) -> None:
        """Remove an object."""
        self.progress.moved()
        self.store.delete(self.prefix + name)

    def order(self) -> OrderDocument | None:
        """Return who reserved the name, or None."""
        text = self._document(ORDER_NAME)
        return None if text is None else parse_order(text)

    def manifest(self) -> Manifest | None:
        """Return the manifest, or None."""
        text = self._document(MANIFEST_NAME)
        return None if text is None else parse_manifest(text)

    def _document(self, name: str) -> str | None:
        blob = self.stat(name)
        return None if blob is None else read_text(self.store, blob)


def read_text(store: BlobStore, blob: Blob) -> str:
    """Read a document whole; one that is longer than it can be reads as empty."""
    limit = _MAX_META if blob.name.endswith(".meta") else MAX_DOCUMENT
    if blob.size > limit:
        return ""
    return store.read(blob.name, 0, blob.size).decode(errors="replace")
