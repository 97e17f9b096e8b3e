"""What only a folder as backup store has; the rest is in tests/contract/test_blobs.py."""

import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from checkpoint_replicator.blobs import Blob
from checkpoint_replicator.blobs.crc32c import crc32c_of
from checkpoint_replicator.blobs.directory import DirectoryBlobStore
from checkpoint_replicator.errors import PermanentError, UnreachableError


def put(blobs: DirectoryBlobStore, name: str, data: bytes) -> bool:
    return blobs.put_new(name, io.BytesIO(data), len(data), crc32c_of(data))


def test_objects_are_plain_files_that_everybody_may_read(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        put(DirectoryBlobStore(tmp_path), "job/x/a.data", b"bytes")
    finally:
        os.umask(old)
    file = tmp_path / "job" / "x" / "a.data"
    assert file.read_bytes() == b"bytes"
    assert file.stat().st_mode & 0o777 == 0o644
    assert file.parent.stat().st_mode & 0o777 == 0o755
    assert file.stat().st_nlink == 1


def test_a_missing_root_is_unreachable_and_never_empty_or_made(tmp_path: Path) -> None:
    blobs = DirectoryBlobStore(tmp_path / "not-mounted")
    with pytest.raises(UnreachableError, match="expected the root of the backup store"):
        list(blobs.list("job/"))
    with pytest.raises(UnreachableError):
        put(blobs, "a", b"1")
    with pytest.raises(UnreachableError):
        blobs.read("a", 0, 1)
    with pytest.raises(UnreachableError):
        blobs.stat("a")
    assert not blobs.path.exists()


def test_a_root_that_is_a_file_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("x")
    with pytest.raises(PermanentError, match="Not a directory"):
        list(DirectoryBlobStore(tmp_path / "root").list(""))


def test_links_below_the_root_lead_nowhere(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a").write_bytes(b"secret")
    root = tmp_path / "root"
    root.mkdir()
    (root / "job").symlink_to(outside)
    (root / "file").symlink_to(outside / "a")
    blobs = DirectoryBlobStore(root)
    for name in ("job/a", "file"):
        with pytest.raises(PermanentError):
            blobs.read(name, 0, 1)
        with pytest.raises(PermanentError):
            blobs.stat(name)
        with pytest.raises(PermanentError):
            put(blobs, name, b"secret")
    with pytest.raises(PermanentError):
        put(blobs, "job/new", b"1")
    with pytest.raises(PermanentError):
        blobs.delete("job/a")
    with pytest.raises(PermanentError):
        list(blobs.list("job/"))
    assert [blob.name for blob in blobs.list("")] == []
    assert [path.name for path in outside.iterdir()] == ["a"]


def test_a_name_that_is_a_folder_is_not_free(tmp_path: Path) -> None:
    blobs = DirectoryBlobStore(tmp_path)
    put(blobs, "a/b", b"1")
    with pytest.raises(PermanentError, match="found a folder"):
        put(blobs, "a", b"1")
    with pytest.raises(PermanentError):
        put(blobs, "a/b/c", b"1")


def test_a_fifo_is_no_object_and_blocks_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a")
    blobs = DirectoryBlobStore(tmp_path)
    with pytest.raises(PermanentError, match="found a device, socket or fifo"):
        blobs.stat("a")
    assert list(blobs.list("")) == []


def test_an_object_that_others_wrote_is_listed_without_a_sum_and_stat_computes_it(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"123456789")
    blobs = DirectoryBlobStore(tmp_path)
    assert list(blobs.list("")) == [Blob("a", 9, "")]
    assert blobs.stat("a") == Blob("a", 9, "4waSgw==")
    assert list(blobs.list("")) == [Blob("a", 9, "4waSgw==")]


def test_an_object_that_was_replaced_from_outside_has_another_sum(tmp_path: Path) -> None:
    blobs = DirectoryBlobStore(tmp_path)
    put(blobs, "a", b"ours")
    (tmp_path / "new").write_bytes(b"them")
    (tmp_path / "new").rename(tmp_path / "a")
    assert blobs.stat("a") == Blob("a", 4, crc32c_of(b"them"))


WRITER = """
import io, os, signal, sys
from pathlib import Path
from checkpoint_replicator.blobs.directory import DirectoryBlobStore

class Dying(io.RawIOBase):
    def readable(self):
        return True
    def readinto(self, buffer):
        if self.tell_once:
            os.kill(os.getpid(), signal.SIGKILL)
        self.tell_once = True
        buffer[:1] = b"x"
        return 1
    tell_once = False

DirectoryBlobStore(Path(sys.argv[1])).put_new("job/a", Dying(), 2, "AAAAAA==")
"""


def test_a_killed_writer_leaves_no_object_and_the_next_write_sweeps(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", WRITER, str(tmp_path)], check=False, timeout=20)
    assert killed.returncode == -9
    partial = tmp_path / ".blobs" / "partial"
    assert len(list(partial.iterdir())) == 1
    blobs = DirectoryBlobStore(tmp_path)
    assert list(blobs.list("")) == []
    assert put(blobs, "job/a", b"xy")
    assert list(partial.iterdir()) == []


FORBIDDEN = """
import io, os, sys
from pathlib import Path
from checkpoint_replicator.blobs.directory import DirectoryBlobStore
from checkpoint_replicator.errors import PermanentError

root = Path(sys.argv[1])
root.chmod(int(sys.argv[2], 8))
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
blobs = DirectoryBlobStore(root)
try:
    list(blobs.list("")) if sys.argv[3] == "list" else blobs.put_new("a", io.BytesIO(), 0, "AAAAAA==")
except PermanentError as error:
    print(error)
"""


@pytest.mark.parametrize(("mode", "call"), [("000", "list"), ("000", "put"), ("555", "put")])
def test_what_the_file_system_forbids_is_forbidden_for_good(mode: str, call: str) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as root:  # nobody may enter pytest's own directories
        Path(root).chmod(0o755)
        command = [sys.executable, "-c", FORBIDDEN, root, mode, call]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=20)
        Path(root).chmod(0o755)
    assert "Permission denied; expected to be allowed" in done.stdout


def test_deleting_the_last_object_removes_its_folders_but_never_the_root(tmp_path: Path) -> None:
    blobs = DirectoryBlobStore(tmp_path)
    put(blobs, "job/x/a", b"1")
    put(blobs, "job/b", b"1")
    blobs.delete("job/x/a")
    assert not (tmp_path / "job" / "x").exists()
    blobs.delete("job/b")
    assert not (tmp_path / "job").exists()
    assert tmp_path.is_dir()


def test_a_sum_that_cannot_be_kept_costs_time_only(tmp_path: Path) -> None:
    (tmp_path / ".blobs").mkdir()
    (tmp_path / ".blobs" / "sums").write_text("in the way")
    blobs = DirectoryBlobStore(tmp_path)
    assert put(blobs, "a", b"123456789")
    assert blobs.stat("a") == Blob("a", 9, "4waSgw==")
    assert list(blobs.list("")) == [Blob("a", 9, "")]
    blobs.delete("a")
    assert list(blobs.list("")) == []
