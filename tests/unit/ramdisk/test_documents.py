from pathlib import Path

import pytest

from checkpoint_replicator.errors import ProtocolError
from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Epoch, Rank, SessionId, Step
from checkpoint_replicator.ramdisk.documents import Document, FenceRecord, JobFence, SessionRecord, YamlIdentity
from checkpoint_replicator.ramdisk.files import Files
from checkpoint_replicator.save import Save
from checkpoint_replicator.session import Session, SessionSpec, SessionState
from support.shards import JOB, SHAPE

RECORD = SessionRecord(
    session=Session(SessionId("s"), SessionSpec(JOB, Rank(0), SHAPE), SessionState.OPEN),
    yaml=YamlIdentity(inode=1, size=2, changed=3, digest="ab"),
    verified=Stamp(1, Epoch(2), 3),
)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    document = Document(tmp_path / "session.json", SessionRecord, Files())
    assert document.read() is None
    document.write(RECORD)
    assert document.read() == RECORD
    assert [path.name for path in tmp_path.iterdir()] == ["session.json"]
    document.remove()
    document.remove()
    assert document.read() is None


@pytest.mark.parametrize("garbage", [b"", b"{", b"[]", b'{"session": 1}', b"\xff\xfe", b"null", b"[" * 100_000])
def test_garbage_names_the_file_and_stays(tmp_path: Path, garbage: bytes) -> None:
    path = tmp_path / "session.json"
    path.write_bytes(garbage)
    with pytest.raises(ProtocolError, match=r"session\.json"):
        Document(path, SessionRecord, Files()).read()
    assert path.read_bytes() == garbage


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
    record = FenceRecord().raised(JOB, high, newer).raised(JOB, low, older).raised(JOB)
    assert record.of(JOB) == JobFence(obeyed=high, newest_committed=newer)
