"""The shell; what it does with real processes is in tests/integration/test_watcher.py."""

import errno
import os
from pathlib import Path
from typing import cast
from unittest.mock import AsyncMock

import pytest
import structlog
from click.testing import CliRunner
from prometheus_client import CollectorRegistry

from checkpoint_replicator import failpoint
from checkpoint_replicator.bus.zeromq import ZeroMQBus
from checkpoint_replicator.config import load
from checkpoint_replicator.fence import ZERO
from checkpoint_replicator.ids import Address
from checkpoint_replicator.metrics import Health
from checkpoint_replicator.process import Runtime
from checkpoint_replicator.ramdisk import Ramdisk
from checkpoint_watcher import effects as do
from checkpoint_watcher import notice, service
from checkpoint_watcher.__main__ import main
from checkpoint_watcher.config import WatcherConfig
from support.memory_bus import MemoryBus, MemoryNetwork


def test_a_ramdisk_that_is_no_directory_is_a_configuration_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["--ramdisk", str(tmp_path / "absent"), "--run", str(tmp_path)])
    assert result.exit_code == 78


def test_working_files_that_may_not_be_written_end_the_watcher_without_a_traceback_and_a_waiting_trainer_learns_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ramdisk = tmp_path / "r"
    ramdisk.mkdir()
    (ramdisk / "replicator.yaml").write_text("job-name: j\n")
    os.utime(ramdisk / "replicator.yaml", (1, 1))

    def refuse(self: Ramdisk, service: str, _: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(self.layout.service_lock(service)))

    monkeypatch.setattr(Ramdisk, "hold", refuse)
    monkeypatch.setattr(notice, "QUIET", -1)
    flags = ["--health", "127.0.0.1:0", "--log-format", "json"]
    result = CliRunner().invoke(main, ["--ramdisk", str(ramdisk), "--run", str(tmp_path / "run"), *flags])
    told = f"{ramdisk}/.replicator/watcher.lock: Read-only file system, expected what uid {os.geteuid()} may"
    assert result.exit_code == 75
    logged = result.output + capfd.readouterr().err
    assert told in logged
    assert "Traceback" not in logged
    assert "could not handle" not in logged
    assert not (ramdisk / "replicator.yaml").exists()
    assert told in (ramdisk / "replicator.failed").read_text()


def test_check_prints_the_configuration(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["--check", "--ramdisk", str(tmp_path), "--ramdisk-size", "64MiB"])
    assert result.exit_code == 0
    assert "ramdisk-size = 64MiB" in result.output
    assert "hash-threads = 4" in result.output


def test_unknown_keys_are_refused_by_name(tmp_path: Path) -> None:
    config = tmp_path / "watcher.toml"
    config.write_text(f'ramdisk = "{tmp_path}"\nhash-thread = 4\n')
    result = CliRunner().invoke(main, ["--check", "--config", str(config)])
    assert result.exit_code == 78
    assert "hash-thread" in result.output


async def test_a_ramdisk_that_refuses_without_end_is_told_in_readiness_and_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    health = Health(60.0)
    bus = cast("ZeroMQBus", MemoryBus(MemoryNetwork()))
    runtime = Runtime(bus, CollectorRegistry(), structlog.get_logger(), health, "")
    flags = {"host": "h", "ramdisk": str(tmp_path), "run": str(tmp_path)}
    watcher = service.Watcher(load(WatcherConfig, flags=flags), runtime, Ramdisk(tmp_path))
    told: list[str | None] = []

    def refuse(_: do.Effect) -> None:
        told.append(health.not_ready)
        if len(told) > 2:
            watcher.refusals.most = 0.0  # its deadline has come
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(service, "DISK_PAUSE", 0)
    monkeypatch.setattr(watcher.disk, "perform", refuse)
    monkeypatch.setattr(watcher.store, "unregister", AsyncMock())
    watcher.work.put_nowait(do.CleanUp())
    with pytest.raises(OSError, match="Input/output error"):
        await watcher._work()
    assert watcher.refusals.reason
    assert told[1:] == ["the ramdisk refuses CleanUp: [Errno 5] Input/output error"] * 2
    await watcher._close()
    await bus.close()


async def test_what_is_changed_beside_the_other_effects_is_numbered_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = cast("ZeroMQBus", MemoryBus(MemoryNetwork()))
    runtime = Runtime(bus, CollectorRegistry(), structlog.get_logger(), Health(60.0), "")
    flags = {"host": "h", "ramdisk": str(tmp_path), "run": str(tmp_path)}
    watcher = service.Watcher(load(WatcherConfig, flags=flags), runtime, Ramdisk(tmp_path))
    monkeypatch.setattr(watcher.store, "unregister", AsyncMock())

    def change_twice(_: do.VerifyShard) -> None:
        failpoint.change()
        failpoint.change()

    census = tmp_path / "census"
    census.touch()
    failpoint.arm({failpoint.VARIABLE: str(tmp_path)}, "watcher")
    try:
        await watcher._aside(change_twice, do.VerifyShard(Address("0" * 64), ZERO))
    finally:
        failpoint.disarm()
    assert census.read_text().splitlines() == ["watcher VerifyShard 2", "watcher VerifyShard done"]
    await watcher._close()
    await bus.close()
