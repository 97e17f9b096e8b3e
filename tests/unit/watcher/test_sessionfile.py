"""`session.json` and its copy: one of both is enough."""

from pathlib import Path

import msgspec
import pytest

from checkpoint_replicator.ids import Epoch, Rank, SessionId
from checkpoint_replicator.ramdisk import Ramdisk
from checkpoint_replicator.session import SessionSpec, SessionState
from checkpoint_watcher.record import Marker, SessionRecord
from checkpoint_watcher.sessionfile import SessionFile, session_fault
from checkpoint_watcher.snapshot import YamlIdentity
from support.watcher_story import JOB, SHAPE

RECORD = SessionRecord(
    SessionId("session"), YamlIdentity(1, 2, 3, "d"), 1.5, SessionSpec(JOB, Rank(0), SHAPE), SessionState.OPEN
)
RUNNING = msgspec.structs.replace(RECORD, state=SessionState.RUNNING, epoch=Epoch(4), consumed_at=2.0)


@pytest.fixture
def ramdisk(tmp_path: Path) -> Ramdisk:
    return Ramdisk(tmp_path)


@pytest.fixture
def file(ramdisk: Ramdisk) -> SessionFile:
    file = SessionFile(ramdisk)
    assert file.salvage() == (None, "")
    file.write(RECORD)
    file.write(RUNNING)
    return file


@pytest.mark.parametrize("garbage", [None, b"", b"\xff", b"[" * 100_000])
def test_a_session_whose_file_is_lost_goes_on_with_its_copy(
    file: SessionFile, ramdisk: Ramdisk, garbage: bytes | None
) -> None:
    path = ramdisk.layout.session
    path.unlink() if garbage is None else path.write_bytes(garbage)
    session, fault = file.salvage()
    assert session == RUNNING
    assert fault.startswith(f"{path}: is missing" if garbage is None else f"{path}: ")
    assert fault.endswith("; went on with session.copy.json")
    assert path.with_name("session.json.unreadable").exists() is (garbage is not None)
    assert file.salvage() == (RUNNING, "")


def test_a_lost_copy_is_written_with_the_next_change(file: SessionFile, ramdisk: Ramdisk) -> None:
    ramdisk.layout.session_copy.write_bytes(b"?")
    assert file.salvage() == (RUNNING, "")
    file.write(RECORD)
    ramdisk.layout.session.unlink()
    assert file.salvage()[0] == RECORD


def test_where_both_are_lost_both_are_named(file: SessionFile, ramdisk: Ramdisk) -> None:
    for path in (ramdisk.layout.session, ramdisk.layout.session_copy):
        path.write_bytes(b"?")
    session, fault = file.salvage()
    assert session is None
    assert "kept as session.json.unreadable; " in fault
    assert fault.endswith("kept as session.copy.json.unreadable")


def test_a_session_that_was_forgotten_does_not_come_back(file: SessionFile) -> None:
    file.remove()
    assert file.salvage() == (None, "")


def test_what_no_session_of_ours_can_say_is_named() -> None:
    assert session_fault(RECORD) == ""
    assert session_fault(msgspec.structs.replace(RECORD, markers=(Marker("../x.restore"),))) == (
        "expected names of markers, found '../x.restore'"
    )
