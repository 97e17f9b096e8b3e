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
    Files().write(tmp_path / "link", b"x")
    assert not (tmp_path / "target").exists()
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "link").read_bytes() == b"x"


def test_a_file_is_not_written_through_a_second_name_of_another_or_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"precious")
    (tmp_path / "second").hardlink_to(tmp_path / "precious")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder" / "sub").mkdir(parents=True)
    for name in ("second", "pipe", "folder"):
        Files().write(tmp_path / name, b"x")
        assert (tmp_path / name).read_bytes() == b"x"
    assert (tmp_path / "precious").read_bytes() == b"precious"


def test_a_directory_in_the_place_of_a_document_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / "host" / "sub").mkdir(parents=True)
    Files().write(tmp_path / "host.tmp", b"x")
    Files().replace(tmp_path / "host.tmp", tmp_path / "host")
    assert (tmp_path / "host").read_bytes() == b"x"
    assert (tmp_path / "host.unreadable" / "sub").is_dir()


@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_stands_in_the_place_of_a_directory_of_ours_is_set_aside(tmp_path: Path, kind: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "precious").write_bytes(b"x")
    if kind == "file":
        (tmp_path / "trash").write_bytes(b"y")
    else:
        (tmp_path / "trash").symlink_to("elsewhere")
    Files().make_own(tmp_path / "trash")
    assert (tmp_path / "trash").is_dir()
    assert not (tmp_path / "trash").is_symlink()
    assert os.path.lexists(tmp_path / "trash.unreadable")
    assert (tmp_path / "elsewhere" / "precious").exists()


def test_directories_of_any_depth_are_removed(tmp_path: Path) -> None:
    top = tmp_path / "deep"
    top.mkdir()
    folder = os.open(top, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=folder)
        os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
        folder, old = os.open("d", os.O_RDONLY, dir_fd=folder), folder
        os.close(old)
    os.close(folder)
    assert Files().remove(top)
    assert list(tmp_path.iterdir()) == []


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
