"""Hash a shard once: leaves in parallel threads, then the tree; and check a shard on disk against its tree.

Read with `preadv` into one buffer of a leaf a thread; never through a mapping, which would kill the process when the
file is truncated meanwhile. Memory: `threads` MiB, and the list of entries.
"""

import os
import threading
from collections.abc import Callable, Container, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from blake3 import blake3

from checkpoint_replicator import leaf
from checkpoint_replicator.buffer import new_buffer
from checkpoint_replicator.content import Content, Found
from checkpoint_replicator.errors import BusyError, CorruptError, UnsupportedError
from checkpoint_replicator.tree import MAX_ENTRIES, MAX_TREE, ROOT, Directory, File, Tree

__all__ = [
    "Difference",
    "Watch",
    "check_leaves",
    "file_digest",
    "fingerprint",
    "hash_shard",
    "read_leaf",
    "verify_shard",
]

_LEAVES: Final = 16
"""Leaves of one file that a thread takes at a time."""
_SMALL: Final = leaf.LEAF_SIZE // 2
"""Mean bytes a file below which one thread is the fastest: the rest is system calls under the interpreter lock."""


class Watch(msgspec.Struct, frozen=True):
    """How somebody looks on at hashing, or stops it.

    Attributes:
        moved: called from the threads with the number of bytes just hashed.
        stop: set it to end the hashing early with a BusyError.
    """

    moved: Callable[[int], None] | None = None
    stop: threading.Event | None = None


class Difference(msgspec.Struct, frozen=True):
    """How a shard on disk differs from its tree.

    Attributes:
        leaves: numbers of leaves that are not there or have other bytes, ascending.
        missing: paths of the tree that are not there, or not of this kind.
        extra: paths that are there, but not in the tree, and files that are longer than in the tree.
    """

    leaves: tuple[int, ...] = ()
    missing: tuple[bytes, ...] = ()
    extra: tuple[bytes, ...] = ()

    @property
    def is_none(self) -> bool:
        """Whether the bytes, names and sizes are those of the tree."""
        return not (self.leaves or self.missing or self.extra)

    def __str__(self) -> str:
        """Say it for people; empty when there is no difference."""
        parts = []
        if self.leaves:
            parts.append(f"{len(self.leaves)} leaves differ, first {self.leaves[0]}")
        if self.missing:
            parts.append(f"{len(self.missing)} entries are missing, first {self.missing[0]!r}")
        if self.extra:
            parts.append(f"{len(self.extra)} entries are too many or too long, first {self.extra[0]!r}")
        return "; ".join(parts)


class _Piece(NamedTuple):
    """Leaves `first` to `first + leaves - 1` of one file."""

    path: bytes
    size: int
    first: int
    leaves: int


def hash_shard(path: Path, threads: int = 4, watch: Watch | None = None) -> Tree:
    """Read a file or directory once and return its tree.

    Raises:
        CorruptError: it was truncated, grew, or changed in another way meanwhile (kind `mutated`).
        UnsupportedError: it holds links, sockets or devices; or it is too large or too deep for a tree.
        BusyError: it was stopped.
        OSError: nothing stands there, or a part of it may not be read.
    """
    with Content(path) as content:
        before = content.survey()
        if len(before) > MAX_ENTRIES:
            raise UnsupportedError(f"{path}: has {len(before)} entries, expected at most {MAX_ENTRIES}")
        files = [found for found in before if not found.is_directory]
        digests = {found.path: bytearray(leaf.count(found.size) * leaf.DIGEST_SIZE) for found in files}

        def keep(piece: _Piece, index: int, digest: bytes | None) -> None:
            if digest is None:
                raise CorruptError(f"{path}: {piece.path!r} became shorter while it was hashed", kind="mutated")
            start = index * leaf.DIGEST_SIZE
            digests[piece.path][start : start + leaf.DIGEST_SIZE] = digest

        _read(content, [piece for found in files for piece in _cut(found.path, found.size)], threads, watch, keep)
        _compare(content, before, content.survey())
    tree = Tree(
        Directory(found.path) if found.is_directory else File(found.path, found.size, bytes(digests[found.path]))
        for found in before
    )
    if (length := len(tree.encode())) > MAX_TREE:
        raise UnsupportedError(f"{path}: its tree would have {length} bytes, expected at most {MAX_TREE}")
    return tree


def verify_shard(path: Path, tree: Tree, threads: int = 4, watch: Watch | None = None) -> Difference:
    """Read what stands at `path` and say how it differs from the tree; never follows links.

    Raises:
        CorruptError: names changed while they were listed (kind `mutated`).
        BusyError: it was stopped.
    """
    nothing = Difference(leaves=tuple(range(tree.leaves)), missing=tuple(tree.paths) or (ROOT,))
    try:
        content = Content(path)
    except (OSError, UnsupportedError):
        return nothing
    with content:
        if content.is_directory != tree.is_directory:
            return nothing
        found, strange = content.look()
        there = {entry.path: entry for entry in found}
        return Difference(
            leaves=check_leaves(content, tree, range(tree.leaves), threads, watch),
            missing=tuple(entry.path for entry in tree.entries if not _stands(entry, there)),
            extra=tuple(sorted({*(there.keys() - tree.paths), *(strange.keys() - tree.paths), *_longer(tree, there)})),
        )


def check_leaves(
    content: Content, tree: Tree, numbers: Iterable[int], threads: int = 4, watch: Watch | None = None
) -> tuple[int, ...]:
    """Read these leaves of a tree and return the numbers of those that are not there or have other bytes, ascending.

    Raises:
        BusyError: it was stopped.
    """
    bad: list[int] = []

    def check(piece: _Piece, index: int, digest: bytes | None) -> None:
        number = tree.leaves_of(piece.path)[index]
        if digest != tree.leaf(number).digest:
            bad.append(number)

    _read(content, list(_pieces(tree, frozenset(numbers))), threads, watch, check)
    return tuple(sorted(bad))


def file_digest(path: Path) -> str:
    """Return the BLAKE3 of a whole file, by which other replicators name it.

    Raises:
        OSError: nothing stands there, or it may not be read.
    """
    hasher = blake3()
    view = new_buffer(leaf.LEAF_SIZE)
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        while size := os.readv(fd, [view]):
            hasher.update(view[:size])
    finally:
        os.close(fd)
    digest: str = hasher.hexdigest()
    return digest


def read_leaf(fd: int, offset: int, view: memoryview) -> bool:
    """Fill the view from a file; False when the file ends before."""
    done = 0
    while done < len(view):
        got = os.preadv(fd, [view[done:]], offset + done)
        if got == 0:
            return False
        done += got
    return True


def fingerprint(path: Path) -> str:
    """Return a digest of the names, sizes and inodes at a path, without reading a byte of the files.

    Raises:
        FileNotFoundError: nothing stands there.
        UnsupportedError: there are links, sockets or devices.
        CorruptError: it changed meanwhile.
    """
    hasher = blake3()
    with Content(path) as content:
        for found in content.survey():
            hasher.update(b"%d %d %d %b\0" % (found.is_directory, found.inode, found.size, found.path))
    digest: str = hasher.hexdigest(length=16)
    return digest


def _stands(entry: Directory | File, there: dict[bytes, Found]) -> bool:
    found = there.get(entry.path)
    return found is not None and found.is_directory == isinstance(entry, Directory)


def _longer(tree: Tree, there: dict[bytes, Found]) -> Iterator[bytes]:
    for file in tree.files:
        found = there.get(file.path)
        if found is not None and found.size > file.size:
            yield file.path


def _cut(path: bytes, size: int) -> Iterator[_Piece]:
    """Cut a file into the pieces that threads take one after another."""
    leaves = leaf.count(size)
    for first in range(0, leaves, _LEAVES):
        yield _Piece(path, size, first, min(_LEAVES, leaves - first))


def _pieces(tree: Tree, wanted: Container[int]) -> Iterator[_Piece]:
    """Cut as `_cut` does, but keep only wanted leaves."""
    for file in tree.files:
        first = tree.leaves_of(file.path).start
        for piece in _cut(file.path, file.size):
            indexes = range(piece.first, piece.first + piece.leaves)
            for is_wanted, group in groupby(indexes, lambda index: first + index in wanted):  # noqa: B023 - used at once
                if is_wanted:
                    run = list(group)
                    yield piece._replace(first=run[0], leaves=len(run))


def _read(
    content: Content,
    pieces: list[_Piece],
    threads: int,
    watch: Watch | None,
    take: Callable[[_Piece, int, bytes | None], None],
) -> None:
    """Hash every leaf of the pieces and hand the digest to `take`, or None where the bytes are not there.

    `take` is called from the threads, at most once a leaf. The first error ends it all.
    """
    watch = watch or Watch()
    left = iter(pieces)
    lock = threading.Lock()
    failed = threading.Event()

    def work() -> None:
        view = new_buffer(min(leaf.LEAF_SIZE, max((piece.size for piece in pieces), default=0)))
        while not failed.is_set():
            with lock:
                piece = next(left, None)
            if piece is None:
                return
            if watch.stop is not None and watch.stop.is_set():
                raise BusyError(f"{content.path}: hashing was stopped")
            moved = 0
            for index, digest in _digests(content, piece, view):
                take(piece, index, digest)
                moved += leaf.span(piece.size, index)[1]
            if watch.moved is not None:
                watch.moved(moved)

    def work_or_fail() -> None:
        try:
            work()
        except BaseException:
            failed.set()
            raise

    total = sum(min(piece.size, piece.leaves * leaf.LEAF_SIZE) for piece in pieces)
    if pieces and total // len(pieces) < _SMALL:
        threads = 1
    if threads <= 1 or len(pieces) <= 1:
        work()
        return
    with ThreadPoolExecutor(min(threads, len(pieces)), thread_name_prefix="hash") as pool:
        for future in [pool.submit(work_or_fail) for _ in range(min(threads, len(pieces)))]:
            future.result()


def _digests(content: Content, piece: _Piece, view: memoryview) -> Iterator[tuple[int, bytes | None]]:
    indexes = range(piece.first, piece.first + piece.leaves)
    try:
        fd = content.take(piece.path)
    except CorruptError:
        yield from ((index, None) for index in indexes)
        return
    try:
        for index in indexes:
            offset, size = leaf.span(piece.size, index)
            part = view[:size]
            yield index, leaf.digest(part) if read_leaf(fd, offset, part) else None
    finally:
        os.close(fd)


def _compare(content: Content, before: tuple[Found, ...], after: tuple[Found, ...]) -> None:
    """Raise when a shard changed while it was hashed."""
    if before == after and content.is_current:
        return
    changed = sorted({found.path for found in set(before) ^ set(after)})
    names = ", ".join(repr(path) for path in changed[:3]) or "the whole"
    raise CorruptError(f"{content.path}: {names} changed while it was hashed", kind="mutated")
