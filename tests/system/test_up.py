"""`checkpoint-replicator up` as people use it."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.timeout(120)

Up = subprocess.Popen[str]
COUNT = 1 + 2 + 2 * 3
"""Redis, two coordinators, two nodes of three services."""


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[[], Up]]:
    started: list[Up] = []

    def start() -> Up:
        words = ["-m", "checkpoint_replicator", "up", "--nodes", "2", "--dir", str(tmp_path / "my cluster")]
        process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True, bufsize=1)
        started.append(process)
        return process

    yield start
    for process in started:
        with process:
            process.kill()
    shutil.rmtree(tmp_path / "my cluster", ignore_errors=True)


def read_until(process: Up, beginning: str) -> list[str]:
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        if line.startswith(beginning):
            return lines
    raise AssertionError(f"no line begins with {beginning!r}: {lines}")


def test_up_prints_directories_restarts_what_dies_and_ends_with_ctrl_c(up: Callable[[], Up], tmp_path: Path) -> None:
    process = up()
    lines = read_until(process, "ready: 2 nodes, 9 processes")
    assert f"node-1  {tmp_path / 'my cluster' / 'node-1'}" in lines
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) == COUNT
    [transfer] = [child for child in children if "node-1-transfer.toml" in " ".join(child.cmdline())]
    transfer.kill()
    read_until(process, "node-1-transfer was killed by signal 9, started again in 0.25 s")
    process.send_signal(signal.SIGINT)
    read_until(process, "stopped")
    assert process.wait() == 0
    assert not [child for child in children if child.is_running()]


def test_nothing_stays_when_up_itself_is_killed_and_it_works_again_after(up: Callable[[], Up]) -> None:
    process = up()
    read_until(process, "ready")
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert alive == []
    again = up()
    read_until(again, "ready")
    again.send_signal(signal.SIGTERM)
    read_until(again, "stopped")
    assert again.wait() == 0
