"""Folders below a root, opened part by part without following links; errors of the file system in our words."""

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from typing import Final

from checkpoint_replicator.errors import NoRoomError, PermanentError, ReplicatorError, UnreachableError

__all__ = ["faults", "open_file", "open_folder"]

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_FORBIDDEN: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_WRONG_KIND: Final = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG})
_NO_LINKS: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


def translated(error: OSError, what: str) -> ReplicatorError:
    """Turn an error of the file system into one of ours, which says whether to try again."""
    text = f"{what}: {error.strerror or error}"
    if error.errno in _FULL:
        return NoRoomError(text)
    if error.errno in _FORBIDDEN:
        return PermanentError(f"{text}; expected to be allowed")
    if error.errno in _WRONG_KIND:
        return PermanentError(f"{text}; expected folders and files, neither links nor one in place of the other")
    if error.errno in _NO_LINKS:
        return PermanentError(f"{text}; expected a file system with hard links")
    return UnreachableError(text)


@contextlib.contextmanager
def faults(what: str) -> Iterator[None]:
    """Raise errors of the file system as ours, except FileNotFoundError, which the caller judges."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise translated(error, what) from error


@contextlib.contextmanager
def open_folder(base: int, parts: Sequence[str], *, create: bool = False) -> Iterator[int]:
    """Open the folder below `base`, made (and synced into its parent) on the way with `create`.

    Raises:
        OSError: as the system says; a link on the way is ELOOP or ENOTDIR.
    """
    folder = os.dup(base)
    try:
        for part in parts:
            child = _enter(folder, part, create=create)
            os.close(folder)
            folder = child
        yield folder
    finally:
        os.close(folder)


def open_file(base: int, parts: Sequence[str]) -> int:
    """Open a file below `base` for reading; the caller closes it.

    Raises:
        OSError: as the system says; a link is ELOOP.
    """
    with open_folder(base, parts[:-1]) as folder:
        # a fifo in place of an object must not block the opening
        return os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)


def _enter(folder: int, part: str, *, create: bool) -> int:
    try:
        return os.open(part, _FOLDER, dir_fd=folder)
    except FileNotFoundError:
        if not create:
            raise
    with contextlib.suppress(FileExistsError):  # somebody else was quicker
        os.mkdir(part, 0o755, dir_fd=folder)
        os.fsync(folder)
    return os.open(part, _FOLDER, dir_fd=folder)
