"""What a service stands on: its working files, and in words for people why it cannot work with them."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from checkpoint_replicator.errors import TransientError
from checkpoint_replicator.quote import quote
from checkpoint_replicator.ramdisk.layout import Layout
from checkpoint_replicator.ramdisk.reading import kind_of

__all__ = ["explain", "footing"]

_MISSING: Final = {errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.ELOOP}
_REFUSED: Final = {errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE}


@contextmanager
def footing(root: Path) -> Iterator[None]:
    """Say in our words that the working files of the ramdisk at `root` are gone or may not be written.

    Raises:
        TransientError: they are; names the path, what was expected and what was found.
        OSError: it is something else, and a fault of ours.
    """
    try:
        yield
    except OSError as error:
        reason = explain(root, error)
        if reason is None:
            raise
        raise TransientError(reason) from error


def explain(root: Path, error: OSError) -> str | None:
    """Say what of the ramdisk's working files made a system call fail; None: nothing of them did."""
    if error.errno in _MISSING:
        layout = Layout(root)
        for path in (root, layout.private, *layout.folders):
            if (found := _found(path)) != "a directory":
                return f"{quote(str(path))}: is {found}, expected a directory with the working files of this node"
    if error.errno in _REFUSED:
        named = error.filename if isinstance(error.filename, str | bytes | os.PathLike) else Layout(root).private
        found = os.strerror(error.errno)
        return f"{quote(os.fsdecode(named))}: {found}, expected what uid {os.geteuid()} may read and write"
    return None


def _found(path: Path) -> str:
    try:
        return kind_of(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return "gone"
    except OSError as error:
        return f"out of reach ({error.strerror})"
