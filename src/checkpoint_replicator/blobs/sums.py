"""The sums of a folder's objects, kept beside them so that a listing need not read the objects.

A kept sum is a note, not a proof: it counts only for the very file (inode, size, time) that it was made for. It says
what was written; whether the disk still gives those bytes is for whoever reads them to verify.
"""

import contextlib
import os
from collections.abc import Sequence
from typing import Final

from checkpoint_replicator.blobs.crc32c import Crc32c
from checkpoint_replicator.blobs.folder import open_file, open_folder
from checkpoint_replicator.blobs.name import OWN_FOLDER
from checkpoint_replicator.blobs.partial import new_partial

__all__ = ["compute_sum", "forget_sum", "keep_sum", "kept_sum"]

_FOLDER: Final = (OWN_FOLDER, "sums")
_PIECE: Final = 1 << 20
_LIMIT: Final = 256


def kept_sum(base: int, parts: Sequence[str], about: os.stat_result) -> str | None:
    """Return the sum kept for this very file, or None."""
    try:
        file = open_file(base, (*_FOLDER, *parts))
        try:
            text = os.read(file, _LIMIT).decode()
        finally:
            os.close(file)
    except (OSError, ValueError):
        return None
    before, _, crc32c = text.strip().rpartition(" ")
    return crc32c if before == _fingerprint(about) else None


def keep_sum(base: int, parts: Sequence[str], about: os.stat_result, crc32c: str) -> None:
    """Keep the sum; where that is not possible it will be computed when asked."""
    with (
        contextlib.suppress(OSError),
        open_folder(base, (*_FOLDER, *parts[:-1]), create=True) as folder,
        new_partial(base) as partial,
    ):
        os.write(partial.file, f"{_fingerprint(about)} {crc32c}\n".encode())
        os.rename(partial.name, parts[-1], src_dir_fd=partial.folder, dst_dir_fd=folder)


def forget_sum(base: int, parts: Sequence[str]) -> None:
    """Remove the note on an object that goes, and the folders that it leaves empty."""
    for depth in range(len(parts), 0, -1):
        try:
            with open_folder(base, (*_FOLDER, *parts[: depth - 1])) as folder:
                if depth == len(parts):
                    os.unlink(parts[-1], dir_fd=folder)
                else:
                    os.rmdir(parts[depth - 1], dir_fd=folder)
        except OSError:
            return


def compute_sum(file: int) -> str:
    """Read the whole open file and return its sum."""
    total = Crc32c()
    offset = 0
    while data := os.pread(file, _PIECE, offset):
        total.update(data)
        offset += len(data)
    return total.text


def _fingerprint(about: os.stat_result) -> str:
    return f"{about.st_ino} {about.st_size} {about.st_mtime_ns}"
