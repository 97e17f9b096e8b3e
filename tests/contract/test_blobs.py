"""One suite for every backup store."""

import io
import threading
from pathlib import Path

import pytest

from checkpoint_replicator.blobs import Blob, BlobStore
from checkpoint_replicator.blobs.crc32c import crc32c_of
from checkpoint_replicator.blobs.directory import DirectoryBlobStore
from checkpoint_replicator.errors import CorruptError, ProtocolError, RefusedError
from support.memory_blobs import MemoryBlobStore


@pytest.fixture(params=["memory", "directory"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    if request.param == "memory":
        return MemoryBlobStore()
    return DirectoryBlobStore(tmp_path)


def put(blobs: BlobStore, name: str, data: bytes) -> bool:
    return blobs.put_new(name, io.BytesIO(data), len(data), crc32c_of(data))


def names(blobs: BlobStore, prefix: str) -> list[str]:
    return [blob.name for blob in blobs.list(prefix)]


def test_what_was_put_is_read_in_whole_and_in_parts(blobs: BlobStore) -> None:
    data = bytes(range(256)) * 8192
    assert put(blobs, "job/a/x.data", data)
    assert blobs.read("job/a/x.data", 0, len(data)) == data
    assert blobs.read("job/a/x.data", 1_000_000, 77) == data[1_000_000:1_000_077]
    assert blobs.read("job/a/x.data", 5, 0) == b""


def test_an_empty_object_is_an_object(blobs: BlobStore) -> None:
    assert put(blobs, "empty", b"")
    assert blobs.stat("empty") == Blob("empty", 0, "AAAAAA==")
    assert names(blobs, "") == ["empty"]


def test_stat_says_size_and_sum_or_nothing(blobs: BlobStore) -> None:
    put(blobs, "a/b", b"123456789")
    assert blobs.stat("a/b") == Blob("a/b", 9, "4waSgw==")
    assert blobs.stat("a/c") is None
    assert blobs.stat("a") is None


def test_a_repeated_write_is_no_write(blobs: BlobStore) -> None:
    assert put(blobs, "a", b"same")
    assert not put(blobs, "a", b"same")


def test_s83_other_content_under_a_taken_name_is_refused_and_the_first_stays(blobs: BlobStore) -> None:
    put(blobs, "a", b"first")
    with pytest.raises(RefusedError, match="expected 6 bytes"):
        put(blobs, "a", b"second")
    assert blobs.read("a", 0, 5) == b"first"


@pytest.mark.parametrize("given", [b"shor", b"longer than told", b"thas!"])
def test_a_source_that_gives_other_bytes_leaves_nothing(blobs: BlobStore, given: bytes) -> None:
    with pytest.raises(CorruptError):
        blobs.put_new("a", io.BytesIO(given), 5, crc32c_of(b"this!"))
    assert blobs.stat("a") is None
    assert names(blobs, "") == []


class Failing(io.RawIOBase):
    def readinto(self, _buffer: object) -> int:
        raise OSError(5, "the ramdisk is gone")

    def readable(self) -> bool:
        return True


def test_what_the_source_raises_comes_out_and_leaves_nothing(blobs: BlobStore) -> None:
    with pytest.raises(OSError, match="the ramdisk is gone"):
        blobs.put_new("a", io.BufferedReader(Failing()), 5, "AAAAAA==")
    assert blobs.stat("a") is None


def test_s85_a_read_beyond_the_end_is_an_error_and_not_fewer_bytes(blobs: BlobStore) -> None:
    put(blobs, "a", b"12345")
    with pytest.raises(CorruptError, match="expected 9 bytes, it ends at 5"):
        blobs.read("a", 2, 7)


def test_a_missing_object_is_not_found(blobs: BlobStore) -> None:
    put(blobs, "a/b", b"1")
    for name in ("a/c", "a", "x/y/z"):
        with pytest.raises(FileNotFoundError):
            blobs.read(name, 0, 1)


def test_a_listing_is_by_prefix_and_in_the_order_of_names(blobs: BlobStore) -> None:
    for name in ("job/b/c", "job/b.data", "job/b/a", "job-2/x", "job/b0", "jobs"):
        put(blobs, name, b"1")
    assert names(blobs, "job/") == ["job/b.data", "job/b/a", "job/b/c", "job/b0"]
    assert names(blobs, "job/b/") == ["job/b/a", "job/b/c"]
    assert names(blobs, "job/b") == ["job/b.data", "job/b/a", "job/b/c", "job/b0"]
    assert names(blobs, "job") == sorted(["job-2/x", "job/b.data", "job/b/a", "job/b/c", "job/b0", "jobs"])
    assert names(blobs, "nothing/here/") == []
    assert names(blobs, "") == names(blobs, "job")


def test_a_deleted_object_is_gone_and_its_name_free(blobs: BlobStore) -> None:
    put(blobs, "a/b/c", b"1")
    blobs.delete("a/b/c")
    blobs.delete("a/b/c")
    blobs.delete("never/was")
    assert names(blobs, "") == []
    assert put(blobs, "a/b/c", b"2")
    assert put(blobs, "a/b2", b"2")
    assert blobs.stat("a/b/c") == Blob("a/b/c", 1, crc32c_of(b"2"))


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/a",
        "a/",
        "a//b",
        "../a",
        "a/../b",
        "./a",
        "a\0b",
        "a\nb",
        "x" * 256,
        "a/" * 600 + "a",
        "\udcff",
        ".blobs/a",
    ],
)
def test_a_name_that_is_no_object_name_is_refused(blobs: BlobStore, name: str) -> None:
    with pytest.raises(ProtocolError):
        put(blobs, name, b"1")
    with pytest.raises(ProtocolError):
        blobs.read(name, 0, 1)
    with pytest.raises(ProtocolError):
        blobs.stat(name)
    with pytest.raises(ProtocolError):
        blobs.delete(name)


def test_of_many_writers_of_one_name_one_writes_and_all_are_content(blobs: BlobStore) -> None:
    data = b"x" * 3_000_000
    start = threading.Barrier(6)
    won: list[bool] = []

    def write() -> None:
        start.wait()
        won.append(put(blobs, "a/b", data))

    threads = [threading.Thread(target=write) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False] * 5 + [True]
    assert blobs.read("a/b", 0, len(data)) == data
    assert names(blobs, "") == ["a/b"]


def test_of_writers_with_different_bytes_one_wins_and_the_others_are_refused(blobs: BlobStore) -> None:
    start = threading.Barrier(4)
    refused: list[str] = []

    def write(letter: str) -> None:
        start.wait()
        try:
            put(blobs, "a", letter.encode() * 2_000_000)
        except RefusedError:
            refused.append(letter)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 3
    (winner,) = set("abcd") - set(refused)
    assert blobs.read("a", 0, 2_000_000) == winner.encode() * 2_000_000
