"""A little room kept back, so that a full ramdisk can still be emptied.

Before anything is dropped the node writes down what it obeys, and before that a save must be named and committed. On a
ramdisk that the trainer has filled to the last page none of these small files could be written, and nothing would ever
go. The spare is given up then, and taken again when there is room.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from checkpoint_replicator.errors import NoRoomError

__all__ = ["Spare"]

T = TypeVar("T")
_FILES: Final = 8
"""Files, so that it is inodes too."""
_LEAST: Final = 8 << 10
_SHARE: Final = 1 << 16
"""Each file is this part of the ramdisk: a tree has about a 16,000th of its shard's bytes."""
_MARGIN: Final = 4
"""It is taken again only when this many times its size is free."""


class Spare:
    """Files of zeros in a directory of their own.

    Args:
        folder: must exist.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def urgently(self, act: Callable[[], T]) -> T:
        """Do something idempotent; when there is no room for it, give the spare up and do it again.

        Raises:
            NoRoomError: the spare was not enough, or gone already.
        """
        try:
            return act()
        except NoRoomError:
            if not self.release():
                raise
            return act()

    @property
    def is_full(self) -> bool:
        """Whether nothing of it is missing."""
        return all(path.exists() for path in self._paths())

    def release(self) -> bool:
        """Give it up; False when there was none."""
        released = False
        for path in self._paths():
            with suppress(FileNotFoundError):
                path.unlink()
                released = True
        return released

    def refill(self, size: int, free: int) -> None:
        """Take what is missing of it, if there is room.

        Args:
            size: of the ramdisk in bytes.
            free: bytes of it that are free.
        """
        each = max(_LEAST, size // _SHARE)
        if free < _MARGIN * _FILES * each:
            return
        for path in self._paths():
            if not path.exists():
                try:
                    _reserve(path, each)
                except OSError:  # no room after all
                    path.unlink(missing_ok=True)
                    return

    def _paths(self) -> list[Path]:
        return [self.folder / str(number) for number in range(_FILES)]


def _reserve(path: Path, size: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        os.posix_fallocate(fd, 0, size)
    finally:
        os.close(fd)
