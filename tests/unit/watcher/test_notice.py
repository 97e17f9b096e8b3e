"""A trainer that waits learns why the watcher cannot begin."""

import errno
import os
from pathlib import Path

import pytest

from checkpoint_replicator.ramdisk import Ramdisk
from checkpoint_watcher.framework import QUIET
from checkpoint_watcher.notice import give_notice

REASON = "the watcher cannot begin: r: Read-only file system"


def listed(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def written(root: Path) -> float:
    """Let a trainer write its yaml beside what an earlier run left; returns when that was."""
    for name in ("1.save", "replicator.errors", "replicator.failed", "j-s1-n0-w0.restore", "j-s1-n0-w0.save"):
        (root / name).write_text("old")
    (root / "step=3").symlink_to("x.data")
    (root / "9.orbax-checkpoint-tmp").mkdir()
    (root / "7").mkdir()
    (root / "replicator.yaml").write_text("job-name: j\n")
    return (root / "replicator.yaml").stat().st_ctime


def test_a_yaml_that_stands_is_answered_after_what_a_trainer_would_take_for_its_answer_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    then = written(tmp_path)
    unlinked: list[str] = []
    unlink, rename = Path.unlink, Path.rename

    def note_unlink(path: Path, missing_ok: bool = False) -> None:
        unlinked.append(path.name)
        unlink(path, missing_ok)

    def note_rename(path: Path, target: Path) -> Path:
        unlinked.append(f"-> {target.name}")
        return rename(path, target)

    monkeypatch.setattr(Path, "unlink", note_unlink)
    monkeypatch.setattr(Path, "rename", note_rename)
    assert give_notice(tmp_path, REASON, then + QUIET, owned=False)
    assert (tmp_path / "replicator.failed").read_text() == f"{REASON}\n"
    left = ["1.save", "7", "9.orbax-checkpoint-tmp", "j-s1-n0-w0.save", "replicator.failed"]
    assert listed(tmp_path) == left
    assert unlinked[-2:] == ["replicator.yaml", "-> replicator.failed"]
    assert {"j-s1-n0-w0.restore", "step=3", "replicator.failed", "replicator.errors"} <= set(unlinked)


def test_a_yaml_that_is_fresh_or_being_written_or_none_is_left_alone(tmp_path: Path) -> None:
    assert not give_notice(tmp_path, REASON, 1e12, owned=False)
    then = written(tmp_path)
    before = listed(tmp_path)
    assert not give_notice(tmp_path, REASON, then + QUIET - 0.1, owned=False)
    with (tmp_path / "replicator.yaml").open("a"):
        assert not give_notice(tmp_path, REASON, then + QUIET, owned=False)
    assert listed(tmp_path) == before


def test_another_watcher_that_lives_answers_for_itself(tmp_path: Path) -> None:
    then = written(tmp_path)
    with Ramdisk(tmp_path).hold("watcher", "another"):
        assert not give_notice(tmp_path, REASON, then + QUIET, owned=False)
        assert (tmp_path / "replicator.yaml").exists()
        assert give_notice(tmp_path, REASON, then + QUIET, owned=True)


def test_where_the_directory_may_not_be_written_nothing_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    then = written(tmp_path)
    before = listed(tmp_path)
    opened = os.open

    def refuse(path: str | Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    assert not give_notice(tmp_path, REASON, then + QUIET, owned=False)
    assert listed(tmp_path) == before
