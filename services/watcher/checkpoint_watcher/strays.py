"""Data with a public `.meta` and no sidecar: of a `.replicator` that was lost, or of another replicator.

Its bytes must make its name: by our tree, or, for a file, by the BLAKE3 of the whole. Such a save has epoch 0, and the
shape of the session that asks for it, since nothing else tells one.
"""

import threading
from pathlib import Path
from typing import Final

from checkpoint_replicator.errors import BusyError, CorruptError, ReplicatorError
from checkpoint_replicator.hashing import Watch, file_digest, hash_shard
from checkpoint_replicator.ids import Epoch, is_address
from checkpoint_replicator.messages import Held
from checkpoint_replicator.ramdisk import Ramdisk, ShardName
from checkpoint_replicator.save import Save, Tag
from checkpoint_replicator.session import SessionSpec
from checkpoint_replicator.tree import Tree
from checkpoint_watcher.effects import AdoptStrays
from checkpoint_watcher.events import StraysAdopted

__all__ = ["Strays"]

EPOCH: Final = Epoch(0)


class Strays:
    """Gives sidecars to what has none; blocking.

    Args:
        ramdisk: which one.
        threads: that hash one shard together.
        stopping: lets hashing end early.
    """

    def __init__(self, ramdisk: Ramdisk, threads: int, stopping: threading.Event) -> None:
        self._ramdisk = ramdisk
        self._threads = threads
        self._stopping = stopping

    def adopt(self, effect: AdoptStrays) -> StraysAdopted | None:
        """Adopt all strays of the session's job; None: stopped.

        A step of which a shard lies outside the session's shape is of another shape: none of it is taken.
        """
        spec = effect.spec
        found: dict[str, list[ShardName]] = {}
        for name, address in self._ramdisk.strays():
            if name.job == spec.job:
                found.setdefault(address, []).append(name)
        wide = {name.step for names in found.values() for name in names if not _fits(name, spec)}
        adopted: list[Held] = []
        refused: list[str] = []
        for address, names in found.items():
            fitting = [name for name in names if name.step not in wide]
            refused += [f"{name}: is of a save of more than {spec.shape}" for name in names if name.step in wide]
            try:
                adopted += self._adopt(address, fitting, spec) if fitting else ()
            except BusyError:
                if self._stopping.is_set():
                    return None
                refused += [f"{name}: is being read" for name in fitting]
            except (ReplicatorError, OSError) as error:
                refused += [f"{name}: {error}" for name in fitting]
        return StraysAdopted(effect.session, tuple(adopted), tuple(refused))

    def _adopt(self, address: str, names: list[ShardName], spec: SessionSpec) -> list[Held]:
        if not is_address(address):
            raise CorruptError(f"its .meta holds no address but {address[:40]!r}")
        path = self._ramdisk.root / f"{address}.data"
        tree = hash_shard(path, self._threads, Watch(stop=self._stopping))
        if tree.address != address and not _is_named_otherwise(path, tree, address):
            raise CorruptError(f"{path.name}: its bytes hash to {tree.address:.13}")
        tags = [Tag(spec.job, Save(EPOCH, name.step), spec.shape, name.key, tree.address, tree.size) for name in names]
        held: list[Held] = []
        for own in (True, False):
            mine = [tag for tag in tags if (tag.key.rank == spec.rank) is own]
            if mine and held:
                self._ramdisk.add_tags(mine, own=own)
            elif mine:
                self._ramdisk.name_shard(path, tree, mine, own=own)
            held += [Held(tag=tag, own=own) for tag in mine]
        return held


def _fits(name: ShardName, spec: SessionSpec) -> bool:
    return name.key.rank < spec.shape.nodes and name.key.worker < spec.shape.workers


def _is_named_otherwise(path: Path, tree: Tree, address: str) -> bool:
    return not tree.is_directory and file_digest(path) == address
