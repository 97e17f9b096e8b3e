from pathlib import Path

import pytest

from checkpoint_replicator.errors import RefusedError
from checkpoint_uploader.archive import Archive
from checkpoint_uploader.folder import BackupFolder
from checkpoint_uploader.progress import Progress
from checkpoint_uploader.sweep import abandon, prune
from support.backup_scene import JOB, NAME, Scene, broken_law
from support.memory_blobs import MemoryBlobStore


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def sealed(scene: Scene, *, complete: bool) -> MemoryBlobStore:
    store = MemoryBlobStore()
    archive = Archive(store, scene.shards, threads=1)
    archive.perform(JOB, scene.reserve(), Progress())
    answers = [archive.perform(JOB, scene.upload(rank), Progress()) for rank in range(2)]
    answers.append(archive.perform(JOB, scene.seal(), Progress()))
    if complete:
        archive.perform(JOB, scene.manifest(answers), Progress())
    store.log.clear()
    return store


def folder(store: MemoryBlobStore) -> BackupFolder:
    return BackupFolder(store, JOB, NAME, Progress())


def test_an_abandonment_closes_the_name_first_then_takes_the_marks_then_the_data(scene: Scene) -> None:
    store = sealed(scene, complete=False)
    abandon(folder(store), 1)
    below = [line.replace(f"{JOB}/{NAME}/", "") for line in store.log]
    assert below[0] == "put MANIFEST.json"
    assert [line.endswith(".meta") for line in below[1:3]] == [True, True]
    assert not any(line.endswith(".meta") for line in below[3:])
    assert sorted(store.objects) == [f"{JOB}/{NAME}/MANIFEST.json", f"{JOB}/{NAME}/ORDER.json"]


def test_an_abandonment_may_be_repeated_and_a_prune_then_takes_the_documents(scene: Scene) -> None:
    store = sealed(scene, complete=False)
    abandon(folder(store), 2)
    abandon(folder(store), 2)
    prune(folder(store), 2)
    assert store.objects == {}


def test_a_complete_backup_cannot_be_abandoned(scene: Scene) -> None:
    store = sealed(scene, complete=True)
    before = dict(store.objects)
    with pytest.raises(RefusedError, match="is complete"):
        abandon(folder(store), 1)
    assert store.objects == before


def test_a_backup_in_the_making_cannot_be_pruned(scene: Scene) -> None:
    store = sealed(scene, complete=False)
    with pytest.raises(RefusedError, match="expected it to be abandoned first"):
        prune(folder(store), 1)
    assert store.log == []


def test_a_pruned_backup_counts_for_nobody_at_any_moment(scene: Scene) -> None:
    for calls in range(1, 12):
        store = sealed(scene, complete=True)
        changes = 0

        def crash(method: str, _name: str, last: int = calls) -> None:
            nonlocal changes
            changes += method == "delete"
            if changes > last:
                raise KeyboardInterrupt

        store.before = crash
        try:
            prune(folder(store), 1)
        except KeyboardInterrupt:
            store.before = lambda _method, _name: None
            archive = Archive(store, scene.shards)
            (entry,) = archive.perform(JOB, scene.simple("list"), Progress()).entries
            assert not entry.whole
            marks = [name for name in store.objects if name.endswith(".meta")]
            assert not marks or broken_law(store, scene) == f"the manifest stands, but {entry.reason}"
            prune(folder(store), 1)
        assert store.objects == {}


def test_a_backup_of_google_may_be_pruned() -> None:
    store = MemoryBlobStore()
    store.objects = {f"{JOB}/{NAME}/{JOB}-s1-n0-w0.meta": b"x", f"{JOB}/{NAME}/x.data": b"1", f"{JOB}/other": b"1"}
    prune(folder(store), 1)
    assert list(store.objects) == [f"{JOB}/other"]
