"""A real watcher process among strangers: on its socket, in its directory, in Redis, and behind its coordinator."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoint_replicator.messages import Service
from checkpoint_replicator.ramdisk import Ramdisk
from checkpoint_replicator.ramdisk.files import Files
from support.eventually import eventually
from support.hostile import annoy_http, frames, garbage, shout
from support.redis import command
from support.watcher_process import JOB, WatcherProcess, conducting, write_yaml

pytestmark = pytest.mark.timeout(180)

NAMES = (b"\xff\xfe", b"new\nline", b"..." * 80, b"-rf", b" ", b"job-s1-n0-w0.meta\n", "é".encode() * 123 + b".restore")


@pytest.fixture
def watcher(tmp_path: Path, redis_url: str) -> Iterator[WatcherProcess]:
    with WatcherProcess(tmp_path, redis_url) as process:
        yield process
    for folder in ("77", ".replicator/trash"):  # too deep for others that clean up
        Files().remove(process.root / folder)


def save(root: Path, step: int) -> None:
    name = f"{JOB}-s{step}-n0-w0.save"
    (root / f"{name}.tmp").write_bytes(b"step %d" % step)
    (root / f"{name}.tmp").rename(root / name)


def litter(root: Path) -> list[bytes]:
    """Put into the trainer's directory what nobody expects there; returns the names that must stay."""
    names = []
    for number, name in enumerate(NAMES):
        path = root / os.fsdecode(name)
        (path.mkdir if number % 2 else path.touch)()
        names.append(name)
    os.mkfifo(root / f"{JOB}-s7-n0-w0.save")
    os.mkfifo(root / "stranger-s1-n0-w0.meta")
    os.mkfifo(root / "replicator.errors")
    (root / f"{JOB}-s8-n0-w0.save").symlink_to("/etc/passwd")
    (root / f"{JOB}-s9-n99999999-w0.save").write_bytes(b"x")
    (root / f"{JOB}-s99999999999999999999-n0-w0.save").write_bytes(b"x")
    (root / f"{'b' * 64}.data").symlink_to("/etc")
    with (root / f"{'c' * 64}.data").open("wb") as file:
        file.truncate(1 << 40)
    deep = root / "77"
    deep.mkdir()
    folder = os.open(deep, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d" * 200, dir_fd=folder)
        folder, old = os.open("d" * 200, os.O_RDONLY, dir_fd=folder), folder
        os.close(old)
    os.close(folder)
    return [name for name in names if not name.endswith(b".restore")]


async def test_s16_a_watcher_lives_among_strangers_and_loses_nothing(watcher: WatcherProcess, redis_url: str) -> None:
    async with conducting(redis_url) as conductor:
        watcher.start()
        await conductor.run_fresh(watcher)
        save(watcher.root, 1)
        await conductor.hears(lambda report: [held.tag.save.step for held in report.held] == [1])
        first = conductor.report.held[0].tag
        assert watcher.process is not None
        pid = watcher.process.pid
        stay = litter(watcher.root)
        own = ("TransferReport", "UploaderReport")
        said = (one for one in frames(watcher.host, Service.WATCHER, "ipc://x", JOB) if not _is(one, own))
        await shout(f"ipc://{watcher.run}/watcher.sock", said)
        for one in garbage():
            conductor.shout([f"{JOB}\0".encode(), *one])
        annoy_http((watcher.run / "watcher.health").read_text().strip())
        save(watcher.root, 2)
        await conductor.hears(lambda report: [held.tag.save.step for held in report.held] == [1, 2])
        assert watcher.process.pid == pid
        assert watcher.metric("checkpoint_replicator_bus_rejected_total") > 100
        assert watcher.metric("checkpoint_replicator_watcher_strange_messages_total") > 100
        assert watcher.metric("checkpoint_replicator_foreign_names") >= len(stay)
        assert set(stay) <= {os.fsencode(path.name) for path in watcher.root.iterdir()}
        assert Ramdisk(watcher.root).stands(first.address)
        write_yaml(watcher.root, nodes=2)  # a new session cleans up, and goes on
        await conductor.hears(lambda report: report.session is not None and report.session.state == "open")
        assert set(stay) <= {os.fsencode(path.name) for path in watcher.root.iterdir()}
        assert watcher.stop() == 0
    log = (watcher.base / "watcher.log").read_text()
    assert "Traceback" not in log
    assert "message_rejected" in log
    assert "message_ignored" in log
    assert len(log) < 1 << 20


async def test_a_watcher_outlives_every_key_of_redis_written_by_hand(watcher: WatcherProcess, redis_url: str) -> None:
    async with conducting(redis_url) as conductor:
        watcher.start()
        await conductor.run_fresh(watcher)
        save(watcher.root, 1)
        await conductor.hears(lambda report: [held.tag.save.step for held in report.held] == [1])
        keys = [f"ckpt:{{{JOB}}}:{name}" for name in ("lease", "fence", "epoch", "keep", "orders", "restore:1")]
        keys += ["ckpt:jobs", "ckpt:hosts", "ckpt:store", f"ckpt:host:{watcher.host}"]
        for words in (("SET", "x"), ("SADD", "x"), ("HSET", "number", "x"), ("HSET", "upto", "9" * 40 + ".1")):
            for key in keys:
                command(redis_url, "DEL", key)
                command(redis_url, words[0], key, *words[1:])
            conductor.beacon(conductor.stamp())
            before = watcher.metric("checkpoint_replicator_scans_total")
            await eventually(lambda before=before: watcher.metric("checkpoint_replicator_scans_total") > before + 2)  # type: ignore[misc]
        assert watcher.process is not None
        assert watcher.process.poll() is None
        assert Ramdisk(watcher.root).sidecars()
        command(redis_url, "FLUSHALL")
        await conductor.begin()
        await conductor.hears(lambda report: [held.tag.save.step for held in report.held] == [1])
        assert watcher.stop() == 0
    assert "Traceback" not in (watcher.base / "watcher.log").read_text()


def _is(frames: list[bytes], kinds: tuple[str, ...]) -> bool:
    return any(kind.encode() in frames[0] for kind in kinds)
