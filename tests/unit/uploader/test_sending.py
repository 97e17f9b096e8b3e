from pathlib import Path

import pytest

from checkpoint_replicator.blobs import Blob
from checkpoint_replicator.errors import CorruptError, RefusedError, UnsupportedError
from checkpoint_replicator.ids import Address
from checkpoint_uploader.folder import BackupFolder
from checkpoint_uploader.progress import Progress
from checkpoint_uploader.sending import object_name, send_shard
from support.backup_scene import JOB, NAME, Scene
from support.memory_blobs import MemoryBlobStore


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def send(store: MemoryBlobStore, scene: Scene, address: Address) -> tuple[Blob, ...]:
    return send_shard(BackupFolder(store, JOB, NAME, Progress()), scene.shards, address, 2)


def test_a_file_is_one_object_and_its_tree_comes_after_it(scene: Scene) -> None:
    store = MemoryBlobStore()
    address = scene.trees[0].address
    stored = send(store, scene, address)
    assert store.log == [f"put {JOB}/{NAME}/{address}.data", f"put {JOB}/{NAME}/{address}.tree"]
    assert store.objects[f"{JOB}/{NAME}/{address}.data"] == scene.file.read_bytes()
    assert store.objects[f"{JOB}/{NAME}/{address}.tree"] == scene.trees[0].encode()
    assert list(stored) == list(store.list(""))


def test_a_directory_is_an_object_a_file_and_its_tree_comes_last(scene: Scene) -> None:
    store = MemoryBlobStore()
    address = scene.trees[1].address
    send(store, scene, address)
    below = f"{JOB}/{NAME}/{address}.data/"
    assert sorted(name.removeprefix(below) for name in store.objects) == [
        ".metadata",
        "b with space.bin",
        "deep/a.bin",
        f"{JOB}/{NAME}/{address}.tree",
    ]
    assert store.log[-1] == f"put {JOB}/{NAME}/{address}.tree"
    assert store.objects[below + "deep/a.bin"] == (scene.directory / "deep" / "a.bin").read_bytes()


def test_a_file_rewritten_after_hashing_never_lands(scene: Scene) -> None:
    store = MemoryBlobStore()
    with scene.file.open("r+b") as file:
        file.seek(1 << 20)
        file.write(b"rewritten")
    with pytest.raises(CorruptError, match="leaf at 1048576 has other bytes") as raised:
        send(store, scene, scene.trees[0].address)
    assert raised.value.kind == "mutated"
    assert store.objects == {}


def test_s84_a_file_truncated_after_hashing_never_lands(scene: Scene) -> None:
    store = MemoryBlobStore()
    with scene.file.open("r+b") as file:
        file.truncate(100)
    with pytest.raises(CorruptError):
        send(store, scene, scene.trees[0].address)
    assert store.objects == {}


def test_s84_a_file_rewritten_between_sum_and_sending_never_lands(scene: Scene) -> None:
    store = MemoryBlobStore()

    def rewrite(method: str, name: str) -> None:
        if method == "put_new" and name.endswith(".data"):
            with scene.file.open("r+b") as file:
                file.write(b"late")

    store.before = rewrite
    with pytest.raises(CorruptError):
        send(store, scene, scene.trees[0].address)
    assert store.objects == {}


def test_a_repeated_sending_writes_nothing_and_says_the_same(scene: Scene) -> None:
    store = MemoryBlobStore()
    first = send(store, scene, scene.trees[1].address)
    written = len(store.log)
    assert sorted(blob.name for blob in send(store, scene, scene.trees[1].address)) == sorted(b.name for b in first)
    assert len(store.log) == written


def test_foreign_bytes_under_the_name_are_refused(scene: Scene) -> None:
    store = MemoryBlobStore()
    store.objects[f"{JOB}/{NAME}/{scene.trees[0].address}.data"] = b"foreign"
    with pytest.raises(RefusedError):
        send(store, scene, scene.trees[0].address)


def test_a_shard_that_is_not_here_is_said_so(scene: Scene) -> None:
    with pytest.raises(FileNotFoundError, match="not on this ramdisk"):
        send(MemoryBlobStore(), scene, Address("0" * 64))


def test_a_path_that_is_not_utf8_is_unsupported_by_name() -> None:
    assert object_name(Address("Dab"), "ö/a".encode()) == "Dab.data/ö/a"
    assert object_name(Address("ab"), b".") == "ab.data"
    with pytest.raises(UnsupportedError, match=r"xff.*expected UTF-8"):
        object_name(Address("Dab"), b"\xff")
