"""Data without a sidecar."""

import threading
from pathlib import Path

import pytest
from blake3 import blake3

from checkpoint_replicator.hashing import hash_shard
from checkpoint_replicator.ids import Epoch, Job, Rank, SessionId, Step, Worker
from checkpoint_replicator.messages import Held
from checkpoint_replicator.ramdisk import Ramdisk
from checkpoint_replicator.save import Save, ShardKey, Tag
from checkpoint_replicator.session import SessionSpec
from checkpoint_replicator.shape import Shape
from checkpoint_watcher import effects as do
from checkpoint_watcher import events as did
from checkpoint_watcher.strays import Strays
from support.shards import fill, fill_folder
from support.watcher_shell import ModelRamdisk, WatcherShell
from support.watcher_story import JOB, open_session, tag

SHAPE = Shape(2, 1, 1, "pytorch")
SPEC = SessionSpec(JOB, Rank(0), SHAPE)
SESSION = SessionId("session")


class Scene:
    """A ramdisk whose `.replicator` was lost, or that another replicator wrote."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ramdisk = Ramdisk(root)
        self.stopping = threading.Event()
        self.strays = Strays(self.ramdisk, 1, self.stopping)

    def put(self, source: Path, name: str = "j-s5-n0-w0", address: str = "") -> str:
        """Give data its public names, without a sidecar."""
        address = address or hash_shard(source).address
        source.rename(self.root / f"{address}.data")
        self.meta(name, address)
        return address

    def meta(self, name: str, text: str) -> None:
        (self.root / f"{name}.meta").write_text(text)

    def adopt(self, spec: SessionSpec = SPEC) -> did.StraysAdopted:
        answer = self.strays.adopt(do.AdoptStrays(SESSION, spec))
        assert answer is not None
        return answer

    def tag(self, rank: int = 0, step: int = 5) -> Tag:
        (address,) = {path.name.removesuffix(".data") for path in self.root.glob("*.data")}
        tree = self.ramdisk.tree(address)  # type: ignore[arg-type]
        key = ShardKey(Rank(rank), Worker(0))
        return Tag(JOB, Save(Epoch(0), Step(step)), SHAPE, key, tree.address, tree.size)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.mark.parametrize("folder", [True, False])
def test_data_whose_bytes_make_its_name_gets_its_sidecar_again(scene: Scene, *, folder: bool) -> None:
    address = scene.put(fill_folder(scene.root / "x") if folder else fill(scene.root / "x", 3_000_000))
    answer = scene.adopt()
    assert answer == did.StraysAdopted(SESSION, (Held(tag=scene.tag(), own=True),))
    assert answer.adopted[0].tag.address == address
    assert scene.ramdisk.stands(answer.adopted[0].tag.address)
    assert (scene.root / "j-s5-n0-w0.meta").read_text() == address
    assert scene.adopt() == did.StraysAdopted(SESSION)


def test_a_file_that_another_replicator_named_by_its_blake3_gets_our_name(scene: Scene) -> None:
    source = fill(scene.root / "x", 3_000_000)
    scene.put(source, address=blake3(source.read_bytes()).hexdigest())
    answer = scene.adopt()
    assert answer == did.StraysAdopted(SESSION, (Held(tag=scene.tag(), own=True),))
    assert (scene.root / "j-s5-n0-w0.meta").read_text() == scene.tag().address
    assert len(list(scene.root.glob("*.data"))) == 1


def test_bytes_that_two_ranks_share_get_both_names(scene: Scene) -> None:
    address = scene.put(fill(scene.root / "x", 10))
    scene.meta("j-s5-n1-w0", address)
    assert scene.adopt().adopted == (Held(tag=scene.tag(), own=True), Held(tag=scene.tag(rank=1), own=False))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a" * 64, "No such file"),
        ("../../etc/passwd", "holds no address but '../../etc/passwd'"),
        ("", "holds no address but ''"),
    ],
)
def test_a_meta_without_its_data_is_left_alone_with_the_reason(scene: Scene, text: str, reason: str) -> None:
    scene.meta("j-s5-n0-w0", text)
    (refused,) = scene.adopt().refused
    assert refused.startswith("j-s5-n0-w0: ")
    assert reason in refused
    assert (scene.root / "j-s5-n0-w0.meta").read_text() == text


def test_s05_corrupt_data_is_not_taken_and_not_touched(scene: Scene) -> None:
    address = scene.put(fill(scene.root / "x", 10))
    (scene.root / f"{address}.data").write_bytes(b"other")
    (refused,) = scene.adopt().refused
    assert "its bytes hash to " in refused
    assert (scene.root / f"{address}.data").read_bytes() == b"other"
    assert scene.ramdisk.sidecars() == ()


def test_a_step_that_has_more_ranks_than_the_session_is_of_another_shape(scene: Scene) -> None:
    address = scene.put(fill(scene.root / "x", 10))
    scene.meta("j-s5-n2-w0", address)
    scene.meta("j-s4-n1-w0", address)
    answer = scene.adopt()
    assert [held.tag.save.step for held in answer.adopted] == [4]
    assert len(answer.refused) == 2
    assert "is of a save of more than 2 nodes x 1 worker" in answer.refused[0]


def test_fault_23_another_jobs_data_is_not_taken(scene: Scene) -> None:
    scene.put(fill(scene.root / "x", 10), name="other-s5-n0-w0")
    assert scene.adopt() == did.StraysAdopted(SESSION)
    assert scene.adopt(SessionSpec(Job("other"), Rank(0), SHAPE)).adopted


def test_a_stop_ends_it_without_an_answer(scene: Scene) -> None:
    scene.put(fill(scene.root / "x", 3_000_000))
    scene.stopping.set()
    assert scene.strays.adopt(do.AdoptStrays(SESSION, SPEC)) is None


def test_a_node_has_not_told_all_before_its_strays_are_looked_at(disk: ModelRamdisk) -> None:
    shell = WatcherShell(disk, hold=(do.AdoptStrays,)).start()
    session = open_session(shell)
    shell.wait(3)
    assert not shell.report.complete
    later = WatcherShell(disk, incarnation="w2", hold=(do.AdoptStrays,)).start()
    assert later.all(do.AdoptStrays) == [do.AdoptStrays(session, SPEC)]
    held = Held(tag=tag(5, epoch=0), own=True)
    later.feed(did.StraysAdopted(session, (held,), ("j-s4-n0-w0: is corrupt",)))
    later.scan()
    later.wait(1)
    assert later.report.complete
    assert later.report.held == (held,)
    (fault,) = later.report.faults
    assert (fault.kind, fault.reason) == ("stray", "1 shards without a sidecar are not taken: j-s4-n0-w0: is corrupt")
