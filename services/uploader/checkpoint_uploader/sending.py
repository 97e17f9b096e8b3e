"""One shard from the ramdisk into a backup, each leaf checked against the tree while it is sent."""

import io
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from checkpoint_replicator import leaf
from checkpoint_replicator.backup import data_name, tree_name
from checkpoint_replicator.blobs import Blob
from checkpoint_replicator.blobs.crc32c import Crc32c
from checkpoint_replicator.buffer import new_buffer
from checkpoint_replicator.errors import CorruptError, UnsupportedError
from checkpoint_replicator.ids import Address
from checkpoint_replicator.tree import ROOT, File, Tree
from checkpoint_uploader.each import each
from checkpoint_uploader.folder import BackupFolder

__all__ = ["OpenShard", "Shards", "object_name", "send_shard"]


class OpenShard(Protocol):
    """A shard of the ramdisk that cannot go while it is open."""

    @property
    def tree(self) -> Tree:
        """What it is."""
        ...

    def pread_leaf(self, number: int, buffer: bytearray | memoryview) -> int:
        """Read a leaf as it is now into the buffer's beginning and return its size.

        Raises:
            CorruptError: the file is gone or shorter than in the tree.
        """
        ...


class Shards(Protocol):
    """The ramdisk as the uploader sees it."""

    def open_shard(self, address: Address) -> AbstractContextManager[OpenShard]:
        """Open a shard.

        Raises:
            FileNotFoundError: it is not here.
        """
        ...


def object_name(address: Address, path: bytes) -> str:
    """Return the name of a file's object below the backup's directory.

    Raises:
        UnsupportedError: the path is not UTF-8, which no bucket takes.
    """
    if path == ROOT:
        return data_name(address)
    try:
        return f"{data_name(address)}/{path.decode()}"
    except UnicodeDecodeError as error:
        raise UnsupportedError(f"{path!r} cannot be the name of an object, expected UTF-8") from error


def send_shard(folder: BackupFolder, shards: Shards, address: Address, threads: int) -> tuple[Blob, ...]:
    """Store a shard's files and then its tree, so that a tree says that all data is there; return what was stored.

    Raises:
        FileNotFoundError: the shard is not on the ramdisk.
        CorruptError: its bytes are not those of the tree (any more); such a file is not stored.
        RefusedError: another object stands under a name.
    """
    with shards.open_shard(address) as shard:
        tree = shard.tree
        if tree.address != address:
            raise CorruptError(f"expected the tree of {address}, found that of {tree.address}")
        files = [(object_name(address, file.path), file) for file in tree.files]
        stored: list[Blob] = []

        def send(item: tuple[str, File]) -> None:
            name, file = item
            stored.append(_send_file(folder, name, file, shard))

        each(files, send, min(threads, len(files)))
        stored.append(folder.put(tree_name(address), tree.encode()))
    return tuple(stored)


def _send_file(folder: BackupFolder, name: str, file: File, shard: OpenShard) -> Blob:
    """Read twice: once for the sum, which the store wants first, once to send."""
    total = Crc32c()
    # One buffer for all leaves: fresh memory for each costs more than reading and hashing it.
    buffer = new_buffer(min(leaf.LEAF_SIZE, file.size))
    numbers = shard.tree.leaves_of(file.path)
    for number in numbers:
        total.update(bytes(buffer[: shard.pread_leaf(number, buffer)]))
        folder.progress.moved()
    blob = Blob(folder.prefix + name, file.size, total.text)
    with io.BufferedReader(_Leaves(folder, name, shard, numbers, buffer), leaf.LEAF_SIZE) as source:
        folder.store.put_new(blob.name, source, blob.size, blob.crc32c)
    return blob


class _Leaves(io.RawIOBase):
    """A file's bytes, leaf by leaf, none of which differs from the tree."""

    def __init__(self, folder: BackupFolder, name: str, shard: OpenShard, numbers: range, buffer: memoryview) -> None:
        super().__init__()
        self._progress = folder.progress
        self._name = name
        self._pieces = self._checked(shard, numbers, buffer)
        self._piece = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "bytearray | memoryview", /) -> int:  # type: ignore[override]
        """Fill the buffer with what is left of the leaf at hand."""
        if not self._piece:
            self._piece = next(self._pieces, memoryview(b""))
        size = min(len(buffer), len(self._piece))
        buffer[:size] = self._piece[:size]
        self._piece = self._piece[size:]
        return size

    def _checked(self, shard: OpenShard, numbers: range, buffer: memoryview) -> Iterator[memoryview]:
        for number in numbers:
            expected = shard.tree.leaf(number)
            data = buffer[: shard.pread_leaf(number, buffer)]
            if leaf.digest(data) != expected.digest:
                raise CorruptError(
                    f"{self._name}: leaf at {expected.offset} has other bytes than when it was hashed", kind="mutated"
                )
            self._progress.moved(len(data))
            yield data
