"""Shards on disk for tests, and files that crash on purpose."""

from pathlib import Path

from blake3 import blake3

from checkpoint_replicator.hashing import hash_shard
from checkpoint_replicator.ids import Epoch, Job, Rank, Step, Worker
from checkpoint_replicator.ramdisk import Ramdisk
from checkpoint_replicator.ramdisk.files import Files
from checkpoint_replicator.save import Save, ShardKey, Tag
from checkpoint_replicator.shape import Shape
from checkpoint_replicator.tree import Tree

JOB = Job("job")
SHAPE = Shape(nodes=2, workers=1, d=1, framework="pytorch")


def fill(path: Path, size: int, seed: int = 0) -> Path:
    """Write a file of bytes that follow from the seed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(blake3(b"%d" % seed).digest(length=size))
    return path


def fill_folder(path: Path, seed: int = 0) -> Path:
    """Write a directory with files in two levels, an empty file and an empty directory."""
    fill(path / "a", 1000, seed)
    fill(path / "sub" / "b", (1 << 20) + 5, seed + 1)
    fill(path / "sub" / "empty", 0)
    (path / "void").mkdir()
    return path


def tag_of(tree: Tree, step: int = 1, epoch: int = 1, rank: int = 0, worker: int = 0) -> Tag:
    """Return a tag for a shard."""
    return Tag(
        JOB, Save(Epoch(epoch), Step(step)), SHAPE, ShardKey(Rank(rank), Worker(worker)), tree.address, tree.size
    )


def named(ramdisk: Ramdisk, source: Path, *tags: Tag, own: bool = True, **where: int) -> Tag:
    """Hash a source and name it; returns its first tag."""
    tree = hash_shard(source)
    wanted = tags or (tag_of(tree, **where),)
    ramdisk.name_shard(source, tree, wanted, own=own)
    return wanted[0]


class Crash(BaseException):
    """The process was killed here; no code of ours may catch it."""


class CrashingFiles(Files):
    """Lets `left` changes happen and dies at the next one; a file that is being written is torn."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.done: list[str] = []

    def _step(self, what: str) -> None:
        if self.left == 0:
            raise Crash(what)
        self.left -= 1
        self.done.append(what)

    def write(self, path: Path, data: bytes) -> None:
        try:
            self._step(f"write {path.name}")
        except Crash:
            path.write_bytes(data[: len(data) // 2])
            raise
        super().write(path, data)

    def rename(self, source: Path, target: Path) -> None:
        self._step(f"rename {source.name} to {target.parent.name}/{target.name}")
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._step(f"unlink {path.name}")
        super().unlink(path)

    def make_folder(self, path: Path) -> None:
        if not path.is_dir():
            self._step(f"make folder {path.name}")
        super().make_folder(path)

    def link(self, target: Path, name: Path) -> None:
        self._step(f"link {name.name}")
        super().link(target, name)

    def point(self, name: Path, target: str) -> None:
        self._step(f"point {name.name}")
        super().point(name, target)

    def remove(self, path: Path) -> bool:
        self._step(f"remove {path.name}")
        return super().remove(path)
