from pathlib import Path

import pytest

from checkpoint_replicator.errors import ProtocolError, UnreachableError
from checkpoint_replicator.ids import Job
from checkpoint_replicator.messages import BackupEntry
from checkpoint_replicator.records import BackupOrder
from checkpoint_uploader.archive import Archive
from checkpoint_uploader.listing import forced_restore, list_backups, remove_forced
from checkpoint_uploader.progress import Progress
from support.backup_scene import JOB, NAME, FolderShards, Scene
from support.memory_blobs import MemoryBlobStore

FILE = "a" * 64
FOLDER = "D" + "b" * 64


def listed(store: MemoryBlobStore, most_tags: int = 100) -> tuple[BackupEntry, ...]:
    return list_backups(store, JOB, Progress(), most_tags)


def google(name: str, ranks: int = 2) -> dict[str, bytes]:
    prefix = f"{JOB}/{name}/"
    marks = {f"{prefix}{JOB}-s5-n{rank}-w0.meta": FOLDER.encode() for rank in range(ranks)}
    return {**marks, f"{prefix}{FOLDER}.data/state/a": b"12", f"{prefix}{FOLDER}.data/state/b": b"3"}


def test_a_job_without_backups_has_an_empty_list() -> None:
    store = MemoryBlobStore()
    store.objects = {"llama-2/2026-01-02_03-04/x": b"", f"{JOB}/restore.version": b"", f"{JOB}/notes/x": b""}
    assert listed(store) == ()


def test_a_job_name_that_is_none_is_refused() -> None:
    with pytest.raises(ProtocolError):
        list_backups(MemoryBlobStore(), Job("a/b"), Progress())


def test_a_backup_of_google_counts_when_its_marks_cover_all_and_name_data() -> None:
    store = MemoryBlobStore()
    store.objects = google(NAME)
    (entry,) = listed(store)
    assert entry.whole
    assert [(tag.save.epoch, tag.save.step, tag.key.rank, tag.address, tag.size) for tag in entry.tags] == [
        (0, 5, 0, FOLDER, 3),
        (0, 5, 1, FOLDER, 3),
    ]


def test_a_backup_of_google_with_missing_data_does_not_count() -> None:
    store = MemoryBlobStore()
    store.objects = {**google(NAME), f"{JOB}/{NAME}/{JOB}-s5-n2-w0.meta": FILE.encode()}
    (entry,) = listed(store)
    assert (entry.whole, entry.reason) == (False, f"{JOB}-s5-n2-w0.meta names {FILE[:12]}…, which is missing")


def test_backups_come_newest_first_and_an_unfinished_one_says_whose_it_is(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    store = MemoryBlobStore()
    store.objects = google("2025-12-31_23-59")
    Archive(store, scene.shards).perform(JOB, scene.reserve(), Progress())
    newest, oldest = listed(store)
    assert (newest.name, newest.whole, newest.order) == (NAME, False, scene.reserve().document)
    assert (oldest.name, oldest.whole) == ("2025-12-31_23-59", True)


def test_more_shards_than_an_answer_may_hold_cost_the_older_backups_theirs() -> None:
    store = MemoryBlobStore()
    store.objects = {**google("2026-01-01_00-00"), **google("2026-01-02_00-00"), **google("2026-01-03_00-00")}
    found = [(entry.whole, len(entry.tags)) for entry in listed(store, most_tags=4)]
    assert found == [
        (True, 2),
        (True, 2),
        (False, 0),
    ]
    assert [entry.whole for entry in listed(store, most_tags=1)] == [True, False, False]
    assert "newer backups have 1 shards already" in listed(store, most_tags=1)[1].reason


def test_a_manifest_that_came_while_its_backup_was_listed_counts(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    done = MemoryBlobStore()
    archive = Archive(done, scene.shards)
    archive.perform(JOB, scene.reserve(), Progress())
    answers = [archive.perform(JOB, scene.upload(rank), Progress()) for rank in range(2)]
    answers.append(archive.perform(JOB, scene.seal(), Progress()))
    archive.perform(JOB, scene.manifest(answers), Progress())
    missing = min(done.objects)
    late = done.objects.pop(missing)

    def arrive(method: str, name: str) -> None:
        if method == "read" and name.endswith("MANIFEST.json"):
            done.objects[missing] = late

    done.before = arrive
    (entry,) = listed(done)
    assert entry.whole


def test_a_document_that_goes_while_it_is_read_does_not_end_the_listing() -> None:
    store = MemoryBlobStore()
    store.objects = google(NAME)

    def prune(method: str, name: str) -> None:
        if method == "read":
            store.objects.pop(name, None)

    store.before = prune
    (entry,) = listed(store)
    assert (entry.whole, entry.reason) == (False, f"{JOB}-s5-n0-w0.meta went while it was read")


# ---- restore.version


def test_a_listing_tells_what_people_want_restored() -> None:
    store = MemoryBlobStore()
    archive = Archive(store, FolderShards())
    order = BackupOrder(id="l", kind="list")
    assert archive.perform(JOB, order, Progress()).forced == ""
    store.objects[f"{JOB}/restore.version"] = f"{NAME}\n".encode()
    assert archive.perform(JOB, order, Progress()).forced == f"{NAME}\n"


@pytest.mark.parametrize("content", [b"\xff\xfe", b"x" * 10_000, b""])
def test_whatever_stands_in_the_file_is_told_and_no_more_of_it_than_makes_sense(content: bytes) -> None:
    store = MemoryBlobStore()
    store.objects[f"{JOB}/restore.version"] = content
    assert len(forced_restore(store, JOB, Progress())) == min(len(content), 4096)


def test_a_store_that_does_not_answer_for_the_file_makes_no_listing() -> None:
    def silent(method: str, name: str) -> None:
        raise UnreachableError(f"{method} {name}: no answer")

    store = MemoryBlobStore()
    store.before = silent
    with pytest.raises(UnreachableError):
        Archive(store, FolderShards()).perform(JOB, BackupOrder(id="l", kind="list"), Progress())


def test_the_file_is_removed_only_where_it_says_what_was_fulfilled() -> None:
    store = MemoryBlobStore()
    archive = Archive(store, FolderShards())
    store.objects[f"{JOB}/restore.version"] = b"2026-01-02_03-05\n"
    assert archive.perform(JOB, BackupOrder(id="u", kind="unforce", document=NAME), Progress()).done
    assert f"{JOB}/restore.version" in store.objects
    assert archive.perform(JOB, BackupOrder(id="u", kind="unforce", document="2026-01-02_03-05"), Progress()).done
    assert store.objects == {}
    assert archive.perform(JOB, BackupOrder(id="u", kind="unforce", document=NAME), Progress()).done


def test_the_file_of_a_name_that_is_no_job_is_refused() -> None:
    with pytest.raises(ProtocolError):
        remove_forced(MemoryBlobStore(), Job("a/b"), NAME, Progress())
