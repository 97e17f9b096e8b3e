from pathlib import Path

import pytest

from checkpoint_replicator import leaf
from checkpoint_replicator.errors import CorruptError, ProtocolError
from checkpoint_replicator.hashing import hash_shard
from checkpoint_replicator.ids import Address, Job
from checkpoint_replicator.messages import Run
from checkpoint_replicator.tree import Tree
from checkpoint_uploader.archive import Archive
from checkpoint_uploader.progress import Progress
from checkpoint_uploader.source import BackupShard, open_backup_shard
from support.backup_scene import JOB, NAME, Scene
from support.memory_blobs import MemoryBlobStore

PREFIX = f"{JOB}/{NAME}/"


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.fixture
def store(scene: Scene) -> MemoryBlobStore:
    store = MemoryBlobStore()
    archive = Archive(store, scene.shards)
    for order in (scene.reserve(), scene.upload(0), scene.upload(1)):
        archive.perform(JOB, order, Progress())
    return store


def find(store: MemoryBlobStore, address: Address) -> BackupShard:
    return open_backup_shard(store, JOB, NAME, address, Progress())


def check(shard: BackupShard) -> None:
    """Every leaf by itself, and all in one run, are those of the tree."""
    for number in range(shard.tree.leaves):
        (data,) = shard.read([Run(first=number, count=1)], Progress())
        assert leaf.digest(data) == shard.tree.leaf(number).digest
    (whole,) = shard.read([Run(first=0, count=shard.tree.leaves)], Progress())
    assert len(whole) == shard.tree.size == sum(shard.sizes)


def test_a_file_and_a_directory_are_found_by_their_trees(store: MemoryBlobStore, scene: Scene) -> None:
    for tree in scene.trees:
        shard = find(store, tree.address)
        assert shard.tree == tree
        check(shard)


def test_runs_come_back_one_by_one(store: MemoryBlobStore, scene: Scene) -> None:
    shard = find(store, scene.trees[0].address)
    data = scene.file.read_bytes()
    first, last = shard.read([Run(first=0, count=1), Run(first=2, count=1)], Progress())
    assert (first, last) == (data[: 1 << 20], data[2 << 20 :])


def test_leaves_of_one_file_are_one_read(store: MemoryBlobStore, scene: Scene) -> None:
    shard = find(store, scene.trees[0].address)
    reads: list[str] = []
    store.before = lambda method, _name: reads.append(method)
    shard.read([Run(first=0, count=3)], Progress())
    assert reads == ["read"]


def without_empty_folder(scene: Scene) -> Tree:
    (scene.directory / "deep" / "empty-folder").rmdir()
    return hash_shard(scene.directory)


def test_data_without_a_tree_that_hashes_to_its_name_is_ours(scene: Scene) -> None:
    tree = without_empty_folder(scene)
    store = MemoryBlobStore()
    for file in tree.files:
        name = f"{PREFIX}{tree.address}.data/{file.path.decode()}"
        store.objects[name] = (scene.directory / file.path.decode()).read_bytes()
    shard = find(store, tree.address)
    assert shard.tree == tree
    check(shard)
    store.objects = {f"{PREFIX}{scene.trees[0].address}.data": scene.file.read_bytes()}
    check(find(store, scene.trees[0].address))


def test_data_without_a_tree_that_has_another_hash_is_no_shard() -> None:
    store = MemoryBlobStore()
    address = Address("D" + "1" * 64)
    store.objects[f"{PREFIX}{address}.data/state/a"] = b"1"
    with pytest.raises(CorruptError, match=r"with no tree, and its data hashes to D"):
        find(store, address)


@pytest.mark.parametrize("text", [b"", b"junk", b"ckpt-tree 1 blake3 1048576\nf 1 zz .\n"])
def test_a_bad_tree_is_made_anew_from_the_data(store: MemoryBlobStore, scene: Scene, text: bytes) -> None:
    address = scene.trees[0].address
    store.objects[f"{PREFIX}{address}.tree"] = text
    check(find(store, address))
    store.objects[f"{PREFIX}{address}.data"] = b"other"
    with pytest.raises(CorruptError, match="with a bad tree"):
        find(store, address)


def test_a_tree_of_another_shard_is_not_believed(store: MemoryBlobStore, scene: Scene) -> None:
    first, second = (tree.address for tree in scene.trees)
    store.objects[f"{PREFIX}{first}.tree"] = store.objects[f"{PREFIX}{second}.tree"]
    assert find(store, first).tree == scene.trees[0]


def test_what_is_not_there_is_not_found(store: MemoryBlobStore) -> None:
    with pytest.raises(FileNotFoundError, match="has no data"):
        find(store, Address("0" * 64))


def test_a_missing_or_short_object_is_an_error_when_it_is_read(store: MemoryBlobStore, scene: Scene) -> None:
    shard = find(store, scene.trees[0].address)
    name = f"{PREFIX}{scene.trees[0].address}.data"
    store.objects[name] = store.objects[name][:-1]
    with pytest.raises(CorruptError):
        shard.read([Run(first=2, count=1)], Progress())
    del store.objects[name]
    with pytest.raises(FileNotFoundError):
        shard.read([Run(first=0, count=1)], Progress())


@pytest.mark.parametrize(
    ("job", "backup", "address"), [("../x", NAME, "0" * 64), ("j", "..", "0" * 64), ("j", NAME, "../../etc/passwd")]
)
def test_names_that_are_none_are_refused(job: str, backup: str, address: str) -> None:
    with pytest.raises(ProtocolError):
        open_backup_shard(MemoryBlobStore(), Job(job), backup, Address(address), Progress())
