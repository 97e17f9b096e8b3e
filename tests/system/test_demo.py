"""`make demo`: the main job before people's eyes."""

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.timeout(180)

SHM = Path("/dev/shm")  # noqa: S108  # only looked at
WORDS = (sys.executable, "-m", "checkpoint_replicator", "demo", "--size", "1")


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # marks our processes, and takes the sockets
    before = set(SHM.glob("checkpoint-demo-*"))
    yield
    assert [process.cmdline() for process in psutil.process_iter() if is_ours(process, tmp_path)] == []
    assert set(SHM.glob("checkpoint-demo-*")) <= before
    assert list(tmp_path.iterdir()) == []


def is_ours(process: psutil.Process, tmp_path: Path) -> bool:
    try:
        return process.pid != os.getpid() and process.environ().get("TMPDIR") == str(tmp_path)
    except psutil.Error:
        return False


def test_the_demo_tells_its_story_in_plain_lines_and_passes() -> None:
    done = subprocess.run(WORDS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    story = [
        "nothing to restore",
        "step 3 is committed",
        "kill -9 of the three processes of node-2",
        "step 3 is back on all nodes, bit-exactly",
        "step 4 is committed",
        "PASS: step 3 (4 MiB) came back bit-exactly on all 4 nodes",
    ]
    places = [done.stdout.find(line) for line in story]
    assert -1 not in places, done.stdout
    assert places == sorted(places)


def test_the_demo_shows_a_table_on_a_terminal_and_works_a_second_time() -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        WORDS, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    ) as demo:
        os.close(theirs)
        shown = b"".join(read_all(ours))
    assert demo.returncode == 0, shown.decode()
    for text in ("ramdisk holds", "node-2", "killed", "restored step 3, equal", "PASS"):
        assert text in shown.decode()


def read_all(terminal: int) -> Iterator[bytes]:
    try:
        while piece := os.read(terminal, 1 << 16):
            yield piece
    except OSError:  # the last process closed its end
        pass
    finally:
        os.close(terminal)
