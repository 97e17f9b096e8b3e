"""When a save is finished, by framework.

Events only wake the scan; what counts is what the scan sees. A name that was closed after writing, or renamed into
place, is finished by the contract (trainers write aside and rename). What the scan found without such an event must
prove it: nobody has it open for writing, it did not change for a while, and a directory of torch's distributed
checkpoint holds every file that its `.metadata` mentions, one of Orbax its `commit_success.txt`. An empty save is never
finished.
"""

import fcntl
import os
import pickletools
import stat
from collections.abc import Iterator
from enum import StrEnum
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from checkpoint_replicator.errors import ProtocolError
from checkpoint_replicator.ramdisk.reading import read_small
from checkpoint_replicator.tree import MAX_DEPTH

__all__ = [
    "QUIET",
    "STEADY",
    "Arrival",
    "Content",
    "Openness",
    "Verdict",
    "judge",
    "look_into",
    "mentioned_files",
    "openness",
]

STEADY: Final = 1.0
"""Seconds between two scans that must see the same."""
QUIET: Final = 10.0
"""Seconds without change that stand in for a completeness mark."""
MAX_ENTRIES: Final = 100_000
"""Files of one save that a scan looks at; more and the save is only ever judged by its event or by its quiet."""
COMMITTED: Final = "commit_success.txt"
IN_WORK: Final = ".orbax-checkpoint-tmp"
"""Part of the names of what Orbax has not finished."""
MAX_METADATA: Final = 64 * 1024 * 1024
"""Largest `.metadata` that is read, in bytes."""


class Openness(StrEnum):
    """Whether somebody has a file open for writing."""

    CLOSED = "closed"
    WRITTEN = "written"
    UNKNOWN = "unknown"
    """The kernel does not tell (foreign owner, or a file system without leases)."""


class Arrival(StrEnum):
    """The event that brought a name, as far as inotify told."""

    NONE = "none"
    CLOSED = "closed"
    MOVED = "moved"


class Content(msgspec.Struct, frozen=True):
    """What a save consists of now: (relative path, inode, size, mtime, ctime) of every file."""

    files: tuple[tuple[str, int, int, int, int], ...]
    directory: bool
    size: int
    cut: bool = False
    """There is more: beyond MAX_ENTRIES, or where we may not look."""


class Verdict(StrEnum):
    """What is to be done with a save."""

    READY = "ready"
    SETTLING = "settling"
    """Quiet so far: asked again soon."""
    UNFINISHED = "unfinished"
    """Empty, or being written."""


def judge(
    content: Content, *, arrival: Arrival, steady: float, scans: int, probed: Openness, complete: bool | None
) -> Verdict:
    """Tell whether a save is finished.

    Args:
        content: what was found.
        arrival: the event that brought the name.
        steady: for how many seconds the content did not change.
        scans: how many scans, a second apart, saw this content.
        probed: whether a file of it is open for writing.
        complete: True: a completeness mark says that all is there; False: it says that something is missing, or the
            directory has no mark; None: a file, which needs none.
    """
    if not content.files or (not content.directory and content.size == 0):
        empty_file = bool(content.files) and probed is not Openness.WRITTEN and steady >= QUIET
        return Verdict.READY if empty_file else Verdict.UNFINISHED
    if probed is Openness.WRITTEN:
        return Verdict.UNFINISHED
    if arrival is Arrival.MOVED or (arrival is Arrival.CLOSED and not content.directory):
        return Verdict.READY
    needed = 3 if probed is Openness.UNKNOWN else 2
    if steady < STEADY or scans < needed:
        return Verdict.SETTLING
    if complete is False and steady < QUIET:
        return Verdict.SETTLING
    return Verdict.READY


def look_into(path: Path) -> Content | None:
    """Read names, sizes and times of a save; None: it is gone.

    A directory that may not be looked into, or lies too deep, stands for what is below it: its own times show a part
    of what happens there, and hashing says of it by name why it is unsupported. How long a path is does not matter.
    """
    files: list[tuple[str, int, int, int, int]] = []
    cut = False
    try:
        top = path.stat(follow_symlinks=False)
        if not stat.S_ISDIR(top.st_mode):
            return Content(((".", top.st_ino, top.st_size, top.st_mtime_ns, top.st_ctime_ns),), False, top.st_size)
        for name, facts in _walk(path, top):
            if len(files) == MAX_ENTRIES:
                cut = True
                break
            passed = name.endswith("/")
            cut |= passed
            size = 0 if passed else facts.st_size
            files.append((name, facts.st_ino, size, facts.st_mtime_ns, facts.st_ctime_ns))
    except (FileNotFoundError, NotADirectoryError):
        return None
    files.sort()
    return Content(tuple(files), True, sum(size for _, _, size, _, _ in files), cut=cut)


def _walk(
    path: Path | str, facts: os.stat_result, prefix: str = "", depth: int = 0, above: int | None = None
) -> Iterator[tuple[str, os.stat_result]]:
    """Find every file below a directory; the name of a directory that is passed over ends with a slash."""
    passed = prefix or "./", facts
    if depth > MAX_DEPTH:
        yield passed
        return
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError:
        yield passed
        return
    try:
        try:
            with os.scandir(folder) as entries:
                listed = [(entry.name, entry.stat(follow_symlinks=False)) for entry in islice(entries, MAX_ENTRIES + 1)]
        except FileNotFoundError:
            raise
        except OSError:  # it may be listed, and not be searched
            yield passed
            return
        for name, below in listed:
            if stat.S_ISDIR(below.st_mode):
                yield from _walk(name, below, f"{prefix}{name}/", depth + 1, folder)
            else:
                yield prefix + name, below
    finally:
        os.close(folder)


def is_complete(path: Path, content: Content) -> bool | None:
    """Ask the completeness mark of the framework; see `judge`.

    Orbax writes `commit_success.txt` last; torch's distributed checkpoint names its files in `.metadata`.
    """
    if not content.directory:
        return None
    names = {name for name, *_ in content.files}
    if COMMITTED in names:
        return not any(IN_WORK in name for name in names)
    if ".metadata" not in names or content.cut:
        return False
    try:
        mentioned = mentioned_files(read_small(path / ".metadata", MAX_METADATA))
    except (OSError, ValueError, ProtocolError):
        return False
    return mentioned <= names


def mentioned_files(pickle: bytes) -> frozenset[str]:
    """Read the names of the `*.distcp` files that a `.metadata` mentions.

    The pickle is only taken apart into opcodes; nothing of it is ever executed.

    Raises:
        ValueError: it is no whole pickle.
    """
    names = set()
    stopped = False
    try:
        for opcode, argument, _ in pickletools.genops(BytesIO(pickle)):
            if isinstance(argument, str) and argument.endswith(".distcp"):
                names.add(argument)
            stopped = opcode.name == "STOP"
    except Exception as error:
        # genops leaks whatever its readers meet in torn bytes
        raise ValueError(f"expected a pickle, found {error}") from error
    if not stopped:
        raise ValueError("expected a pickle, found no end")
    return frozenset(names)


def openness(path: Path, content: Content) -> Openness:
    """Ask the kernel whether somebody has a file of the save open for writing.

    A read lease is granted only where nobody has. It is given back at once; the process must ignore SIGIO, which
    the kernel sends to the holder when a writer comes in between.
    """
    answer = Openness.CLOSED
    for name, *_ in content.files:
        match _file_openness(path if name == "." else path / name):
            case Openness.WRITTEN:
                return Openness.WRITTEN
            case Openness.UNKNOWN:
                answer = Openness.UNKNOWN
            case Openness.CLOSED:
                pass
    return answer


def _file_openness(path: Path) -> Openness:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return Openness.UNKNOWN
    try:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return Openness.WRITTEN
    except OSError:
        return Openness.UNKNOWN
    finally:
        os.close(file)
    return Openness.CLOSED
