"""Rows that want services to start and end very often."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.watcher_process import until

SERVICES = ("watcher", "transfer", "uploader", "coordinator")

pytestmark = pytest.mark.timeout(3600)


@pytest.fixture
def base() -> Iterator[Path]:  # pytest's own paths can be too long for a socket
    with tempfile.TemporaryDirectory(prefix="soak-") as path:
        for service in SERVICES:
            (Path(path) / service / "ramdisk").mkdir(parents=True)
            (Path(path) / service / "backup").mkdir()
        yield Path(path)


def live_and_end(service: str, base: Path, redis: str, delay: float) -> int:
    """Start a service, ask it to end at some moment of its life; returns its exit code."""
    health = base / "run" / f"{service}.health"
    health.unlink(missing_ok=True)
    command = [sys.executable, "-m", f"checkpoint_{service}", "--run", str(base / "run"), "--redis", redis]
    if service != "coordinator":
        command += ["--ramdisk", str(base / "ramdisk")]
    if service == "uploader":
        command += ["--backup", f"file://{base / 'backup'}"]
    with (base / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"PYTHONFAULTHANDLER": "1"})
    try:
        until(health.exists, 60)  # before its handlers stand a signal ends any program
        time.sleep(delay)  # the moment of the signal
        process.send_signal(signal.SIGTERM)
        code = process.wait(30)
    finally:
        process.kill()
        process.wait()
    assert code == 0, (base / "log").read_text()[-4000:]
    return code


@pytest.mark.parametrize("cycles", [1, pytest.param(125, marks=pytest.mark.nightly)])
def test_s71_a_service_that_is_asked_to_end_at_any_moment_ends_with_0(base: Path, redis_url: str, cycles: int) -> None:
    """500 starts and ends in the night, of one service beside another."""

    def live(service: str) -> None:
        chance = random.Random(f"71 {service}")
        for _ in range(cycles):
            live_and_end(service, base / service, redis_url, chance.choice((0, 0.01, 0.1)) * chance.random())

    with ThreadPoolExecutor(len(SERVICES)) as side_by_side:
        for _ in side_by_side.map(live, SERVICES):
            pass
