"""A named shard, open for reading: it is not removed before it is closed."""

import os
from pathlib import Path
from typing import Self

from checkpoint_replicator.content import Content
from checkpoint_replicator.errors import CorruptError, ProtocolError, UnsupportedError
from checkpoint_replicator.hashing import read_leaf
from checkpoint_replicator.ids import Address
from checkpoint_replicator.ramdisk.locks import shared
from checkpoint_replicator.ramdisk.reading import open_plain
from checkpoint_replicator.tree import MAX_TREE, Tree

__all__ = ["Shard", "read_tree"]


class Shard:
    """Reads leaves by number, from several threads if wished; holds a shared lock on the tree until it is closed.

    Raises:
        FileNotFoundError: no such shard stands here.
        BusyError: it is just being removed.
        ProtocolError: its tree does not parse or has another address.
        CorruptError: its data is missing or of another kind.
    """

    def __init__(self, address: Address, tree: Path, data: Path) -> None:
        self.address = address
        self._lock = shared(tree)
        try:
            self.tree = _parse(_read(self._lock), address, tree)
            self._content = _open(data, self.tree)
        except BaseException:
            os.close(self._lock)
            raise

    def pread_leaf(self, number: int, buffer: bytearray | memoryview) -> int:
        """Read a leaf into the buffer's beginning and return its size in bytes; the bytes are *not* verified.

        Raises:
            CorruptError: the file is gone or shorter than in the tree.
            ProtocolError: there is no such leaf, or the buffer is too small for it.
        """
        return pread(self._content, self.tree, number, buffer)

    def close(self) -> None:
        """Give everything back; a second call does nothing."""
        self._content.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def pread(content: Content, tree: Tree, number: int, buffer: bytearray | memoryview) -> int:
    """Read a leaf of a tree; see `Shard.pread_leaf`."""
    leaf = tree.leaf(number)
    view = memoryview(buffer)[: leaf.size]
    if len(view) < leaf.size:
        raise ProtocolError(f"a buffer of {len(view)} bytes was given for a leaf of {leaf.size}")
    with content.open(leaf.path) as fd:
        if not read_leaf(fd, leaf.offset, view):
            raise CorruptError(
                f"{content.path}: {leaf.path!r} ends before {leaf.offset + leaf.size} bytes", kind="mutated"
            )
    return leaf.size


def read_tree(path: Path, address: Address) -> Tree:
    """Read a tree file of ours.

    Raises:
        FileNotFoundError: there is none.
        ProtocolError: it does not parse or has another address; names the file.
    """
    fd = open_plain(path)
    try:
        return _parse(_read(fd), address, path)
    finally:
        os.close(fd)


def _read(fd: int) -> bytes:
    with open(fd, "rb", closefd=False) as file:
        return file.read(MAX_TREE + 1)


def _parse(text: bytes, address: Address, path: Path) -> Tree:
    try:
        tree = Tree.parse(text)
    except ProtocolError as error:
        raise ProtocolError(f"{path}: {error}") from error
    if tree.address != address:
        raise ProtocolError(f"{path}: its text has the address {tree.address}")
    return tree


def _open(data: Path, tree: Tree) -> Content:
    try:
        content = Content(data)
    except FileNotFoundError as error:
        raise CorruptError(f"{data}: is missing") from error
    except UnsupportedError as error:  # names it
        raise CorruptError(str(error)) from error
    if content.is_directory != tree.is_directory:
        content.close()
        raise CorruptError(f"{data}: expected {'a directory' if tree.is_directory else 'a file'}")
    return content
