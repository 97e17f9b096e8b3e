"""A small save of real shards on disk, the orders that back it up, and what must hold in the store at any moment."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from checkpoint_replicator.backup import (
    MANIFEST_NAME,
    ObjectMark,
    judge,
    manifest_document,
    order_document,
)
from checkpoint_replicator.blobs import Blob
from checkpoint_replicator.content import Content
from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.hashing import hash_shard
from checkpoint_replicator.ids import Address, Epoch, Job, Rank, Step, Worker
from checkpoint_replicator.messages import BackupResult
from checkpoint_replicator.ramdisk.shard import pread
from checkpoint_replicator.records import BackupOrder
from checkpoint_replicator.save import Save, ShardKey, Tag
from checkpoint_replicator.shape import Shape
from checkpoint_replicator.tree import Tree
from support.memory_blobs import MemoryBlobStore

__all__ = ["JOB", "NAME", "SAVE", "SHAPE", "STAMP", "FolderShards", "Scene", "broken_law"]

JOB = Job("llama")
NAME = "2026-01-02_03-04"
SAVE = Save(Epoch(3), Step(7))
SHAPE = Shape(2, 1, 1, "pytorch")
STAMP = Stamp(1, Epoch(3), 9)


class FolderShard:
    """A shard on disk, read without any check."""

    def __init__(self, tree: Tree, content: Content) -> None:
        self.tree = tree
        self._content = content

    def pread_leaf(self, number: int, buffer: bytearray | memoryview) -> int:
        return pread(self._content, self.tree, number, buffer)


class FolderShards:
    """Shards on disk by their address, as the ramdisk gives them."""

    def __init__(self) -> None:
        self.paths: dict[Address, tuple[Path, Tree]] = {}

    def add(self, path: Path) -> Tree:
        tree = hash_shard(path)
        self.paths[tree.address] = (path, tree)
        return tree

    @contextmanager
    def open_shard(self, address: Address) -> Iterator[FolderShard]:
        if address not in self.paths:
            raise FileNotFoundError(f"{address} is not on this ramdisk")
        path, tree = self.paths[address]
        with Content(path) as content:
            yield FolderShard(tree, content)


class Scene:
    """Rank 0 saved a file, rank 1 a directory."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "file"
        self.file.write_bytes(os.urandom((2 << 20) + 17))
        self.directory = folder / "directory"
        (self.directory / "deep" / "empty-folder").mkdir(parents=True)
        (self.directory / "deep" / "a.bin").write_bytes(os.urandom(70_000))
        (self.directory / "b with space.bin").write_bytes(os.urandom((1 << 20) + 1))
        (self.directory / ".metadata").write_bytes(b"")
        self.shards = FolderShards()
        self.trees = [self.shards.add(self.file), self.shards.add(self.directory)]
        self.tags = tuple(
            Tag(JOB, SAVE, SHAPE, ShardKey(Rank(rank), Worker(0)), tree.address, tree.size)
            for rank, tree in enumerate(self.trees)
        )

    def reserve(self) -> BackupOrder:
        document = order_document(stamp=STAMP, save=SAVE, shape=SHAPE)
        return BackupOrder(id="reserve", kind="reserve", name=NAME, document=document)

    def upload(self, rank: int) -> BackupOrder:
        return BackupOrder(id=f"upload-{rank}", kind="upload", name=NAME, tags=(self.tags[rank],))

    def seal(self) -> BackupOrder:
        return BackupOrder(id="seal", kind="seal", name=NAME, tags=self.tags)

    def manifest(self, answers: list[BackupResult]) -> BackupOrder:
        objects = {
            name: ObjectMark(answer.sizes[name], crc32c) for answer in answers for name, crc32c in answer.crc32c.items()
        }
        document = manifest_document(save=SAVE, shape=SHAPE, stamp=STAMP, version="1", tags=self.tags, objects=objects)
        return BackupOrder(id="manifest", kind="manifest", name=NAME, document=document)

    def simple(self, kind: str) -> BackupOrder:
        return BackupOrder(id=kind, kind=kind, name=NAME if kind != "list" else "")


def broken_law(store: MemoryBlobStore, scene: Scene) -> str:
    """Say what stands in the store that must not: a mark before its data, or a manifest that is not whole."""
    prefix = f"{JOB}/{NAME}/"
    names = {name.removeprefix(prefix) for name in store.objects}
    needed = {f"{tree.address}.tree" for tree in scene.trees}
    needed |= {
        f"{tree.address}.data" if not tree.is_directory else f"{tree.address}.data/{file.path.decode()}"
        for tree in scene.trees
        for file in tree.files
    }
    marks = sorted(name for name in names if name.endswith(".meta"))
    if marks and needed - names:
        return f"{marks[0]} stands without {min(needed - names)}"
    if MANIFEST_NAME in names and b'"complete"' in store.objects[prefix + MANIFEST_NAME]:
        blobs = {name: Blob(name, len(store.objects[prefix + name]), "") for name in names}
        text = store.objects[prefix + MANIFEST_NAME].decode()
        entry = judge(JOB, NAME, blobs, {MANIFEST_NAME: text})
        if not entry.whole:
            return f"the manifest stands, but {entry.reason}"
        if msgspec.json.decode(text)["state"] != "complete":
            return "not complete"
    return ""
