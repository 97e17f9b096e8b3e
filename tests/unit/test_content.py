import os
import socket
from pathlib import Path

import pytest

from checkpoint_replicator.content import Content
from checkpoint_replicator.errors import CorruptError, UnsupportedError
from checkpoint_replicator.tree import MAX_DEPTH


def test_a_survey_lists_directories_and_files_by_path_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_bytes(b"12")
    (tmp_path / "a-b").write_bytes(b"")
    with Content(tmp_path) as content:
        found = content.survey()
    assert [(entry.path, entry.is_directory, entry.size) for entry in found] == [
        (b"a", True, 0),
        (b"a-b", False, 0),
        (b"a/x", False, 2),
    ]


def test_a_single_file_is_a_dot(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"12345")
    with Content(tmp_path / "f") as content:
        assert [(entry.path, entry.size) for entry in content.survey()] == [(b".", 5)]
        with content.open(b".") as fd:
            assert os.pread(fd, 10, 0) == b"12345"
        with content.open(b".", os.O_RDWR) as fd:
            os.pwrite(fd, b"x", 0)
    assert (tmp_path / "f").read_bytes() == b"x2345"


def test_links_sockets_and_pipes_are_named(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "dirlink").symlink_to("/etc")
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(tmp_path / "s"))
        with Content(tmp_path) as content, pytest.raises(UnsupportedError) as caught:
            content.survey()
    for word in ("a link 'link'", "a link 'dirlink'", "a pipe 'pipe'", "a socket 's'"):
        assert word in str(caught.value)


@pytest.mark.parametrize("kind", ["link", "pipe", "socket"])
def test_a_root_that_is_no_file_or_directory_is_unsupported(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "root"
    with socket.socket(socket.AF_UNIX) as listener:
        if kind == "link":
            root.symlink_to(tmp_path)
        elif kind == "pipe":
            os.mkfifo(root)
        else:
            listener.bind(os.fspath(root))
        with pytest.raises(UnsupportedError, match=f"a {kind}"):
            Content(root)


def test_a_device_is_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="a device"):
        Content(Path("/dev/null"))


def test_a_missing_root_is_file_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Content(tmp_path / "none")


def test_s73_nothing_is_opened_through_a_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"s")
    root = tmp_path / "root"
    root.mkdir()
    (root / "folder").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    with Content(root) as content:
        for path in (b"folder/secret", b"file", b"absent"):
            with pytest.raises(CorruptError, match="cannot open"):
                content.take(path)


def test_a_pipe_in_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with Content(tmp_path) as content, pytest.raises(CorruptError, match="a pipe"):
        content.take(b"pipe")


def test_many_directories_need_few_descriptors(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"d{number}").mkdir()
        (tmp_path / f"d{number}" / "f").write_bytes(b"%d" % number)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count, not paths
    with Content(tmp_path) as content:
        for number in range(300):
            with content.open(b"d%d/f" % number) as fd:
                assert os.pread(fd, 10, 0) == b"%d" % number
        assert len(os.listdir("/proc/self/fd")) < before + 100  # noqa: PTH208
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_a_directory_that_is_too_deep_is_unsupported(tmp_path: Path) -> None:
    path = tmp_path
    for _ in range(MAX_DEPTH + 1):
        path = path / "d"
    path.mkdir(parents=True)
    with Content(tmp_path) as content, pytest.raises(UnsupportedError, match="deeper"):
        content.survey()


def test_a_replaced_root_is_not_current(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"1")
    with Content(tmp_path / "f") as content:
        assert content.is_current
        (tmp_path / "g").write_bytes(b"2")
        (tmp_path / "g").rename(tmp_path / "f")
        assert not content.is_current
        with pytest.raises(CorruptError, match="replaced"):
            content.take(b".", os.O_RDWR)
