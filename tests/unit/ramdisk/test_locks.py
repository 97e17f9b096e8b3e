import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from checkpoint_replicator.errors import BusyError
from checkpoint_replicator.ramdisk.locks import Hold, alone, exclusive, shared


def test_a_lock_for_life_names_its_holder_to_a_second_process(tmp_path: Path) -> None:
    path = tmp_path / "watcher.lock"
    code = (
        "import sys; from pathlib import Path; from checkpoint_replicator.ramdisk import Hold;"
        "Hold(Path(sys.argv[1]), 'pid 42 on node-1'); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(BusyError, match="pid 42 on node-1"):
            Hold(path, "me")
        other.kill()
    with Hold(path, "me"):
        assert path.read_text() == "me\n"
        with pytest.raises(BusyError, match="held by me"):
            Hold(path, "again")
    Hold(path, "later").release()


def test_sections_exclude_each_other(tmp_path: Path) -> None:
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        for _ in range(20):
            with exclusive(tmp_path / "names.lock"):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1


def test_a_lock_that_stays_taken_is_busy(tmp_path: Path) -> None:
    path = tmp_path / "names.lock"
    with exclusive(path), pytest.raises(BusyError, match="not free"), exclusive(path, patience=0):
        pass


def test_a_lock_file_that_was_replaced_is_taken_anew(tmp_path: Path) -> None:
    path = tmp_path / "names.lock"
    with exclusive(path):
        path.unlink()
        with exclusive(path, patience=0):
            assert path.exists()


def test_readers_share_and_keep_a_remover_out(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.touch()
    one, two = shared(tree), shared(tree)
    os.close(one)
    with pytest.raises(BusyError, match="being read"), alone(tree):
        pass
    os.close(two)
    with alone(tree), pytest.raises(BusyError, match="being removed"):
        shared(tree)


def test_a_missing_tree_has_no_readers(tmp_path: Path) -> None:
    with alone(tmp_path / "none"):
        pass
    with pytest.raises(FileNotFoundError):
        shared(tmp_path / "none")


def test_what_stands_in_a_trees_place_and_is_no_file_has_no_readers(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "link", "pipe"):
        with alone(tmp_path / name):
            pass
