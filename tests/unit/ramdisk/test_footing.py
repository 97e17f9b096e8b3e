"""Why a service cannot work with its working files."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from checkpoint_replicator.errors import TransientError
from checkpoint_replicator.ramdisk import Ramdisk
from checkpoint_replicator.ramdisk.footing import explain, footing


def missing(path: Path) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO])
def test_what_may_not_be_written_is_named_with_what_was_expected(tmp_path: Path, code: int) -> None:
    Ramdisk(tmp_path)
    text = f"{os.strerror(code)}, expected what uid {os.geteuid()} may read and write"
    lock = str(tmp_path / ".replicator" / "watcher.lock")
    assert explain(tmp_path, OSError(code, "x", lock)) == f"{lock}: {text}"
    assert explain(tmp_path, OSError(code, "x")) == f"{tmp_path}/.replicator: {text}"
    with pytest.raises(TransientError, match=r"watcher\.lock: ") as caught, footing(tmp_path):
        raise OSError(code, "x", lock)
    assert caught.value.exit_code == 75


@pytest.mark.parametrize("gone", [".", ".replicator", ".replicator/trash"])
def test_working_files_that_are_gone_are_named(tmp_path: Path, gone: str) -> None:
    root = tmp_path / "r"
    root.mkdir()
    layout = Ramdisk(root).layout
    shutil.rmtree(root / gone)
    with pytest.raises(TransientError) as caught, footing(root):
        raise missing(layout.trash)
    assert str(caught.value) == f"{root / gone}: is gone, expected a directory with the working files of this node"


def test_a_file_in_the_place_of_a_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / ".replicator").touch()
    with pytest.raises(TransientError, match="is a file, expected a directory with the working"), footing(tmp_path):
        Ramdisk(tmp_path)


def test_what_has_another_cause_stays_as_it_is(tmp_path: Path) -> None:
    layout = Ramdisk(tmp_path).layout
    with pytest.raises(FileNotFoundError), footing(tmp_path):
        layout.session.read_text()
    with pytest.raises(ValueError, match="x"), footing(tmp_path):
        raise ValueError("x")
    assert explain(tmp_path, OSError(errno.EMFILE, "x")) is None
