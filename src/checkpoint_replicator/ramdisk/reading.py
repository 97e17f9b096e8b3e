"""Read small files that anybody may have put there: never wait, never follow a link, never read more than expected."""

import os
import stat
from pathlib import Path
from typing import Final

from checkpoint_replicator.errors import ProtocolError
from checkpoint_replicator.quote import quote

__all__ = ["ADDRESS_LIMIT", "DOCUMENT_LIMIT", "kind_of", "open_plain", "read_small"]

DOCUMENT_LIMIT: Final = 4 << 20
"""Bytes of a document of ours; a session with a thousand workers has some 300 KiB."""
ADDRESS_LIMIT: Final = 4 << 10
"""Bytes of a file that holds an address or a name."""

_KINDS: Final = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISLNK, "a link"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
)


def kind_of(mode: int) -> str:
    """Name what stands there, for people."""
    return next((word for test, word in _KINDS if test(mode)), "a file" if stat.S_ISREG(mode) else "a device")


def open_plain(path: Path) -> int:
    """Return a descriptor of a regular file, for reading; the caller closes it.

    Raises:
        FileNotFoundError: nothing stands there.
        ProtocolError: something else than a file stands there, or it may not be read; names it.
    """
    shown = quote(str(path))
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ProtocolError(f"{shown}: cannot be read: {error.strerror}") from error
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        raise ProtocolError(f"{shown}: is {kind_of(mode)}, expected a file")
    return fd


def read_small(path: Path, limit: int = DOCUMENT_LIMIT) -> bytes:
    """Return what stands in a file.

    Raises:
        FileNotFoundError: nothing stands there.
        ProtocolError: it is no file, may not be read, or has more bytes than the limit; names it.
    """
    fd = open_plain(path)
    try:
        with open(fd, "rb", closefd=False) as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise ProtocolError(f"{quote(str(path))}: cannot be read: {error.strerror}") from error
    finally:
        os.close(fd)
    if len(data) > limit:
        raise ProtocolError(f"{quote(str(path))}: has more than {limit} bytes")
    return data
