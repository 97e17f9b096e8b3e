"""Files that are being written: locked for as long as their writer lives, swept when it died."""

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from typing import Final

from checkpoint_replicator.blobs.folder import open_folder
from checkpoint_replicator.blobs.name import OWN_FOLDER

__all__ = ["Partial", "new_partial", "sweep"]

_FOLDER: Final = (OWN_FOLDER, "partial")


class Partial:
    """An open, unnamed-to-be file: `folder` and `name` say where it lies, `file` is its descriptor."""

    def __init__(self, folder: int, name: str, file: int) -> None:
        self.folder = folder
        self.name = name
        self.file = file


@contextlib.contextmanager
def new_partial(base: int) -> Iterator[Partial]:
    """Make an empty file aside; whatever happens, its name is gone afterwards.

    Raises:
        OSError: as the system says.
    """
    with open_folder(base, _FOLDER, create=True) as folder:
        while (partial := _create(folder)) is None:
            continue  # a sweeper was between our creating and our locking
        try:
            yield partial
        finally:
            os.close(partial.file)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(partial.name, dir_fd=folder)


def sweep(base: int) -> int:
    """Remove the files of writers that died; returns how many.

    A living writer, in this process or another, holds the lock of its file. Where the file system has no locks
    nothing is swept.
    """
    try:
        with open_folder(base, _FOLDER) as folder:
            with os.scandir(folder) as entries:
                names = [entry.name for entry in entries]
            swept = sum(_sweep(folder, name) for name in names)
    except FileNotFoundError:  # nothing was ever written
        return 0
    return swept


def _create(folder: int) -> Partial | None:
    name = secrets.token_hex(16)
    file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=folder)
    with contextlib.suppress(OSError):  # no locks here: nobody will sweep
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if os.fstat(file).st_nlink == 0:
        os.close(file)
        return None
    return Partial(folder, name, file)


def _sweep(folder: int, name: str) -> int:
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
    except OSError:
        return 0
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(name, dir_fd=folder)
    except OSError:
        return 0
    finally:
        os.close(file)
    return 1
