"""Carries out orders against the backup store, in the thread that asks.

The order of a backup holds at every crash point because each step looks for the one before it: `ORDER.json`, then all
data with each shard's tree behind its files, then all `.meta`, then `MANIFEST.json`. All writes are create-only, and
one that finds its own content is done, so every order may be repeated, by any uploader.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from checkpoint_replicator.backup import (
    ABANDONED,
    MANIFEST_NAME,
    ORDER_NAME,
    Manifest,
    data_name,
    judge,
    meta_name,
    parse_manifest,
    parse_order,
    tree_name,
)
from checkpoint_replicator.blobs import Blob, BlobStore
from checkpoint_replicator.errors import PermanentError, ProtocolError, RefusedError
from checkpoint_replicator.ids import Address, Job
from checkpoint_replicator.messages import BackupEntry, BackupResult
from checkpoint_replicator.quote import quote
from checkpoint_replicator.records import BackupOrder
from checkpoint_replicator.save import Tag, shards_of
from checkpoint_uploader.each import each
from checkpoint_uploader.folder import BackupFolder
from checkpoint_uploader.listing import forced_restore, list_backups, remove_forced
from checkpoint_uploader.progress import Progress
from checkpoint_uploader.sending import Shards, send_shard
from checkpoint_uploader.sweep import abandon, prune

__all__ = ["KINDS", "Archive"]

KINDS: Final = ("list", "reserve", "upload", "seal", "manifest", "abandon", "prune", "unforce")
"""Kinds of orders: what an archive can carry out, and what metrics and logs tell apart."""


class Archive:
    """One store and one ramdisk.

    Args:
        threads: how many calls to the store one order makes at a time.
    """

    def __init__(self, store: BlobStore, shards: Shards, threads: int = 4) -> None:
        self.store = store
        self._shards = shards
        self._threads = threads

    def perform(self, job: Job, order: BackupOrder, progress: Progress) -> BackupResult:
        """Carry out one order.

        Raises:
            ReplicatorError: it could not be done; a TransientError may pass.
            FileNotFoundError: a shard or object is not there.
        """
        if order.kind == "list":
            forced = forced_restore(self.store, job, progress)
            done = self._done(order, entries=list_backups(self.store, job, progress))
            return msgspec.structs.replace(done, forced=forced)
        if order.kind == "unforce":
            remove_forced(self.store, job, order.document, progress)
            return self._done(order)
        folder = BackupFolder(self.store, job, order.name, progress)
        match order.kind:
            case "reserve":
                parse_order(order.document)
                folder.put(ORDER_NAME, order.document.encode())
                return self._done(order)
            case "upload":
                return self._upload(folder, order)
            case "seal":
                return self._seal(folder, order)
            case "manifest":
                return self._complete(folder, job, order)
            case "abandon":
                abandon(folder, self._threads)
                return self._done(order)
            case "prune":
                prune(folder, self._threads)
                return self._done(order)
        raise ProtocolError(f"order of kind {quote(order.kind, 40)!r}, expected {', '.join(KINDS[:-1])} or {KINDS[-1]}")

    def _upload(self, folder: BackupFolder, order: BackupOrder) -> BackupResult:
        _expect_open(folder)
        _expect_save(folder, order.tags)
        stored: dict[str, Blob] = {}
        for address in _addresses(order.tags):
            for blob in send_shard(folder, self._shards, address, self._threads):
                stored[blob.name.removeprefix(folder.prefix)] = blob
        return self._done(order, stored=stored)

    def _seal(self, folder: BackupFolder, order: BackupOrder) -> BackupResult:
        _expect_open(folder)
        _expect_save(folder, order.tags)
        _expect_all(order.tags)
        _expect_data(_addresses(order.tags), folder.objects())
        stored: dict[str, Blob] = {}

        def mark(tag: Tag) -> None:
            stored[meta_name(tag)] = folder.put(meta_name(tag), tag.address.encode())

        each(order.tags, mark, self._threads)
        manifest = folder.manifest()
        if manifest is not None and manifest.state == ABANDONED:  # given up meanwhile: leave no mark
            each((meta_name(tag) for tag in order.tags), folder.delete, self._threads)
            raise RefusedError(f"{folder.name} was abandoned while it was sealed")
        return self._done(order, stored=stored)

    def _complete(self, folder: BackupFolder, job: Job, order: BackupOrder) -> BackupResult:
        manifest = parse_manifest(order.document)
        if manifest.state == ABANDONED:
            raise ProtocolError("the document is that of an abandoned backup, expected a complete one")
        _expect_save(folder, manifest.tags)
        blobs = folder.objects()
        for name in manifest.objects:
            if name in blobs and not blobs[name].crc32c:
                blobs[name] = folder.stat(name) or blobs[name]
        data = order.document.encode()
        blobs[MANIFEST_NAME] = Blob(folder.prefix + MANIFEST_NAME, len(data), "")
        entry = judge(job, order.name, blobs, {MANIFEST_NAME: order.document})
        reason = entry.reason if not entry.whole else _unnamed_data(manifest, blobs)
        if reason:
            raise PermanentError(f"{order.name} is not complete: {reason}")
        folder.put(MANIFEST_NAME, data)
        return self._done(order)

    def _done(
        self, order: BackupOrder, *, stored: Mapping[str, Blob] | None = None, entries: tuple[BackupEntry, ...] = ()
    ) -> BackupResult:
        stored = stored or {}
        return BackupResult(
            id=order.id,
            kind=order.kind,
            name=order.name,
            done=True,
            entries=entries,
            size=sum(blob.size for blob in stored.values()),
            crc32c={name: blob.crc32c for name, blob in stored.items()},
            sizes={name: blob.size for name, blob in stored.items()},
        )


def _addresses(tags: Iterable[Tag]) -> tuple[Address, ...]:
    """Twins share one address, which is stored once."""
    return tuple(dict.fromkeys(tag.address for tag in tags))


def _expect_open(folder: BackupFolder) -> None:
    manifest = folder.manifest()
    if manifest is not None and manifest.state == ABANDONED:
        raise RefusedError(f"{folder.name} was abandoned")


def _expect_save(folder: BackupFolder, tags: Iterable[Tag]) -> None:
    order = folder.order()
    if order is None:
        raise RefusedError(f"{folder.name} is not reserved, expected {ORDER_NAME}")
    for tag in tags:
        if (tag.save, tag.shape) != (order.save, order.shape):
            raise RefusedError(
                f"{folder.name} is reserved for save {order.save} of {order.shape}, "
                f"found {tag.name} of save {tag.save} of {tag.shape}"
            )


def _expect_all(tags: tuple[Tag, ...]) -> None:
    if not tags:
        raise ProtocolError("seal without shards")
    missing = sorted(set(shards_of(tags[0].shape)) - {tag.key for tag in tags})
    if missing:
        raise ProtocolError(f"seal lacks {missing[0]} and {len(missing) - 1} more, expected every shard of the save")


def _expect_data(addresses: Iterable[Address], blobs: Mapping[str, Blob]) -> None:
    """A tree stands only behind all files of its shard."""
    for address in addresses:
        if tree_name(address) not in blobs:
            raise RefusedError(f"{tree_name(address)} is missing, expected all data before any .meta")
        if not address.startswith("D") and data_name(address) not in blobs:
            raise RefusedError(f"{data_name(address)} is missing, expected all data before any .meta")


def _unnamed_data(manifest: Manifest, blobs: Mapping[str, Blob]) -> str:
    """Say which data of the manifest's shards it does not name; empty when all is named."""
    addresses = set(_addresses(manifest.tags))
    for name in blobs:
        address, dot, _ = name.partition("/")[0].partition(".data")
        if dot and address in addresses and name not in manifest.objects:
            return f"the manifest lacks {name}"
    return ""
