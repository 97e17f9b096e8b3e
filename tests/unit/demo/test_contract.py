from pathlib import Path

import pytest

from checkpoint_replicator.demo.contract import (
    FailedError,
    LateError,
    MarkerError,
    announce,
    complaints,
    until,
    wait_for_markers,
)


def nothing_to_restore(local: Path, *names: str) -> None:
    (local / "replicator.prerestore").write_text("{}\n")
    for name in names:
        (local / name).touch()


def test_a_yaml_that_is_not_taken_is_late_and_stays_complete(tmp_path: Path) -> None:
    with pytest.raises(LateError, match=r"waited 0 s for replicator.yaml to be taken"):
        announce(tmp_path, {"job-name": "j", "nodes": 2}, timeout=0)
    assert (tmp_path / "replicator.yaml").read_text() == "job-name: j\nnodes: 2\n"
    assert [path.name for path in tmp_path.iterdir()] == ["replicator.yaml"]


def test_a_yaml_of_somebody_else_is_waited_for_and_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "replicator.yaml").write_text("mine")
    with pytest.raises(LateError, match=r"an earlier replicator.yaml"):
        announce(tmp_path, {}, timeout=0)
    assert (tmp_path / "replicator.yaml").read_text() == "mine"


def test_errors_are_told_and_failed_ends_the_job_and_both_are_taken_away(tmp_path: Path) -> None:
    assert complaints(tmp_path) == ""
    (tmp_path / "replicator.errors").write_text("small trouble\n")
    assert complaints(tmp_path) == "small trouble"
    (tmp_path / "replicator.failed").write_text("node 3 is dead\n")
    with pytest.raises(FailedError, match=r"replicator.failed: node 3 is dead"):
        complaints(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_empty_markers_of_step_0_mean_nothing_to_restore(tmp_path: Path) -> None:
    nothing_to_restore(tmp_path, "j-s0-n1-w0.restore", "j-s0-n1-w1.restore")
    markers = wait_for_markers(tmp_path, "j", 1, 2, timeout=0)
    assert markers.step is None
    assert set(markers.by_worker) == {0, 1}


def test_a_link_of_step_0_is_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "replicator.prerestore").write_text("restore-step: 0\n")
    (tmp_path / "x.data").touch()
    (tmp_path / "j-s0-n0-w0.restore").symlink_to("x.data")
    assert wait_for_markers(tmp_path, "j", 0, 1, timeout=0).step == 0


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (("k-s0-n0-w0.restore",), "k-s0-n0-w0.restore is not a marker of job j, rank 0"),
        (("j-s0-n1-w0.restore",), "not a marker of job j, rank 0"),
        (("odd.restore",), "not a marker"),
        (("j-s0-n0-w1.restore",), "markers disagree"),
        (("j-s4-n0-w0.restore",), "prerestore says '{}', the markers say 'restore-step: 4'"),
    ],
)
def test_wrong_markers_are_refused(tmp_path: Path, names: tuple[str, ...], text: str) -> None:
    nothing_to_restore(tmp_path, *names)
    with pytest.raises(MarkerError, match=text):
        wait_for_markers(tmp_path, "j", 0, 1, timeout=0)


def test_markers_that_do_not_come_are_late(tmp_path: Path) -> None:
    with pytest.raises(LateError, match=r"waited 0 s for replicator.prerestore"):
        wait_for_markers(tmp_path, "j", 0, 1, timeout=0)
    nothing_to_restore(tmp_path, "j-s0-n0-w0.restore")
    with pytest.raises(LateError, match=r"waited 0 s for 2 .restore marker"):
        wait_for_markers(tmp_path, "j", 0, 2, timeout=0)


def test_until_asks_again() -> None:
    answers = iter([None, None, 5])
    assert until("it", 60, lambda: next(answers)) == 5
