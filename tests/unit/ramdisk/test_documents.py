from pathlib import Path

import pytest

from checkpoint_replicator.errors import ProtocolError
from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Epoch, Step
from checkpoint_replicator.ramdisk.documents import Document, FenceRecord, JobFence, StatusRecord
from checkpoint_replicator.ramdisk.files import Files
from checkpoint_replicator.save import Save
from support.shards import JOB

RECORD = StatusRecord(job="j", epoch=2, step=3, reasons=("why",))


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    document = Document(tmp_path / "status.json", StatusRecord, Files())
    assert document.read() is None
    document.write(RECORD)
    assert document.read() == RECORD
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]
    document.remove()
    document.remove()
    assert document.read() is None


@pytest.mark.parametrize("garbage", [b"", b"{", b"[]", b'{"job": 1}', b"\xff\xfe", b"null", b"[" * 100_000])
def test_garbage_names_the_file_and_stays(tmp_path: Path, garbage: bytes) -> None:
    path = tmp_path / "status.json"
    path.write_bytes(garbage)
    with pytest.raises(ProtocolError, match=r"status\.json"):
        Document(path, StatusRecord, Files()).read()
    assert path.read_bytes() == garbage


@pytest.mark.parametrize("again", [False, True])
def test_what_does_not_parse_is_kept_aside_and_makes_way(tmp_path: Path, *, again: bool) -> None:
    path = tmp_path / "status.json"
    if again:
        (tmp_path / "status.json.unreadable").write_bytes(b"earlier")
    path.write_bytes(b"garbage")
    document = Document(path, StatusRecord, Files())
    value, reason = document.salvage()
    assert value is None
    assert "status.json" in reason
    assert (tmp_path / "status.json.unreadable").read_bytes() == b"garbage"
    document.write(RECORD)
    assert document.salvage() == (RECORD, "")


def test_a_directory_in_its_place_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "fence.json").mkdir()
    with pytest.raises(ProtocolError, match=r"fence\.json"):
        Document(tmp_path / "fence.json", FenceRecord, Files()).read()


def test_fields_of_a_newer_build_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "fence.json"
    path.write_bytes(b'{"jobs": {}, "more": 1}')
    assert Document(path, FenceRecord, Files()).read() == FenceRecord()


def test_a_fence_is_never_lowered() -> None:
    high, low = Stamp(2, Epoch(5), 9), Stamp(1, Epoch(9), 9)
    newer, older = Save(Epoch(2), Step(1)), Save(Epoch(1), Step(100))
    held = FenceRecord().raised(JOB, keep=high, hold=True)
    assert held.raised(JOB, keep=low).of(JOB).hold
    assert not held.raised(JOB, keep=Stamp(high.token + 1, high.epoch, high.number)).of(JOB).hold
    record = FenceRecord().raised(JOB, high, newer, low).raised(JOB, low, older).raised(JOB)
    assert record.of(JOB) == JobFence(obeyed=high, newest_committed=newer, keep=low)
