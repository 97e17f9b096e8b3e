"""Take a backup away so that at no moment anybody takes what is left for a backup."""

from checkpoint_replicator.backup import ABANDONED, MANIFEST_NAME, ORDER_NAME, abandoned_document
from checkpoint_replicator.errors import RefusedError
from checkpoint_uploader.each import each
from checkpoint_uploader.folder import BackupFolder

__all__ = ["abandon", "prune"]


def abandon(folder: BackupFolder, threads: int) -> None:
    """Close a given-up order for ever, then remove its objects; the two documents stay for a later `prune`.

    Raises:
        RefusedError: it was completed meanwhile.
    """
    try:
        folder.put(MANIFEST_NAME, abandoned_document().encode())
    except RefusedError as error:
        manifest = folder.manifest()
        if manifest is None or manifest.state != ABANDONED:
            raise RefusedError(f"{folder.name} is complete, expected one that was given up") from error
    _remove(folder, threads)


def prune(folder: BackupFolder, threads: int) -> None:
    """Remove a backup that is complete, abandoned or Google's, all of it.

    Raises:
        RefusedError: it is ordered and neither complete nor abandoned.
    """
    names = folder.objects()
    if ORDER_NAME in names and MANIFEST_NAME not in names:
        raise RefusedError(f"{folder.name} is ordered and not finished, expected it to be abandoned first")
    _remove(folder, threads)
    for name in (ORDER_NAME, MANIFEST_NAME):  # a manifest without its objects never counts, and keeps late seals out
        folder.delete(name)


def _remove(folder: BackupFolder, threads: int) -> None:
    """Remove `.meta`, the commit mark of public tools, before any data."""
    names = folder.objects().keys() - {MANIFEST_NAME, ORDER_NAME}
    marks = sorted(name for name in names if name.endswith(".meta") and "/" not in name)
    each(marks, folder.delete, threads)
    each(sorted(names - set(marks)), folder.delete, threads)
