"""Locks between processes: `flock`, which the kernel gives back when a process dies."""

import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Self

from checkpoint_replicator.errors import BusyError, ProtocolError
from checkpoint_replicator.ramdisk.reading import open_plain

__all__ = ["Hold", "alone", "exclusive", "shared"]

_PATIENCE: Final = 10.0
_PAUSE: Final = 0.002
_FLAGS: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def exclusive(path: Path, patience: float = _PATIENCE) -> Iterator[None]:
    """Hold a lock for a short section; the file is made where it is missing.

    Raises:
        BusyError: it was not free for `patience` seconds.
    """
    deadline = time.monotonic() + patience
    while True:
        fd = _open(path)
        try:
            while not _take(fd, fcntl.LOCK_EX):
                if time.monotonic() >= deadline:
                    raise BusyError(f"{path}: was not free for {patience:g} s")
                time.sleep(_PAUSE)
            if _is_current(fd, path):
                yield
                return
        finally:
            os.close(fd)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold a shard's tree exclusively, without waiting; a missing tree, or what is no file, has no readers.

    Raises:
        BusyError: somebody reads the shard.
    """
    try:
        fd = open_plain(path)
    except (FileNotFoundError, ProtocolError):
        yield
        return
    try:
        if not _take(fd, fcntl.LOCK_EX):
            raise BusyError(f"{path}: the shard is being read")
        yield
    finally:
        os.close(fd)


def shared(path: Path) -> int:
    """Return a descriptor of a shard's tree that holds it for reading until it is closed.

    Raises:
        FileNotFoundError: there is no such tree (any more).
        ProtocolError: something else than a file stands there.
        BusyError: it is just being removed.
    """
    fd = open_plain(path)
    if not _take(fd, fcntl.LOCK_SH):
        os.close(fd)
        raise BusyError(f"{path}: the shard is being removed")
    if not _is_current(fd, path):
        os.close(fd)
        raise FileNotFoundError(f"{path}: was removed")
    return fd


class Hold:
    """A lock held for the life of a process; the file says who holds it.

    Raises:
        BusyError: another process has it; names it.
    """

    def __init__(self, path: Path, owner: str) -> None:
        self.path = path
        self._fd = _open(path)
        if not _take(self._fd, fcntl.LOCK_EX):
            holder = os.pread(self._fd, 200, 0).decode(errors="replace").strip() or "a process that gave no name"
            os.close(self._fd)
            raise BusyError(f"{path}: is held by {holder}")
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{owner}\n".encode(), 0)

    def release(self) -> None:
        """Give it back; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _open(path: Path) -> int:
    """Open a lock, made where it is missing; what is no file in its place is set aside."""
    for _ in range(2):
        with suppress(OSError):
            fd = os.open(path, _FLAGS | os.O_NONBLOCK | os.O_CREAT, 0o644)
            if stat.S_ISREG(os.fstat(fd).st_mode):
                return fd
            os.close(fd)
        with suppress(OSError):
            if not stat.S_ISREG(path.lstat().st_mode):
                path.rename(path.with_name(f"{path.name}.unreadable"))
    return os.open(path, _FLAGS | os.O_CREAT, 0o644)


def _take(fd: int, kind: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
        return True
    return False


def _is_current(fd: int, path: Path) -> bool:
    """Tell whether the path still names the locked file; it may have been removed before the lock was ours."""
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False
