import errno
import os
from pathlib import Path

import pytest

from checkpoint_replicator.errors import NoRoomError
from checkpoint_replicator.ramdisk.files import Files, no_room


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        Files().make_folder(tmp_path / "d" / "e")
        Files().write(tmp_path / "d" / "f", b"x")
    finally:
        os.umask(old)
    assert mode(tmp_path / "d" / "e") == 0o755
    assert mode(tmp_path / "d" / "f") == 0o644


def test_a_file_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic"):
        Files().write(tmp_path / "link", b"x")
    assert not (tmp_path / "target").exists()


def test_removing_does_not_follow_links_and_is_idempotent(tmp_path: Path) -> None:
    keep = tmp_path / "keep"
    keep.mkdir()
    (keep / "f").write_bytes(b"x")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "link").symlink_to(keep)
    (tmp_path / "link").symlink_to(keep)
    for name in ("d", "link", "d", "none"):
        assert Files().remove(tmp_path / name)
    assert (keep / "f").exists()


def test_a_directory_that_nobody_may_write_to_is_removed(tmp_path: Path) -> None:
    (tmp_path / "d" / "e").mkdir(parents=True)
    (tmp_path / "d" / "e" / "f").write_bytes(b"x")
    (tmp_path / "d" / "e").chmod(0o555)
    (tmp_path / "d").chmod(0o555)
    (tmp_path / "to").mkdir()
    Files().rename(tmp_path / "d", tmp_path / "to" / "d")
    assert Files().remove(tmp_path / "to" / "d")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_file_system_is_no_room(tmp_path: Path, number: int) -> None:
    with pytest.raises(NoRoomError, match="no bytes or inodes left"), no_room(tmp_path):
        raise OSError(number, "full")


def test_another_error_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), no_room(tmp_path):
        raise PermissionError
