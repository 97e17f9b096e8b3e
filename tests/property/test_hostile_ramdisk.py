"""Whatever somebody does to our files on a ramdisk, a watcher and a transfer start, say what they found, and go on.

Nothing whole is lost over it: the bytes of every shard stay, and what was not touched is still held.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from checkpoint_replicator.errors import ReplicatorError
from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.hashing import hash_shard
from checkpoint_replicator.ids import Epoch, Job, Rank, SessionId, Step, Worker
from checkpoint_replicator.messages import NodeReport
from checkpoint_replicator.ramdisk import Ramdisk
from checkpoint_replicator.save import Save, ShardKey, Tag
from checkpoint_replicator.session import SessionSpec, SessionState
from checkpoint_replicator.wire import decode, encode
from checkpoint_watcher import effects as do
from checkpoint_watcher import events as did
from checkpoint_watcher.disk import Disk
from checkpoint_watcher.record import Claim, FenceRecord, Lineage, Marker, SessionRecord
from checkpoint_watcher.scan import Scanner
from checkpoint_watcher.snapshot import YamlIdentity
from support.factories import envelope
from support.shards import JOB, SHAPE, fill, fill_folder, tag_of

SHM = Path("/dev/shm")  # noqa: S108 - a real ramdisk, and faster than a disk
SPEC = SessionSpec(JOB, Rank(0), SHAPE)
RECORD = SessionRecord(
    SessionId("session"),
    YamlIdentity(1, 2, 3, "d"),
    1.5,
    SPEC,
    SessionState.RUNNING,
    epoch=Epoch(1),
    before=Lineage(SPEC, Epoch(1)),
    markers=(Marker("job-s1-n0-w0.restore"),),
)


class Scene:
    """A ramdisk with one of everything."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ramdisk = Ramdisk(root)
        self.disk = Disk(self.ramdisk, threads=1)
        self.own = self.name(fill(root / "own", 3000, 1), step=1)
        self.folder = self.name(fill_folder(root / "folder", 2), step=1, rank=1, own=False)
        self.ramdisk.commit(JOB, [self.own.save])
        self.fetched = hash_shard(fill(root / "fetched", 2_500_000, 3))
        with self.ramdisk.partial(self.fetched) as partial:
            partial.put(0, (root / "fetched").read_bytes()[: 1 << 20])
        fill(root / "job-s2-n0-w0.save", 500, 4)
        self.claim = Claim(JOB, Save(Epoch(1), Step(2)), SHAPE, ShardKey(Rank(0), Worker(0)))
        inode = (root / "job-s2-n0-w0.save").stat().st_ino
        assert isinstance(self.disk.perform(do.ClaimSave("job-s2-n0-w0.save", inode, self.claim)), did.SaveClaimed)
        self.disk.perform(do.WriteSession(RECORD))
        self.ramdisk.raise_fence(JOB, Stamp(3, Epoch(1), 5), self.own.save)
        self.ramdisk.raise_fence(Job("other"), Stamp(1, Epoch(1), 1))
        self.ramdisk.write_host("node-0")
        self.disk.perform(do.PublishStatus("{}"))
        self.disk.perform(do.PublishMarkers(SessionId("session"), (Marker("job-s1-n0-w0.restore", self.own.address),)))
        with self.ramdisk.hold("watcher", "an earlier one"), self.ramdisk.hold("transfer", "an earlier one"):
            pass
        self.bytes = {tag: self.read(tag) for tag in (self.own, self.folder)}

    def name(self, source: Path, *, own: bool = True, **where: int) -> Tag:
        tree = hash_shard(source)
        tag = tag_of(tree, **where)
        self.ramdisk.name_shard(source, tree, [tag], own=own)
        return tag

    def read(self, tag: Tag) -> dict[str, bytes]:
        data = self.ramdisk.layout.data(tag.address)
        files = [data] if data.is_file() else sorted(path for path in data.rglob("*") if path.is_file())
        return {str(path): path.read_bytes() for path in files}

    def targets(self) -> list[Path]:
        """Every file and directory of ours, and the public names; not the data."""
        private = self.ramdisk.layout.private
        found = sorted(path for path in private.rglob("*") if "handout" not in path.parts)
        return [*found, *sorted(self.root.glob("*.meta")), *sorted(self.root.glob("*.restore"))]

    def is_touched(self, tag: Tag, damaged: list[Path]) -> bool:
        """Whether damage at these paths concerns what we know of a shard."""
        known = (self.ramdisk.layout.sidecar(tag), self.ramdisk.layout.tree(tag.address))
        return any(path == one or path in one.parents for path in damaged for one in known)


@contextmanager
def scene() -> Iterator[Scene]:
    root = Path(tempfile.mkdtemp(dir=SHM if SHM.is_dir() else None))
    try:
        yield Scene(root)
    finally:
        shutil.rmtree(root)


def nested(depth: int) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth


def stretched(old: bytes) -> bytes:
    """Make every number huge."""
    return b"".join(bytes([byte]) * (30 if 0x30 <= byte <= 0x39 else 1) for byte in old)


def _gone(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _read(path: Path) -> bytes:
    """Read what is there, but no more than any file of ours has: an earlier damage may have made it a TiB long."""
    with path.open("rb") as file:
        return file.read(1 << 20)


def _put(content: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        old = _read(path) if path.is_file() else b""
        _gone(path)
        path.write_bytes(content(old))

    return damage


def _sparse(path: Path) -> None:
    _gone(path)
    with path.open("wb") as file:
        file.truncate((1 << 20) if "claims" in path.parts else (1 << 40))  # who saves a TiB has it hashed


def _pipe(path: Path) -> None:
    _gone(path)
    os.mkfifo(path)


def _folder(path: Path) -> None:
    _gone(path)
    path.mkdir()
    (path / os.fsdecode(b"stranger\n\xff")).write_bytes(b"x")


def _link(target: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        _gone(path)
        path.symlink_to(target)

    return damage


def _odd_neighbours(path: Path) -> None:
    """Put names beside it that nobody of us gives."""
    for name in (b"\xff\xfe", b"new\nline", b"-rf", b"a" * 255, b"..."):
        with suppress(OSError):
            (path.parent / os.fsdecode(name)).write_bytes(b"x")


DAMAGES: dict[str, Callable[[Path], None]] = {
    "gone": _gone,
    "empty": _put(lambda _: b""),
    "garbage": _put(lambda _: b"\xff\xfe\0garbage"),
    "torn": _put(lambda old: old[: len(old) // 2]),
    "doubled": _put(lambda old: old * 2),
    "changed": _put(lambda old: old.replace(b"1", b"2")),
    "stretched": _put(stretched),
    "negative": _put(lambda old: old.replace(b": ", b": -")),
    "deep": _put(lambda _: nested(100_000)),
    "null": _put(lambda _: b"null"),
    "list": _put(lambda _: b"[[], {}, 1e999]"),
    "sparse": _sparse,
    "pipe": _pipe,
    "folder": _folder,
    "link": _link("/etc/passwd"),
    "loop": _link("loop"),
    "neighbours": _odd_neighbours,
}


def use(scene: Scene) -> did.Started:
    """Do what a watcher and a transfer do at their start, and afterwards."""
    ramdisk = Ramdisk(scene.root)
    disk = Disk(ramdisk, threads=1)
    with ramdisk.hold("watcher", "a new one"), ramdisk.hold("transfer", "a new one"):
        ramdisk.write_host("node-0")
        started = disk.start()
        for address in {scene.own.address, scene.folder.address}:
            with suppress(ReplicatorError, FileNotFoundError), ramdisk.open_shard(address) as shard:
                shard.pread_leaf(0, bytearray(1 << 20))
            assert disk.verify(do.VerifyShard(address, Stamp(1, Epoch(1), 1))) is not None
        ramdisk.strays()
        ramdisk.partials()
        with ramdisk.partial(scene.fetched) as partial:
            for run in list(partial.missing()):
                for number in range(run.first, run.first + run.count):
                    start = number << 20
                    partial.put(number, (scene.root / "fetched").read_bytes()[start : start + (1 << 20)])
            assert partial.is_whole
        for claim in started.claims:
            if isinstance(hashed := disk.hash(do.HashClaim(claim)), did.ClaimHashed):
                tag = Tag(claim.job, claim.save, claim.shape, claim.key, hashed.address, hashed.size)
                assert disk.perform(do.NameShard(claim, tag)) is not None
        Scanner(scene.root, ramdisk.room).scan(1.0)
        disk.perform(do.WriteSession(RECORD))
        disk.perform(do.WriteFence(JOB, next(iter(started.fences.values()), FenceRecord())))
        disk.perform(do.PublishStatus("{}"))
        disk.perform(do.AppendErrors("a line"))
        disk.perform(do.CleanUp())
        disk.perform(do.MarkCommitted(JOB, scene.own.save))
        disk.sweep()
    return started


@given(st.lists(st.tuples(st.integers(0, 200), st.sampled_from(sorted(DAMAGES))), min_size=1, max_size=3))
@example([(0, "gone"), (9, "pipe")])
@example([(194, "changed"), (193, "changed")])
@example([(4, "sparse"), (4, "changed")])
@settings(max_examples=30)
def test_whatever_is_done_to_our_files_the_node_starts_and_what_is_whole_stays(damages: list[tuple[int, str]]) -> None:
    endure(damages)


def endure(damages: list[tuple[int, str]]) -> None:
    """Do the damage, and look at what must hold afterwards."""
    with scene() as now:
        touched = []
        for place, kind in damages:
            targets = now.targets()
            path = targets[place % len(targets)]
            DAMAGES[kind](path)
            touched.append(path)
        started = use(now)
        for reason in started.unreadable:
            assert reason.isprintable()
            assert len(reason) < 1000
        held = {held.tag for held in started.held}
        for tag in (now.own, now.folder):
            # Its sidecar and its `.meta` both name it; who changes both looks like us dropping it.
            if not (now.is_touched(tag, touched) and now.ramdisk.layout.meta(tag.name) in touched):
                assert now.read(tag) == now.bytes[tag]
            assert tag in held or now.is_touched(tag, touched)
        assert decode(encode(envelope(NodeReport(version=1, held=started.held))))
        fresh = now.name(fill(now.root / "fresh", 700, 9), step=9)
        assert fresh in {held.tag for held in Disk(Ramdisk(now.root)).start().held}


@pytest.mark.parametrize("kind", sorted(DAMAGES))
def test_every_kind_of_damage_to_every_file_of_ours_in_turn(kind: str) -> None:
    with scene() as first:
        count = len(first.targets())
    begin, step = (0, 1) if os.environ.get("HYPOTHESIS_PROFILE") == "deep" else (sorted(DAMAGES).index(kind) % 5, 5)
    for place in range(begin, count, step):
        endure([(place, kind)])
