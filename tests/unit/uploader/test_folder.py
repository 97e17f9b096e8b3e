import pytest

from checkpoint_replicator.backup import abandoned_document, order_document
from checkpoint_replicator.blobs import Blob
from checkpoint_replicator.errors import ProtocolError, RefusedError
from checkpoint_replicator.ids import Job
from checkpoint_uploader.folder import BackupFolder, read_text
from checkpoint_uploader.progress import Progress
from support.backup_scene import JOB, NAME, SAVE, SHAPE, STAMP
from support.memory_blobs import MemoryBlobStore


def folder(store: MemoryBlobStore) -> BackupFolder:
    return BackupFolder(store, JOB, NAME, Progress())


@pytest.mark.parametrize("name", ["", "..", "2026-01-02", "2026-01-02_03-04/x", "2026-13-02_03-04"])
def test_what_is_no_backup_name_is_refused(name: str) -> None:
    with pytest.raises(ProtocolError, match="backup name"):
        BackupFolder(MemoryBlobStore(), JOB, name, Progress())


def test_what_is_no_job_name_is_refused() -> None:
    with pytest.raises(ProtocolError, match=r"job is '\.\./x'"):
        BackupFolder(MemoryBlobStore(), Job("../x"), NAME, Progress())


def test_objects_are_named_below_the_directory() -> None:
    store = MemoryBlobStore()
    inner = folder(store)
    blob = inner.put("a/b", b"123456789")
    assert blob == Blob(f"{JOB}/{NAME}/a/b", 9, "4waSgw==")
    assert list(inner.objects()) == ["a/b"]
    assert inner.stat("a/b") == blob
    inner.delete("a/b")
    assert inner.objects() == {}


def test_a_repeated_document_is_done_and_another_is_refused() -> None:
    inner = folder(MemoryBlobStore())
    inner.put("ORDER.json", b"1")
    inner.put("ORDER.json", b"1")
    with pytest.raises(RefusedError):
        inner.put("ORDER.json", b"2")


def test_documents_are_read_as_what_they_are_or_are_absent() -> None:
    inner = folder(MemoryBlobStore())
    assert (inner.order(), inner.manifest()) == (None, None)
    inner.put("ORDER.json", order_document(stamp=STAMP, save=SAVE, shape=SHAPE).encode())
    inner.put("MANIFEST.json", abandoned_document().encode())
    order, manifest = inner.order(), inner.manifest()
    assert order is not None
    assert (order.save, order.shape) == (SAVE, SHAPE)
    assert manifest is not None
    assert manifest.state == "abandoned"


def test_a_meta_that_is_too_long_for_one_reads_as_empty() -> None:
    store = MemoryBlobStore()
    store.objects = {"a.meta": b"x" * 5000, "b.meta": b"\xff"}
    assert read_text(store, Blob("a.meta", 5000, "")) == ""
    assert read_text(store, Blob("b.meta", 1, "")) == "\ufffd"
