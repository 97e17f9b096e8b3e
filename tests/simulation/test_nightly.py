"""The nightly run in small."""

import json
from pathlib import Path

import pytest

from simulation import nightly


def test_a_night_reports_seeds_troubles_and_what_was_not_reached(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = nightly.main(["--seeds", "3", "--no-mutants", "--no-tests", "--build", str(tmp_path)])
    report = json.loads((tmp_path / "nightly.json").read_text())
    assert report["simulation"]["seeds"] == 3
    assert report["simulation"]["failed"] == []
    assert report["faults"] == [f"not reached: {name}" for name in report["simulation"]["not_reached"]]
    assert code == int(bool(report["faults"]))
    text = (tmp_path / "nightly.txt").read_text()
    assert capsys.readouterr().out == text + "\n"
    assert text.startswith("3 seeds from 0 on, ")
    assert report["simulation"]["small"]["seeds"] == 2
    assert f"small worlds: 2 seeds, {report['simulation']['small']['seeds_a_minute']} seeds a minute\n" in text


def test_a_fault_of_one_part_keeps_no_other_from_running_and_one_report_holds_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[str] = []

    def fail(arguments: list[str], log: Path | None = None) -> int:
        runs.append(f"{arguments[-1]} > {log.name if log is not None else 'here'}")
        return 1

    monkeypatch.setattr(nightly, "_run", fail)
    assert nightly.main(["--seeds", "0", "--no-mutants", "--build", str(tmp_path)]) == 1
    assert sorted(runs) == ["--all-crashes > nightly-crash.log", "nightly > nightly-tests.log"]
    report = json.loads((tmp_path / "nightly.json").read_text())
    assert (report["tests"]["code"], report["crash"]["code"]) == (1, 1)
    assert report["faults"][-2:] == ["tests that are marked nightly failed", "crash points or sequences failed"]
    text = (tmp_path / "nightly.txt").read_text()
    assert "crash points and sequences: exit code 1, see nightly-crash.log\n" in text
    assert "FAULT: crash points or sequences failed\n" in text


def test_a_seed_that_breaks_a_law_is_a_fault_of_the_night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulation.rest.PATIENCE", 0.0)
    assert nightly.main(["--seeds", "12", "--no-mutants", "--no-tests", "--build", str(tmp_path)]) == 1
    report = json.loads((tmp_path / "nightly.json").read_text())
    failed = report["simulation"]["failed"]
    assert failed  # some seeds come to rest at once, and patience is of no use to them
    assert report["faults"][: len(failed)] == [f"seed {seed} broke a law" for seed in failed]
    assert "law 6" in report["simulation"]["stories"][0]
