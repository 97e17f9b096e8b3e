"""A shard in a backup, read leaf by leaf; what is read is verified by the receiver."""

from collections.abc import Iterable, Sequence
from typing import Final

from checkpoint_replicator import leaf
from checkpoint_replicator.backup import data_name, is_backup_name, tree_name
from checkpoint_replicator.blobs import Blob, BlobStore
from checkpoint_replicator.errors import CorruptError, ProtocolError
from checkpoint_replicator.ids import Address, Job, is_address, job_fault
from checkpoint_replicator.messages import Run
from checkpoint_replicator.tree import MAX_TREE, ROOT, Directory, File, Tree
from checkpoint_uploader.progress import Progress
from checkpoint_uploader.sending import object_name

__all__ = ["BackupShard", "open_backup_shard"]

_PIECE: Final = 4 << 20
"""Bytes of one read, a whole number of leaves."""


class BackupShard:
    """A shard with its tree; reads may come from several threads."""

    def __init__(self, store: BlobStore, prefix: str, tree: Tree) -> None:
        self.tree = tree
        self._store = store
        self._prefix = prefix

    @property
    def sizes(self) -> tuple[int, ...]:
        """Size of each leaf in bytes."""
        return tuple(
            leaf.span(file.size, index)[1] for file in self.tree.files for index in range(leaf.count(file.size))
        )

    def read(self, runs: Iterable[Run], progress: Progress) -> list[bytes]:
        """Return the bytes of each run, its leaves one after another.

        Raises:
            FileNotFoundError: an object is not there.
            CorruptError: it is shorter than in the tree.
            UnreachableError: the store does not answer.
        """
        return [b"".join(self._read(run, progress)) for run in runs]

    def _read(self, run: Run, progress: Progress) -> Iterable[bytes]:
        """Leaves of one file that follow one another are one read."""
        number, end = run.first, run.first + run.count
        while number < end:
            first = self.tree.leaf(number)
            size = 0
            numbers = self.tree.leaves_of(first.path)
            stop = min(end, numbers.stop, number + _PIECE // leaf.LEAF_SIZE)
            for index in range(number, stop):
                size += self.tree.leaf(index).size
            name = self._prefix + object_name(self.tree.address, first.path)
            yield self._store.read(name, first.offset, size)
            progress.moved(size)
            number = stop


def open_backup_shard(store: BlobStore, job: Job, backup: str, address: Address, progress: Progress) -> BackupShard:
    """Find a shard in a backup: by its tree object, else by reading its data, which then must hash to the address.

    Raises:
        ProtocolError: these are no names of a job, a backup and a shard.
        FileNotFoundError: there is no such shard.
        CorruptError: what is there is not it, or is named by a scheme that we do not know.
        UnreachableError: the store does not answer.
    """
    if (fault := job_fault(job)) or not is_backup_name(backup) or not is_address(address):
        raise ProtocolError(f"job {fault}" if fault else f"{backup!r} and {address!r} name no shard of a backup")
    prefix = f"{job}/{backup}/"
    tree, fault = _stored_tree(store, prefix, address, progress)
    if tree is None:
        tree = _tree_of(address, _data(store, prefix, address, progress), store, progress)
    if tree is None:
        raise FileNotFoundError(f"backup {backup} has no data of {address}")
    if tree.address != address:
        found = f"its data hashes to {tree.address}"
        raise CorruptError(f"backup {backup} has {address} with {fault or 'no tree'}, and {found}")
    return BackupShard(store, prefix, tree)


def _stored_tree(store: BlobStore, prefix: str, address: Address, progress: Progress) -> tuple[Tree | None, str | None]:
    """Return the tree object's tree, or why it is none of this shard."""
    name = prefix + tree_name(address)
    blob = next((blob for blob in store.list(name) if blob.name == name), None)
    progress.moved()
    if blob is None:
        return None, None
    if blob.size > MAX_TREE:
        return None, f"a tree of {blob.size} bytes"
    try:
        tree = Tree.parse(_whole(store, blob, progress))
    except (ProtocolError, CorruptError) as error:
        return None, f"a bad tree ({error})"
    return (tree, None) if tree.address == address else (None, f"the tree of {tree.address}")


def _whole(store: BlobStore, blob: Blob, progress: Progress) -> bytes:
    return b"".join(_pieces(store, blob, progress))


def _pieces(store: BlobStore, blob: Blob, progress: Progress) -> Iterable[bytes]:
    for offset in range(0, blob.size, _PIECE):
        data = store.read(blob.name, offset, min(_PIECE, blob.size - offset))
        progress.moved(len(data))
        yield data


def _data(store: BlobStore, prefix: str, address: Address, progress: Progress) -> Sequence[tuple[bytes, Blob]]:
    """List the shard's objects with their paths in the tree."""
    top = prefix + data_name(address)
    found: list[tuple[bytes, Blob]] = []
    for blob in store.list(top):
        progress.moved()
        if blob.name == top:
            found.append((ROOT, blob))
        elif blob.name.startswith(f"{top}/"):
            found.append((blob.name.removeprefix(f"{top}/").encode(), blob))
    return found


def _tree_of(address: Address, data: Sequence[tuple[bytes, Blob]], store: BlobStore, progress: Progress) -> Tree | None:
    """Read all data and build its tree; a bucket knows no empty folders, so a shard that had some has another one."""
    if not data:
        return None
    folders: set[bytes] = set()
    files: list[File] = []
    for path, blob in data:
        digests = b"".join(
            leaf.digest(memoryview(piece)[start : start + leaf.LEAF_SIZE])
            for piece in _pieces(store, blob, progress)
            for start in range(0, len(piece), leaf.LEAF_SIZE)
        )
        files.append(File(path, blob.size, digests))
        parts = path.split(b"/")[:-1]
        folders.update(b"/".join(parts[: depth + 1]) for depth in range(len(parts)))
    try:
        return Tree([*files, *map(Directory, folders)])
    except ProtocolError as error:
        raise CorruptError(f"{data_name(address)}: {error}") from error
