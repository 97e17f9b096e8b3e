"""A shard's files on disk, reached below one directory descriptor and never through a link."""

import errno
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, Self

from checkpoint_replicator.errors import CorruptError, UnsupportedError
from checkpoint_replicator.tree import MAX_DEPTH, ROOT

__all__ = ["Content", "Found"]

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PLAIN: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe must not block the opener
_CHANGED: Final = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENXIO}
"""What opening a file of a tree answers when something else, or nothing, stands in its place."""
_PARENTS: Final = 16
"""Directory descriptors kept open; neighbours in a tree mostly share their directory."""
_NAMED: Final = 5
"""Unsupported entries that an error names."""


class Found(NamedTuple):
    """One entry on disk: `path` is relative to the root, `mtime` in ns; two surveys of untouched files are equal."""

    path: bytes
    is_directory: bool
    size: int
    inode: int
    mtime: int


class Content:
    """A file or directory held open; closes with the `with` block. May be used by several threads.

    Raises:
        FileNotFoundError: nothing stands there.
        UnsupportedError: it is neither a file nor a directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = _open_root(path)
        self._status = os.fstat(self._fd)
        self._parents: OrderedDict[bytes, int] = OrderedDict()
        self._lock = threading.Lock()
        if not (stat.S_ISDIR(self._status.st_mode) or stat.S_ISREG(self._status.st_mode)):
            os.close(self._fd)
            raise UnsupportedError(f"{path}: is {_kind(self._status.st_mode)}, expected a file or a directory")

    @property
    def is_directory(self) -> bool:
        """Whether the root is a directory."""
        return stat.S_ISDIR(self._status.st_mode)

    def close(self) -> None:
        """Close every descriptor; a second call does nothing."""
        with self._lock:
            for fd in self._parents.values():
                os.close(fd)
            self._parents.clear()
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def open(self, path: bytes, flags: int = os.O_RDONLY) -> Iterator[int]:
        """Lend a descriptor of the regular file at a tree's path.

        Raises:
            CorruptError: there is no regular file at the path (any more).
            OSError: it may not be opened, or this process has too many files open.
        """
        fd = self.take(path, flags)
        try:
            yield fd
        finally:
            os.close(fd)

    def take(self, path: bytes, flags: int = os.O_RDONLY) -> int:
        """Return a descriptor as `open` does; the caller closes it."""
        try:
            fd = self._take(path, flags | _PLAIN)
        except OSError as error:
            if error.errno not in _CHANGED:
                raise
            raise CorruptError(f"{self.path}: cannot open {path!r}: {error.strerror}", kind="mutated") from error
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            os.close(fd)
            raise CorruptError(f"{self.path}: {path!r} is {_kind(mode)}, expected a file", kind="mutated")
        return fd

    def _take(self, path: bytes, flags: int) -> int:
        if path == ROOT and not self.is_directory:
            if flags & os.O_ACCMODE == os.O_RDONLY:
                return os.dup(self._fd)
            fd = os.open(self.path, flags)
            if not os.path.samestat(os.fstat(fd), self._status):
                os.close(fd)
                raise CorruptError(f"{self.path}: was replaced while it was in use", kind="mutated")
            return fd
        folder, _, name = path.rpartition(b"/")
        with self._lock:  # held over the open, or another thread might close the folder in between
            return os.open(name, flags, dir_fd=self._parent(folder))

    def _parent(self, folder: bytes) -> int:
        if not folder:
            return self._fd
        if folder in self._parents:
            self._parents.move_to_end(folder)
            return self._parents[folder]
        above, _, name = folder.rpartition(b"/")
        fd = self._parents[folder] = os.open(name, _FOLDER, dir_fd=self._parent(above))
        self._parents.move_to_end(folder)
        if len(self._parents) > _PARENTS + MAX_DEPTH:
            os.close(self._parents.popitem(last=False)[1])
        return fd

    def survey(self) -> tuple[Found, ...]:
        """List every directory and file below the root, sorted by path bytes, or the one file as `.`.

        Raises:
            UnsupportedError: there are links, sockets, devices or too deep directories; names them.
            CorruptError: an entry vanished meanwhile (`mutated`).
        """
        found, strange = self.look()
        if strange:
            names = ", ".join(f"{kind} {os.fsdecode(path)!r}" for path, kind in sorted(strange.items())[:_NAMED])
            more = f" and {len(strange) - _NAMED} more" if len(strange) > _NAMED else ""
            raise UnsupportedError(f"{self.path}: holds {names}{more}, expected files and directories")
        return found

    def look(self) -> tuple[tuple[Found, ...], dict[bytes, str]]:
        """List as `survey` does, and beside it what has no place in a tree, each with its kind.

        Raises:
            CorruptError: an entry vanished meanwhile (`mutated`).
        """
        if not self.is_directory:
            status = os.fstat(self._fd)
            return (_found(ROOT, status),), {}
        found: list[Found] = []
        strange: dict[bytes, str] = {}
        try:
            self._walk(self._fd, b"", 1, found, strange)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise CorruptError(
                f"{self.path}: {error.filename!r} changed while it was listed", kind="mutated"
            ) from error
        found.sort()
        return tuple(found), strange

    @property
    def is_current(self) -> bool:
        """Whether the path still names what is held open."""
        try:
            return os.path.samestat(self.path.lstat(), self._status)
        except OSError:
            return False

    def _walk(self, folder: int, prefix: bytes, depth: int, found: list[Found], strange: dict[bytes, str]) -> None:
        below: list[tuple[str, bytes]] = []
        with os.scandir(folder) as entries:
            for entry in entries:
                path = prefix + os.fsencode(entry.name)
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    if depth >= MAX_DEPTH:
                        strange[path] = f"a directory deeper than {MAX_DEPTH}"
                        continue
                    below.append((entry.name, path))
                elif not stat.S_ISREG(status.st_mode):
                    strange[path] = _kind(status.st_mode)
                    continue
                found.append(_found(path, status))
        for name, path in below:
            fd = os.open(name, _FOLDER, dir_fd=folder)
            try:
                self._walk(fd, path + b"/", depth + 1, found, strange)
            finally:
                os.close(fd)


def _found(path: bytes, status: os.stat_result) -> Found:
    if stat.S_ISDIR(status.st_mode):  # its size and time say nothing about the content
        return Found(path, is_directory=True, size=0, inode=status.st_ino, mtime=0)
    return Found(path, is_directory=False, size=status.st_size, inode=status.st_ino, mtime=status.st_mtime_ns)


def _open_root(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | _PLAIN)
    except FileNotFoundError:
        raise
    except OSError as error:
        try:
            kind = _kind(path.lstat().st_mode)
        except OSError:
            raise error from None
        if kind in {"a file", "a directory"}:
            raise
        raise UnsupportedError(f"{path}: is {kind}, expected a file or a directory") from error


def _kind(mode: int) -> str:
    for test, word in (
        (stat.S_ISREG, "a file"),
        (stat.S_ISDIR, "a directory"),
        (stat.S_ISLNK, "a link"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISBLK, "a device"),
        (stat.S_ISCHR, "a device"),
    ):
        if test(mode):
            return word
    return "an unknown kind of entry"
