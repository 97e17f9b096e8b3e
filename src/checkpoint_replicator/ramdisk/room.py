"""Room on the ramdisk: what there is, and whether a peer's copy may have some of it."""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from checkpoint_replicator.errors import NoRoomError
from checkpoint_replicator.messages import Room
from checkpoint_replicator.ramdisk.layout import MAX_NUMBER

__all__ = ["admit", "inodes_for", "measure", "usage"]

_OVERHEAD: Final = 8
"""Inodes of our own beside a copy's entries: partial, tree, bitmap, sidecar, its directory, `.meta`, two in passing."""
UNLIMITED: Final = 1 << 40
"""Free inodes where the file system does not count them."""


def measure(root: Path, quota: int | None = None) -> Room:
    """Return size and room of the ramdisk; with a quota (bytes) what stands below the root is counted.

    Counting walks the whole directory: a few milliseconds for thousands of files. Call it from a thread.
    """
    status = os.statvfs(root)
    size, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
    if quota is not None:
        quota = int(quota)  # a `Size` of the configuration is for people; a message takes plain numbers
        size, free = min(size, quota), max(0, min(free, quota - usage(root)))
    inodes, inodes_free = (status.f_files, status.f_favail) if status.f_files else (UNLIMITED, UNLIMITED)
    most = MAX_NUMBER  # some file systems say "endless" with all bits set
    return Room(
        size=min(size, most), free=min(free, most), inodes=min(inodes, most), inodes_free=min(inodes_free, most)
    )


def admit(room: Room, size: int, inodes: int, *, reserve: int, reserve_inodes: int) -> None:
    """Permit a copy only beside what is reserved for the trainer's next save (law 8).

    Args:
        room: as measured.
        size: bytes of the copy.
        inodes: files and directories of the copy.
        reserve: bytes that must stay free.
        reserve_inodes: inodes that must stay free.

    Raises:
        NoRoomError: it does not fit; says needed, free and reserved.
    """
    if size + reserve > room.free:
        raise NoRoomError(
            f"a copy of {size} bytes does not fit: {room.free} of {room.size} are free, {reserve} reserved",
            lacking=size + reserve - room.free,
        )
    if inodes + reserve_inodes > room.inodes_free:
        raise NoRoomError(
            f"a copy of {inodes} inodes does not fit: {room.inodes_free} of {room.inodes} are free, "
            f"{reserve_inodes} reserved",
            lacking=size,
        )


def inodes_for(entries: int) -> int:
    """Return the inodes that a copy with this many tree entries takes in all."""
    return entries + 1 + _OVERHEAD


def usage(root: Path) -> int:
    """Return the bytes that stand below a directory; a file with several names counts once."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for status in _walk(os.fspath(root)):
        if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
        # Blocks come late on some file systems, and a sparse file may fill up.
        total += max(status.st_size, status.st_blocks * 512)
    return total


def _walk(root: str) -> Iterator[os.stat_result]:
    left = [root]
    while left:
        with suppress(OSError), os.scandir(left.pop()) as entries:  # gone meanwhile
            for entry in entries:
                with suppress(OSError):
                    yield entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
