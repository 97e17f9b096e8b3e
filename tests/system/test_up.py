"""`checkpoint-replicator up` as people use it."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from checkpoint_replicator.demo.contract import until, wait_for_markers
from simulation.replay import replay

pytestmark = pytest.mark.timeout(120)

Up = subprocess.Popen[str]
COUNT = 1 + 2 + 2 * 3
"""Redis, two coordinators, two nodes of three services."""


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def start(*more: str) -> Up:
        words = ["-m", "checkpoint_replicator", "up", "--nodes", "2", "--dir", str(tmp_path / "my cluster"), *more]
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


def test_what_each_of_the_four_services_decided_is_decided_again_from_its_log(
    up: Callable[..., Up], tmp_path: Path
) -> None:
    process = up("--input-log")
    read_until(process, "ready")
    nodes = [tmp_path / "my cluster" / f"node-{rank}" for rank in range(2)]
    keys = {"job-name": "j", "framework": "pytorch", "nodes": 2, "workers-per-node": 1, "peers-per-node": 1}
    for rank, node in enumerate(nodes):
        (node / "replicator.yaml.new").write_text(
            "".join(f"{key}: {value}\n" for key, value in {**keys, "node-rank": rank}.items())
        )
        (node / "replicator.yaml.new").rename(node / "replicator.yaml")
    for rank, node in enumerate(nodes):
        assert wait_for_markers(node, "j", rank, 1, 30).step is None
    for step in (1, 2):
        for rank, node in enumerate(nodes):
            (node / "new").write_bytes(bytes([step, rank]) * 1_500_000)
            (node / "new").rename(node / f"j-s{step}-n{rank}-w0.save")
        for rank, node in enumerate(nodes):
            until("a copy", 30, lambda name=f"j-s{step}-n{1 - rank}-w0.meta", node=node: (node / name).exists() or None)  # type: ignore[misc]
    process.send_signal(signal.SIGTERM)
    read_until(process, "stopped")
    assert process.wait() == 0
    logs = {path.stem: path.read_bytes() for path in (tmp_path / "my cluster" / "logs").glob("*.inputs")}
    assert len(logs) == COUNT - 1
    for name, data in logs.items():
        decided = list(replay(data))
        assert decided, name
        assert [one for one in decided if not one.same] == [], name
