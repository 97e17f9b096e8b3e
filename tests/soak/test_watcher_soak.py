"""Rows that want a watcher to start very often: the real service in this process."""

import asyncio
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from prometheus_client import CollectorRegistry

from checkpoint_replicator.bus.zeromq import ZeroMQBus
from checkpoint_replicator.ids import Epoch, Job, Rank, SessionId
from checkpoint_replicator.metrics import Health
from checkpoint_replicator.process import Runtime
from checkpoint_replicator.ramdisk import Ramdisk
from checkpoint_replicator.session import SessionSpec, SessionState
from checkpoint_replicator.shape import Shape
from checkpoint_watcher import effects as do
from checkpoint_watcher.config import WatcherConfig
from checkpoint_watcher.disk import Disk
from checkpoint_watcher.record import Marker, SessionRecord
from checkpoint_watcher.service import run
from checkpoint_watcher.snapshot import YamlIdentity
from support.eventually import eventually

pytestmark = pytest.mark.timeout(3600)

SPEC = SessionSpec(Job("j"), Rank(0), Shape(2, 1, 1, "pytorch"))
RUNNING = SessionRecord(
    SessionId("session"),
    YamlIdentity(1, 2, 3, "d"),
    1.0,
    SPEC,
    SessionState.RUNNING,
    epoch=Epoch(1),
    consumed_at=1.0,
    markers=(Marker("j-s0-n0-w0.restore"),),
    published=True,
)


@pytest.fixture
def base() -> Iterator[Path]:  # pytest's own paths can be too long for a socket
    with tempfile.TemporaryDirectory(prefix="soak-") as path:
        yield Path(path)


def trainer_saves(root: Path, step: int, *, aside: bool) -> None:
    """Save as trainers do: by a rename, or in place with a close at the end."""
    name = f"j-s{step}-n0-w0.save"
    if aside:
        (root / f"{name}.tmp").write_bytes(b"%d" % step)
        (root / f"{name}.tmp").rename(root / name)
    else:
        (root / name).write_bytes(b"%d" % step)


async def start_with_a_save(root: Path, redis: str, step: int, chance: random.Random) -> None:
    """Start a watcher, let a save be finished at a random moment around that, and wait for its name."""
    disk = Disk(Ramdisk(root), threads=1)
    disk.perform(do.WriteSession(RUNNING))
    config = WatcherConfig(ramdisk=root, run=root / "r", redis=redis, health="127.0.0.1:0")
    bus = ZeroMQBus(linger=0)
    runtime = Runtime(bus, CollectorRegistry(), structlog.get_logger(), Health(60.0), "")
    service = asyncio.create_task(run(config, runtime))
    for _ in range(chance.randrange(40)):
        await asyncio.sleep(chance.choice((0, 0, 0.001)))
    trainer_saves(root, step, aside=chance.random() < 0.5)
    try:
        await eventually((root / f"j-s{step}-n0-w0.meta").exists)
    finally:
        runtime.stopping.set()
        await service
        await bus.close()


@pytest.mark.parametrize("starts", [25, pytest.param(1000, marks=pytest.mark.nightly)])
async def test_s41_a_save_that_is_finished_at_any_moment_of_a_start_is_found(
    base: Path, redis_url: str, starts: int
) -> None:
    chance = random.Random(41)
    with structlog.testing.capture_logs():
        for step in range(starts):
            (base / str(step)).mkdir()
            await start_with_a_save(base / str(step), redis_url, step, chance)
