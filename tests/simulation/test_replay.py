"""What a machine was told can be told it again, and it decides the same."""

from pathlib import Path

import pytest

from checkpoint_replicator.inputlog import InputLog
from simulation import replay as desk
from simulation.replay import replay
from simulation.run import play


@pytest.fixture
def log(tmp_path: Path) -> Path:
    inputs = InputLog(tmp_path / "inputs")
    play(7, inputs=inputs)
    inputs.close()
    return tmp_path / "inputs"


def test_every_machine_decides_from_its_log_what_it_decided_then(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replayed = list(replay(log.read_bytes()))
    assert [one for one in replayed if not one.same] == []
    assert {one.machine.split()[0] for one in replayed} == {"watcher", "coordinator", "transfer", "uploader"}
    assert desk.main([str(log), "--quiet"]) == 0
    assert capsys.readouterr().out == f"{len(replayed)} events, 0 decided otherwise\n"


def test_a_machine_that_decides_otherwise_now_is_told(
    log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("checkpoint_coordinator.tenure.Tenure.may_act", lambda *_: False)
    assert desk.main([str(log), "--quiet"]) == 1
    assert "! decided then: " in capsys.readouterr().out


def test_a_line_that_is_none_of_a_log_is_named(log: Path) -> None:
    with pytest.raises(ValueError, match=r"^line 2: expected one of an input log, found b'rubbish'"):
        list(replay(log.read_bytes().splitlines()[0] + b"\nrubbish\n"))


def test_a_log_that_cannot_be_read_is_told_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rubbish = tmp_path / "rubbish"
    rubbish.write_text("rubbish\n")
    for path, told in ((tmp_path / "absent", "No such file"), (rubbish, "line 1: expected one of an input log")):
        with pytest.raises(SystemExit, match="2"):
            desk.main([str(path)])
        assert told in capsys.readouterr().err
