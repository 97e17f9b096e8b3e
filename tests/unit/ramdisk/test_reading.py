import os
import re
import socket
from pathlib import Path

import pytest

from checkpoint_replicator.errors import ProtocolError
from checkpoint_replicator.ramdisk.reading import open_plain, read_small


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"text")
    assert read_small(tmp_path / "a", 4) == b"text"


def test_nothing_there_is_said_as_the_system_says_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_small(tmp_path / "a")


def test_a_file_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ProtocolError, match=r"a: has more than 10 bytes$"):
        read_small(tmp_path / "a", 10)


def test_a_pipe_without_a_writer_holds_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a")
    with pytest.raises(ProtocolError, match=r"a: is a pipe, expected a file$"):
        read_small(tmp_path / "a")


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match=r": is a directory, expected a file$"):
        read_small(tmp_path)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("/etc/passwd")
    with pytest.raises(ProtocolError, match=r"a: cannot be read: Too many levels of symbolic links$"):
        read_small(tmp_path / "a")


def test_a_socket_is_no_file(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "a"))
        with pytest.raises(ProtocolError, match=r"a: cannot be read: No such device or address$"):
            open_plain(tmp_path / "a")


def test_a_name_that_is_no_text_is_spelled_out_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"new\nline\xff")
    path.mkdir()
    with pytest.raises(ProtocolError, match=r"/new\\nline\\udcff: is a directory"):
        read_small(path)


ROOT = Path(__file__).parents[3]


def test_who_lives_on_a_ramdisk_reads_its_files_in_no_other_way() -> None:
    folders = ("src/checkpoint_replicator/ramdisk", "services/watcher", "services/transfer")
    sources = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    careless = [str(path) for path in sources if re.search(r"\.read_(bytes|text)\(|\.open\(\"r", path.read_text())]
    assert len(sources) > 50
    assert careless == []
