"""A partial: a shard on its way here, with a bitmap of the leaves that were verified and written.

`partial/<address>/` holds `data`, `bitmap`, `tree` (written last: it makes the partial valid) and perhaps `seed`, a
copy that was found corrupt, whose good leaves need not travel again. A partial outlives processes, sessions and epochs.
"""

import errno
import os
import threading
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Final, Self

from checkpoint_replicator import failpoint, leaf
from checkpoint_replicator.buffer import new_buffer
from checkpoint_replicator.content import Content
from checkpoint_replicator.errors import CorruptError, ProtocolError, UnsupportedError
from checkpoint_replicator.hashing import check_leaves
from checkpoint_replicator.ids import Address
from checkpoint_replicator.messages import Run
from checkpoint_replicator.ramdisk.files import Files, no_room
from checkpoint_replicator.ramdisk.shard import pread, read_tree
from checkpoint_replicator.tree import ROOT, File, Tree

__all__ = ["Partial"]

_NEW: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Partial:
    """Takes leaves in any order and from several threads; only the transfer of this node writes partials."""

    def __init__(self, folder: Path, tree: Tree, content: Content, bitmap: int) -> None:
        self.folder = folder
        self.tree = tree
        self._content = content
        self._bitmap = bitmap
        self._lock = threading.Lock()
        self._bits = bytearray(_bytes(tree))
        self._have = 0

    @classmethod
    def create(cls, folder: Path, tree: Tree, files: Files) -> "Partial":
        """Make a new partial, with room for every byte of it; an old one in its place is lost, a seed stays.

        Raises:
            NoRoomError: the ramdisk has not enough bytes or inodes; everything made so far is removed again.
        """
        files.make_folder(folder)
        _clear(folder, files)
        data = folder / "data"
        try:
            _allocate(data, tree, files)
            files.write(folder / "bitmap", bytes(_bytes(tree)))
            aside = folder / "tree.tmp"
            files.write(aside, tree.encode())
            files.rename(aside, folder / "tree")
        except Exception:
            _clear(folder, files)
            if not (folder / "seed").exists():
                files.remove(folder)
            raise
        return cls(folder, tree, Content(data), _open_bitmap(folder))

    @classmethod
    def open(cls, folder: Path, threads: int = 4) -> "Partial | None":
        """Go on with a partial; None where there is none that can be gone on with (then `create` is right).

        The leaves that the bitmap names are hashed again: what an earlier process wrote is a source like any other.
        """
        try:
            tree = read_tree(folder / "tree", Address(folder.name))
            content = Content(folder / "data")
        except (OSError, ProtocolError, UnsupportedError):
            return None
        try:
            bitmap = _open_bitmap(folder)
        except OSError:
            content.close()
            return None
        partial = cls(folder, tree, content, bitmap)
        if not _is_laid_out(content, tree):
            partial.close()
            return None
        try:
            partial._resume(threads)
        except OSError:  # a bitmap that is no file
            partial.close()
            return None
        return partial

    @property
    def data(self) -> Path:
        """The source for `Ramdisk.name_shard` once the partial is whole."""
        return self.folder / "data"

    @property
    def have(self) -> int:
        """Number of leaves that are verified and written."""
        return self._have

    @property
    def have_bytes(self) -> int:
        """The same in bytes."""
        return sum(self.tree.leaf(number).size for number in range(self.tree.leaves) if self.has(number))

    @property
    def is_whole(self) -> bool:
        """Whether every leaf is here; an empty shard is whole at once."""
        return self._have == self.tree.leaves

    def has(self, number: int) -> bool:
        """Tell whether a leaf is here."""
        return 0 <= number < self.tree.leaves and _bit(self._bits, number)

    def missing(self) -> Iterator[Run]:
        """Yield the runs of leaves that are not here, ascending."""
        for has, group in groupby(range(self.tree.leaves), self.has):
            if not has:
                numbers = list(group)
                yield Run(first=numbers[0], count=len(numbers))

    def put(self, number: int, data: bytes | bytearray | memoryview) -> None:
        """Verify a leaf, write it, and note it; a leaf that is here already is left alone.

        Raises:
            CorruptError: the bytes are not those of this leaf; nothing was written.
            ProtocolError: there is no such leaf; or somebody removed files of the partial: `create` it anew.
            NoRoomError: the ramdisk is full, where nothing could be allocated before.
        """
        wanted = self.tree.leaf(number)
        if self.has(number):
            return
        if len(data) != wanted.size or leaf.digest(data) != wanted.digest:
            raise CorruptError(
                f"{self.folder.name:.13}: leaf {number} came with {len(data)} bytes of another digest, "
                f"expected {wanted.size} with {wanted.digest.hex():.12}"
            )
        try:
            fd = self._content.take(wanted.path, os.O_WRONLY)
        except CorruptError as error:  # not the sender's fault
            raise ProtocolError(f"{self.folder}: the partial was damaged: {error}") from error
        try:
            failpoint.change()
            with no_room(self.data):
                _write(fd, memoryview(data), wanted.offset)
        finally:
            os.close(fd)
        self._note(number)

    def pread_leaf(self, number: int, buffer: bytearray | memoryview) -> int:
        """Read a leaf that is here, to serve it to others meanwhile; returns its size in bytes.

        Raises:
            CorruptError: the leaf is not here, or its file was changed.
        """
        if not self.has(number):
            raise CorruptError(f"{self.folder.name:.13}: leaf {number} is not here yet")
        return pread(self._content, self.tree, number, buffer)

    def seed(self, source: Path) -> int:
        """Take every good leaf from a copy that may be corrupt; returns the bytes taken."""
        taken = 0
        buffer = new_buffer(leaf.LEAF_SIZE)
        try:
            content = Content(source)
        except (OSError, UnsupportedError):
            return 0
        with content:
            if content.is_directory != self.tree.is_directory:
                return 0
            for number in range(self.tree.leaves):
                if self.has(number):
                    continue
                try:
                    size = pread(content, self.tree, number, buffer)
                    self.put(number, buffer[:size])
                except CorruptError:
                    continue
                taken += size
        return taken

    def close(self) -> None:
        """Close it; it stays on the ramdisk."""
        self._content.close()
        if self._bitmap >= 0:
            os.close(self._bitmap)
            self._bitmap = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _resume(self, threads: int) -> None:
        old = os.pread(self._bitmap, _bytes(self.tree), 0)
        noted = [number for number in range(self.tree.leaves) if number >> 3 < len(old) and _bit(old, number)]
        bad = set(check_leaves(self._content, self.tree, noted, threads))
        for number in noted:
            if number not in bad:
                self._bits[number >> 3] |= 1 << (number & 7)
        os.ftruncate(self._bitmap, 0)
        os.pwrite(self._bitmap, self._bits, 0)
        self._have = len(noted) - len(bad)

    def _note(self, number: int) -> None:
        """Set the leaf's bit; after the bytes are in the file, so that a crash never leaves a bit without them."""
        with self._lock:
            if not self.has(number):
                failpoint.change()
                self._bits[number >> 3] |= 1 << (number & 7)
                os.pwrite(self._bitmap, self._bits[number >> 3 : (number >> 3) + 1], number >> 3)
                self._have += 1


def _write(fd: int, view: memoryview, offset: int) -> None:
    while view:
        done = os.pwrite(fd, view, offset)
        view, offset = view[done:], offset + done


def _is_laid_out(content: Content, tree: Tree) -> bool:
    """Tell whether every directory and file is there at its full size, and nothing else."""
    try:
        found = content.survey()
    except (CorruptError, UnsupportedError):
        return False
    wanted = [(entry.path, entry.size if isinstance(entry, File) else None) for entry in tree.entries]
    return [(entry.path, None if entry.is_directory else entry.size) for entry in found] == wanted


def _bytes(tree: Tree) -> int:
    return (tree.leaves + 7) >> 3


def _bit(bits: bytes | bytearray, number: int) -> bool:
    return bool(bits[number >> 3] & (1 << (number & 7)))


def _open_bitmap(folder: Path) -> int:
    return os.open(folder / "bitmap", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)


def _clear(folder: Path, files: Files) -> None:
    for name in ("tree", "tree.tmp", "bitmap", "data"):  # the tree first: without it the partial is none
        files.remove(folder / name)


def _allocate(data: Path, tree: Tree, files: Files) -> None:
    """Make every directory and file at its full size, so that a full ramdisk shows before the first byte comes."""
    if tree.is_directory:
        files.make_folder(data)
    for directory in tree.directories:
        files.make_folder(data / os.fsdecode(directory.path))
    for file in tree.files:
        path = data if file.path == ROOT else data / os.fsdecode(file.path)
        failpoint.change()
        with no_room(path):
            fd = os.open(path, _NEW, 0o644)
            try:
                os.fchmod(fd, 0o644)
                if file.size:
                    _reserve(fd, file.size)
            finally:
                os.close(fd)


def _reserve(fd: int, size: int) -> None:
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno not in {errno.EOPNOTSUPP, errno.EINVAL}:
            raise
        os.ftruncate(fd, size)  # a file system without allocation, for local runs
