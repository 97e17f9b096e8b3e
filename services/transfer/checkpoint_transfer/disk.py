"""The transfer's side of the ramdisk. Everything here blocks and is called from threads.

Leaves are read with `pread` and written with `pwrite` into partials; nothing is mapped. A shard or partial stays open
while somebody is served out of it, and the watcher cannot drop an open shard.
"""

import threading
import time
from array import array
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

from checkpoint_replicator import leaf
from checkpoint_replicator.errors import (
    BusyError,
    CorruptError,
    NoRoomError,
    ProtocolError,
    RefusedError,
    ReplicatorError,
    UnsupportedError,
)
from checkpoint_replicator.generations import RESERVE
from checkpoint_replicator.hashing import Watch, verify_shard
from checkpoint_replicator.ids import Address
from checkpoint_replicator.messages import Run
from checkpoint_replicator.ramdisk import Partial, Ramdisk, Shard, inodes_for
from checkpoint_replicator.ramdisk.reading import read_small
from checkpoint_replicator.tree import MAX_TREE, Tree
from checkpoint_transfer.buffers import Buffers
from checkpoint_transfer.effects import Naming, Reserve, ShardAbsent, ShardChecked, ShardOpened
from checkpoint_transfer.leaves import LeafSet
from checkpoint_transfer.receiving import (
    Frames,
    LeavesStored,
    NamingFailed,
    PartialAbsent,
    PartialOpened,
    PartialRefused,
    ReceiverEvent,
    RoomMissing,
    ShardNamed,
    ShardStood,
    StoreFailed,
    TreeSpoiled,
)
from checkpoint_transfer.source import Source

__all__ = ["Disk", "sizes_of"]

OLD: Final = 24 * 3600.0
"""Seconds after which a partial that nobody fills goes in any case."""


class Readable(Protocol):
    """A shard or a partial."""

    tree: Tree

    def pread_leaf(self, number: int, buffer: bytearray | memoryview) -> int:
        """Read a leaf."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


class _Lent:
    """Something open that several threads use; closed when asked to and nobody uses it."""

    def __init__(self, what: Readable) -> None:
        self.what = what
        self.users = 0
        self.is_over = False


class Disk:
    """Opens, reads, writes and names shards and partials."""

    def __init__(self, ramdisk: Ramdisk, buffers: Buffers, check_threads: int = 1) -> None:
        """Take the ramdisk and the memory to read into; `check_threads` hash a shard that a peer complained of."""
        self._ramdisk = ramdisk
        self._buffers = buffers
        self._check_threads = check_threads
        self._ends = threading.Event()
        self._lock = threading.Lock()
        self._open: dict[Address, _Lent] = {}
        self._partials: dict[Address, Partial] = {}

    # ---- receiving

    def open_partial(
        self, address: Address, source: Source | None, tree: Frames | None, reserve: Reserve | None
    ) -> ReceiverEvent:
        """Open the partial with this tree, its room reserved; without a tree look what is there."""
        try:
            if self._ramdisk.stands(address):
                return ShardStood()
            if tree is None:
                partial = self._ramdisk.open_partial(address)
                if partial is None:
                    return PartialAbsent()
            else:
                parsed = Tree.parse(b"".join(tree))
                if parsed.address != address:
                    raise ProtocolError(f"hashes to {parsed.address:.13}, expected {address:.13}")  # noqa: TRY301
                partial = self._make(parsed, reserve)
        except ProtocolError as error:
            return PartialAbsent() if source is None else TreeSpoiled(source, str(error))
        except NoRoomError as error:
            return RoomMissing(str(error), error.lacking)
        except OSError as error:
            return PartialRefused(f"the ramdisk refuses a copy: {error}")
        self._adopt(address, partial)
        return PartialOpened(sizes_of(partial.tree), _have(partial))

    def store(
        self, address: Address, source: Source, runs: Sequence[Run], body: Frames, size: int
    ) -> LeavesStored | StoreFailed:
        """Verify leaves, one frame a run, and write the good ones."""
        good: list[int] = []
        bad: list[int] = []
        partial = self._partials.get(address)
        if partial is None:
            return StoreFailed(source, size, "its partial is not open")
        try:
            for run, frame in zip(runs, body, strict=True):
                view = memoryview(frame)
                for number in range(run.first, run.first + run.count):
                    length = partial.tree.leaf(number).size
                    try:
                        partial.put(number, view[:length])
                    except CorruptError:
                        bad.append(number)
                    else:
                        good.append(number)
                    view = view[length:]
        except (ReplicatorError, OSError) as error:
            return StoreFailed(source, size, str(error))
        return LeavesStored(source, tuple(good), tuple(bad), size)

    def name(self, address: Address, namings: Sequence[Naming]) -> ShardNamed | NamingFailed:
        """Give a whole partial its names, or a shard that stands here further ones."""
        partial = self._partials.get(address)
        try:
            for naming in namings:
                if partial is not None and partial.is_whole and partial.data.exists():
                    self._ramdisk.name_shard(partial.data, partial.tree, naming.tags, own=naming.own)
                else:
                    self._ramdisk.add_tags(naming.tags, own=naming.own)
            with self._lock:
                self._partials.pop(address, None)
            self._ramdisk.discard_partial(address)  # what is left of it
        except RefusedError as error:
            if partial is not None:
                self.close(address)
                self._ramdisk.discard_partial(address)
            return NamingFailed(str(error), clash=True)
        except (ReplicatorError, OSError) as error:
            return NamingFailed(str(error))
        return ShardNamed()

    def _make(self, tree: Tree, reserve: Reserve | None) -> Partial:
        """Open or make a partial; old partials of others that nobody fills go when there is no room."""
        size, inodes = (reserve.size, reserve.inodes) if reserve else (0, 0)
        if reserve is not None and reserve.alike:
            size, inodes = int(RESERVE * tree.size), int(RESERVE * inodes_for(len(tree.entries)))
        try:
            return self._ramdisk.partial(tree, reserve=size, reserve_inodes=inodes)
        except NoRoomError:
            with self._lock:
                idle = [old for old in self._ramdisk.partials() if old not in self._open and old != tree.address]
            if not idle:
                raise
            for old in idle:
                self._ramdisk.discard_partial(old)
            return self._ramdisk.partial(tree, reserve=size, reserve_inodes=inodes)

    def trim(self, reserve: int, busy: Container[Address]) -> int:
        """Remove partials that nobody fills or reads: those of the last day only while less than the reserve is free.

        Returns how many went. The oldest go first.
        """
        with self._lock:
            idle = [old for old in self._ramdisk.partials() if old not in self._open and old not in busy]
        ages = sorted(((self._ramdisk.partial_age(old, time.time()), old) for old in idle), reverse=True)
        trimmed = 0
        for age, old in ages:
            if age < OLD and self._ramdisk.room().free >= reserve:
                break
            self._ramdisk.discard_partial(old)
            trimmed += 1
        return trimmed

    # ---- serving

    def open_shard(self, address: Address) -> ShardOpened | ShardAbsent:
        """Open a whole shard for serving."""
        try:
            shard = self._ramdisk.open_shard(address)
        except (ReplicatorError, OSError) as error:
            return ShardAbsent(address, str(error))
        sizes = sizes_of(shard.tree)
        self._adopt(address, shard)
        return ShardOpened(address, sizes)

    def read(self, address: Address, runs: Sequence[Run]) -> list[memoryview]:
        """Read leaves into one buffer a run.

        Raises:
            CorruptError: the shard is not open, or its files are gone or shorter than in the tree.
        """
        what: Readable | None = None
        try:
            with self._borrow(address) as what:
                return [self._read(what, run) for run in runs]
        except CorruptError:
            if not isinstance(what, Partial):
                raise
            self._adopt(address, self._named(address))  # it was named meanwhile, so its files moved
        with self._borrow(address) as what:
            return [self._read(what, run) for run in runs]

    def _read(self, what: Readable, run: Run) -> memoryview:
        numbers = range(run.first, run.first + run.count)
        buffer = self._buffers.lend(sum(what.tree.leaf(number).size for number in numbers))
        offset = 0
        for number in numbers:
            offset += what.pread_leaf(number, buffer[offset:])
        return buffer

    def _named(self, address: Address) -> Shard:
        try:
            return self._ramdisk.open_shard(address)
        except (ReplicatorError, OSError) as error:
            raise CorruptError(f"{address:.13}: cannot be read: {error}") from error

    def tree(self, address: Address) -> bytes:
        """Return the tree's text.

        Raises:
            CorruptError: the shard is neither open nor stands here.
        """
        with self._lock:
            known = self._open.get(address)
        if known is not None and isinstance(known.what, Partial):
            return known.what.tree.encode()
        try:
            return read_small(self._ramdisk.layout.tree(address), MAX_TREE)
        except (OSError, ProtocolError) as error:
            raise CorruptError(f"{address:.13}: its tree cannot be read: {error}") from error

    def found(self) -> tuple[Address, ...]:
        """Return what stands here and is not offered for the first time: copies, and own shards of committed saves."""
        sidecars = (sidecar for sidecar in self._ramdisk.sidecars() if sidecar.committed or not sidecar.own)
        return tuple(sorted({sidecar.tag.address for sidecar in sidecars if self._ramdisk.standing(sidecar)}))

    def end(self) -> None:
        """Let checks end early: the next life begins them anew."""
        self._ends.set()

    def check(self, address: Address) -> ShardChecked:
        """Hash a shard that stands here again."""
        try:
            with self._ramdisk.open_shard(address) as shard:
                data = self._ramdisk.layout.data(address)
                return ShardChecked(
                    address, str(verify_shard(data, shard.tree, self._check_threads, Watch(stop=self._ends)))
                )
        except (FileNotFoundError, BusyError):
            return ShardChecked(address, "")  # dropped meanwhile, or this process ends
        except (CorruptError, ProtocolError, UnsupportedError) as error:
            return ShardChecked(address, str(error))

    def close(self, address: Address) -> None:
        """Close a shard's files as soon as no thread uses them; a partial stays on the ramdisk."""
        with self._lock:
            self._partials.pop(address, None)
            known = self._open.pop(address, None)
            if known is None:
                return
            known.is_over = True
            over = not known.users
        if over:
            known.what.close()

    def _adopt(self, address: Address, what: Shard | Partial) -> None:
        self.close(address)
        with self._lock:
            self._open[address] = _Lent(what)
            if isinstance(what, Partial):
                self._partials[address] = what

    @contextmanager
    def _borrow(self, address: Address) -> Iterator[Readable]:
        with self._lock:
            known = self._open.get(address)
            if known is None:
                raise CorruptError(f"{address:.13}: is not open here")
            known.users += 1
        try:
            yield known.what
        finally:
            with self._lock:
                known.users -= 1
                over = known.is_over and not known.users
            if over:
                known.what.close()


def sizes_of(tree: Tree) -> Sequence[int]:
    """Return the size of each leaf, four bytes a leaf."""
    sizes = array("I")
    for file in tree.files:
        if leaves := leaf.count(file.size):
            sizes.extend([leaf.LEAF_SIZE] * (leaves - 1))
            sizes.append(leaf.span(file.size, leaves - 1)[1])
    return sizes


def _have(partial: Partial) -> LeafSet:
    if not partial.have:
        return LeafSet.empty(partial.tree.leaves)
    return LeafSet(bytes(partial.has(number) for number in range(partial.tree.leaves)))
