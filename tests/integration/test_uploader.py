"""The real uploader process over ZeroMQ; the test plays watcher, transfer and coordinator."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from checkpoint_replicator.backup import parse_manifest
from checkpoint_replicator.hashing import hash_shard
from checkpoint_replicator.messages import BackupResult
from checkpoint_replicator.ramdisk import Ramdisk
from checkpoint_replicator.tree import Tree
from support.backup_scene import JOB, NAME, Scene
from support.uploader_node import UploaderNode

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    shards = tmp_path / "shards"
    shards.mkdir()
    return Scene(shards)


@pytest.fixture
def ramdisk(tmp_path: Path, scene: Scene) -> Path:
    """A ramdisk that holds both shards; the sources stay beside it for comparing."""
    root = tmp_path / "ramdisk"
    root.mkdir()
    disk = Ramdisk(root)
    for path, tree, tag in zip((scene.file, scene.directory), scene.trees, scene.tags, strict=True):
        copy = tmp_path / "copy"
        subprocess.run(["cp", "-a", str(path), str(copy)], check=True)
        disk.name_shard(copy, tree, (tag,), own=True)
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "backups"
    folder.mkdir()
    return folder


async def back_up(node: UploaderNode, scene: Scene) -> None:
    answers: list[BackupResult] = []
    for order in (scene.reserve(), scene.upload(0), scene.upload(1), scene.seal()):
        answers.append(await node.one(order))
        assert answers[-1].done, answers[-1].reason
    answer = await node.one(scene.manifest(answers))
    assert answer.done, answer.reason


async def expect_whole(node: UploaderNode, scene: Scene) -> None:
    listing = await node.one(scene.simple("list"))
    assert listing.done, listing.reason
    (entry,) = listing.entries
    assert (entry.name, entry.whole, entry.reason, entry.tags) == (NAME, True, "", scene.tags)


async def expect_bytes(node: UploaderNode, scene: Scene) -> None:
    for source, tree in zip((scene.file, scene.directory), scene.trees, strict=True):
        fetched = await node.fetch(NAME, tree.address)
        assert (fetched.tree, fetched.bad) == (tree, []), fetched.reason
        for file in tree.files:
            path = source if file.path == b"." else source / file.path.decode()
            assert fetched.file(file.path) == path.read_bytes()


def broken_law(root: Path, scene: Scene) -> str:
    """Say what stands in the folder that must not."""
    folder = root / JOB / NAME
    if any(folder.glob("*.meta")):
        for source, tree in zip((scene.file, scene.directory), scene.trees, strict=True):
            data = folder / f"{tree.address}.data"
            for file in tree.files:
                path, original = (
                    (data, source) if file.path == b"." else (data / file.path.decode(), source / file.path.decode())
                )
                if not path.is_file() or path.read_bytes() != original.read_bytes():
                    return f"a .meta stands without {path}"
            if not (folder / f"{tree.address}.tree").is_file():
                return f"a .meta stands without the tree of {data}"
    if (folder / "MANIFEST.json").exists():
        manifest = parse_manifest((folder / "MANIFEST.json").read_bytes())
        for name, mark in manifest.objects.items():
            if not (folder / name).is_file() or (folder / name).stat().st_size != mark.size:
                return f"the manifest stands without {name}"
    return ""


async def test_a_backup_is_listed_whole_and_comes_back_byte_for_byte(ramdisk: Path, root: Path, scene: Scene) -> None:
    async with UploaderNode(ramdisk, root.as_uri(), JOB) as node:
        await back_up(node, scene)
        await expect_whole(node, scene)
        await expect_bytes(node, scene)
    assert broken_law(root, scene) == ""
    marks = sorted(path.name for path in (root / JOB / NAME).glob("*.meta"))
    assert marks == [f"{tag.name}.meta" for tag in scene.tags]
    for tag in scene.tags:
        assert (root / JOB / NAME / f"{tag.name}.meta").read_text() == tag.address


async def test_another_host_whose_ramdisk_is_empty_restores_from_the_backup(
    ramdisk: Path, root: Path, scene: Scene, tmp_path: Path
) -> None:
    async with UploaderNode(ramdisk, root.as_uri(), JOB) as node:
        await back_up(node, scene)
    empty = tmp_path / "empty"
    empty.mkdir()
    async with UploaderNode(empty, root.as_uri(), JOB) as node:
        await expect_whole(node, scene)
        await expect_bytes(node, scene)
        answer = await node.one(scene.upload(0))
        assert not answer.done
        assert scene.trees[0].address in answer.reason


DYING = """
import ctypes, os, shutil, signal, sys
from pathlib import Path
from checkpoint_replicator.blobs.directory import DirectoryBlobStore
from checkpoint_replicator.blobs.location import open_root
from checkpoint_replicator.process import service_command
from checkpoint_uploader.config import UploaderConfig
from checkpoint_uploader.service import serve

class Dying(DirectoryBlobStore):
    # Dies at the first object that it really creates: in the midst of writing it, or just behind.
    amid = False

    def put_new(self, name, source, size, crc32c):
        if self.amid and self.stat(name) is None:
            folder = self.path / ".blobs" / "partial"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "half").write_bytes(source.read(max(size // 2, 1)))
            os.kill(os.getpid(), signal.SIGKILL)
        if super().put_new(name, source, size, crc32c):
            os.kill(os.getpid(), signal.SIGKILL)
        return False

def run(config, runtime):
    store = open_root(config.backup)
    return serve(config, runtime, Dying(store.path, store.root))

snapshots = Path(sys.argv.pop(1))
root = Path(sys.argv.pop(1))
for death in range(1000):
    Dying.amid = death % 2 == 0
    life = os.fork()  # spares each life the imports; nothing was opened yet
    if life == 0:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # end with the parent
        service_command("uploader", UploaderConfig, run)()
    code = os.waitstatus_to_exitcode(os.waitpid(life, 0)[1])
    if code != -signal.SIGKILL:
        sys.exit(code)
    shutil.copytree(root, snapshots / str(death))
"""


async def test_killed_amid_and_behind_every_object_it_ends_in_one_whole_backup(
    ramdisk: Path, root: Path, scene: Scene, tmp_path: Path
) -> None:
    program = ("-c", DYING, str(tmp_path / "snapshots"), str(root))
    async with UploaderNode(ramdisk, root.as_uri(), JOB, program=program, options={"calls": "1"}) as node:
        await back_up(node, scene)
        await expect_whole(node, scene)
        await expect_bytes(node, scene)
    snapshots = list((tmp_path / "snapshots").iterdir())
    assert len(snapshots) == 2 * 10  # ORDER, 1 and 3 files of data, 2 trees, 2 marks, MANIFEST
    for snapshot in (*snapshots, root):
        assert broken_law(snapshot, scene) == "", snapshot
    assert [path.name for path in (root / JOB).iterdir()] == [NAME]
    assert list((root / ".blobs" / "partial").iterdir()) == []


async def test_two_uploaders_racing_for_the_same_orders_make_one_whole_backup(
    ramdisk: Path, root: Path, scene: Scene
) -> None:
    async with (
        UploaderNode(ramdisk, root.as_uri(), JOB) as one,
        UploaderNode(ramdisk, root.as_uri(), JOB) as other,
    ):
        await asyncio.gather(back_up(one, scene), back_up(other, scene))
        await expect_whole(one, scene)
        await expect_bytes(other, scene)
    assert broken_law(root, scene) == ""


@pytest.mark.parametrize("place", [0, (1 << 20) + 5])
async def test_a_flipped_byte_in_the_backup_is_found_by_the_receiver_and_only_its_leaf_is_bad(
    ramdisk: Path, root: Path, scene: Scene, place: int
) -> None:
    async with UploaderNode(ramdisk, root.as_uri(), JOB) as node:
        await back_up(node, scene)
        flip(root / JOB / NAME / f"{scene.trees[0].address}.data", place)
        fetched = await node.fetch(NAME, scene.trees[0].address)
        assert fetched.bad == [place >> 20]
        assert len(fetched.good) == scene.trees[0].leaves - 1


async def test_s45_a_shard_rewritten_on_the_ramdisk_is_never_backed_up(ramdisk: Path, root: Path, scene: Scene) -> None:
    async with UploaderNode(ramdisk, root.as_uri(), JOB) as node:
        assert (await node.one(scene.reserve())).done
        flip(ramdisk / f"{scene.trees[0].address}.data", 1 << 20)
        answer = await node.one(scene.upload(0))
        assert not answer.done
        assert "has other bytes than when it was hashed" in answer.reason
        assert node.alive
    assert [path.name for path in (root / JOB / NAME).iterdir()] == ["ORDER.json"]


def flip(path: Path, place: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)
        file.seek(place)
        file.write(bytes([byte[0] ^ 1]))


async def test_missing_data_is_answered_as_gone_with_the_reason(ramdisk: Path, root: Path, scene: Scene) -> None:
    async with UploaderNode(ramdisk, root.as_uri(), JOB) as node:
        await back_up(node, scene)
        (root / JOB / NAME / f"{scene.trees[0].address}.data").unlink()
        fetched = await node.fetch(NAME, scene.trees[0].address)
        assert fetched.tree == scene.trees[0]
        assert fetched.refusals[-1].gone
        fetched = await node.fetch("2020-01-01_00-00", scene.trees[0].address)
        assert (fetched.tree, fetched.refusals[-1].gone) == (None, True)
        assert "has no data of" in fetched.reason


async def test_a_backup_without_trees_is_ours_only_when_it_hashes_to_its_name(
    ramdisk: Path, root: Path, scene: Scene
) -> None:
    folder = root / JOB / NAME
    folder.mkdir(parents=True)
    (folder / f"{scene.trees[0].address}.data").write_bytes(scene.file.read_bytes())
    foreign = Tree.parse(hash_shard(scene.directory / "deep" / "a.bin").encode()).address
    (folder / f"{foreign}.data").write_bytes(b"something else")
    async with UploaderNode(ramdisk, root.as_uri(), JOB) as node:
        fetched = await node.fetch(NAME, scene.trees[0].address)
        assert fetched.file(b".") == scene.file.read_bytes()
        refused = await node.fetch(NAME, foreign)
        assert refused.refusals[-1].gone
        assert "with no tree, and its data hashes to" in refused.reason


async def test_a_root_that_is_not_there_is_unreachable_and_a_listing_is_never_empty(
    ramdisk: Path, tmp_path: Path, scene: Scene
) -> None:
    missing = tmp_path / "not-mounted"
    async with UploaderNode(ramdisk, missing.as_uri(), JOB) as node:
        for order in (scene.simple("list"), scene.reserve()):
            answer = await node.one(order)
            assert (answer.done, answer.entries) == (False, ())
            assert "expected the root of the backup store" in answer.reason
        missing.mkdir()
        await back_up(node, scene)
        await expect_whole(node, scene)


async def test_without_a_root_every_order_is_answered_with_no(ramdisk: Path, scene: Scene) -> None:
    async with UploaderNode(ramdisk, None, JOB) as node:
        answer = await node.one(scene.simple("list"))
        assert (answer.done, answer.reason) == (False, "no backup root is configured for this uploader")
        assert node.report is not None
        assert node.report.root is None
        refused = await node.fetch(NAME, scene.trees[0].address)
        assert refused.refusals[-1].gone


async def test_a_link_in_place_of_the_jobs_folder_leads_nowhere(
    ramdisk: Path, root: Path, scene: Scene, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / JOB).symlink_to(outside)
    async with UploaderNode(ramdisk, root.as_uri(), JOB) as node:
        for order in (scene.simple("list"), scene.reserve()):
            answer = await node.one(order)
            assert not answer.done
            assert "expected folders and files, neither links" in answer.reason
        assert node.alive
    assert list(outside.iterdir()) == []


@pytest.fixture(scope="module")
def inside() -> Callable[[str], tuple[str, ...]]:
    """Return what puts a command into a namespace with its own mounts, behind a line of shell that makes them."""
    for words in (("unshare", "-m"), ("unshare", "-rm")):
        probe = subprocess.run([*words, "mount", "-t", "tmpfs", "none", "/mnt"], check=False, capture_output=True)
        if probe.returncode == 0:
            return lambda script: (*words, "sh", "-c", f'{script} && exec "$@"', "sh")
    pytest.skip(
        "this machine permits no mounts in a namespace; what a full or forbidden store is told as has unit tests"
    )


async def test_a_full_store_is_a_clear_answer_and_the_process_lives(
    ramdisk: Path, root: Path, scene: Scene, inside: Callable[[str], tuple[str, ...]]
) -> None:
    prefix = inside(f"mount -t tmpfs -o size=1m none '{root}'")
    async with UploaderNode(ramdisk, root.as_uri(), JOB, prefix=prefix) as node:
        assert (await node.one(scene.reserve())).done
        answer = await node.one(scene.upload(0))
        assert not answer.done
        assert "No space left on device" in answer.reason
        listing = await node.one(scene.simple("list"))
        assert [(entry.whole, entry.reason) for entry in listing.entries] == [(False, "ordered, not finished")]
        assert node.alive


async def test_a_store_that_may_only_be_read_is_listed_and_restored_from_but_takes_nothing(
    ramdisk: Path, root: Path, scene: Scene, inside: Callable[[str], tuple[str, ...]]
) -> None:
    async with UploaderNode(ramdisk, root.as_uri(), JOB) as node:
        await back_up(node, scene)
    prefix = inside(f"mount --bind '{root}' '{root}' && mount -o remount,bind,ro '{root}'")
    async with UploaderNode(ramdisk, root.as_uri(), JOB, prefix=prefix) as node:
        await expect_whole(node, scene)
        await expect_bytes(node, scene)
        answer = await node.one(scene.simple("prune"))
        assert not answer.done
        assert "Read-only file system; expected to be allowed" in answer.reason
        assert node.alive


HANGING = """
import threading
from checkpoint_replicator.blobs.location import open_root
from checkpoint_replicator.process import service_command
from checkpoint_uploader.config import UploaderConfig
from checkpoint_uploader.service import serve

def run(config, runtime):
    store = open_root(config.backup)
    store.list = lambda prefix: iter(threading.Event().wait, True)
    return serve(config, runtime, store)

service_command("uploader", UploaderConfig, run)()
"""


async def test_s86_a_call_that_hangs_is_answered_and_then_ends_the_process_with_75(
    ramdisk: Path, root: Path, scene: Scene
) -> None:
    options = {"times": "store-silent=1s"}
    async with UploaderNode(ramdisk, root.as_uri(), JOB, program=("-c", HANGING), options=options) as node:
        answer = await node.one(scene.simple("list"))
        assert not answer.done
        assert answer.reason.startswith(f"list {JOB}: no bytes for 1 s")
        assert await node.ended() == 75


async def test_sigterm_ends_it_with_0_amid_an_upload(ramdisk: Path, root: Path, scene: Scene) -> None:
    async with UploaderNode(ramdisk, root.as_uri(), JOB) as node:
        assert (await node.one(scene.reserve())).done
        node.order(scene.upload(0), scene.simple("list"))
        assert node.process is not None
        node.process.terminate()
        assert await node.ended() == 0
    assert broken_law(root, scene) == ""


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--backup", "gs://bucket"], "gs:// is not supported yet"),
        (["--backup", "/plain/path"], "expected file:///folder"),
        (["--reads", "0"], "reads: expected 1 to 64, found 0"),
    ],
)
def test_a_wrong_configuration_is_refused_with_78(flags: list[str], text: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "checkpoint_uploader", "--ramdisk", str(tmp_path), *flags]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
    assert done.returncode == 78
    assert text in done.stderr
