"""The real watcher process with real Redis and ZeroMQ; the test plays trainer and coordinator."""

import asyncio
import os
import pickle
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoint_replicator.embedded import EmbeddedRedis
from checkpoint_replicator.hashing import verify_shard
from checkpoint_replicator.ids import Epoch, Step
from checkpoint_replicator.ramdisk import Ramdisk
from checkpoint_replicator.records import Outcome, ShardPlan
from checkpoint_replicator.save import Save
from checkpoint_replicator.times import Times
from support.eventually import eventually
from support.redis import command
from support.watcher_process import JOB, Conductor, WatcherProcess, conducting, until, write_yaml

pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def watcher(tmp_path: Path, redis_url: str) -> Iterator[WatcherProcess]:
    with WatcherProcess(tmp_path, redis_url) as process:
        yield process


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory, redis_server: EmbeddedRedis) -> Iterator[WatcherProcess]:
    """One watcher for all the yamls that never need a coordinator."""
    with WatcherProcess(tmp_path_factory.mktemp("patient"), redis_server.url) as process:
        yield process.start()


def save(root: Path, step: int, content: bytes = b"", worker: int = 0) -> None:
    """Save as a careful trainer does."""
    name = f"{JOB}-s{step}-n0-w{worker}.save"
    (root / f"{name}.tmp").write_bytes(content or f"step {step} worker {worker}".encode())
    (root / f"{name}.tmp").rename(root / name)


def steps(conductor: Conductor) -> list[int]:
    """What the last report holds."""
    return sorted(held.tag.save.step for held in conductor.report.held)


GOOD = f"job-name: {JOB}\nframework: pytorch\nnode-rank: 0\nnodes: 2\n"
BAD = {
    "not YAML": "{{{",
    "a list": "- job-name\n",
    "a text": "hello\n",
    "no job-name": GOOD.replace(f"job-name: {JOB}\n", ""),
    "no nodes": GOOD.replace("nodes: 2\n", ""),
    "no node-rank": GOOD.replace("node-rank: 0\n", ""),
    "no framework": GOOD.replace("framework: pytorch\n", ""),
    "nodes is a word": GOOD.replace("nodes: 2", "nodes: two"),
    "nodes is zero": GOOD.replace("nodes: 2", "nodes: 0"),
    "unknown framework": GOOD.replace("pytorch", "jax"),
    "rank out of range": GOOD.replace("node-rank: 0", "node-rank: 2"),
    "slash": GOOD.replace(JOB, "a/b"),
    "dots": GOOD.replace(JOB, ".."),
    "300 characters": GOOD.replace(JOB, "x" * 300),
    "star": GOOD.replace(JOB, '"*"'),
    "empty": "",
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD.keys())
def test_a_bad_yaml_fails_clearly_and_touches_nothing_else(patient: WatcherProcess, text: str) -> None:
    root = patient.root
    until(lambda: "replicator.yaml" not in patient.names)
    (root / "replicator.failed").unlink(missing_ok=True)
    (root / "old-s3-n0-w0.restore").write_text("stale")
    (root / "step=3").mkdir(exist_ok=True)
    (root / "replicator.prerestore").write_text("stale")
    mine = {"notes.txt", "jax-init-info.txt", f"{'a' * 64}.data", f"{JOB}-s9-n0-w0.meta", f"{JOB}-s8-n0-w0.save"}
    for name in mine:
        (root / name).write_text("mine")
    (root / "replicator.yaml.tmp").write_text(text)
    (root / "replicator.yaml.tmp").rename(root / "replicator.yaml")
    until(lambda: "replicator.failed" in patient.names)
    assert patient.names == mine | {"replicator.failed"}
    failed = patient.text("replicator.failed")
    assert failed.startswith("replicator.yaml: ")
    assert "expected" in failed
    assert "found" in failed or "job-name" in failed
    assert all(patient.text(name) == "mine" for name in mine)


async def test_after_a_bad_yaml_the_next_good_one_works(watcher: WatcherProcess, redis_url: str) -> None:
    async with conducting(redis_url) as conductor:
        watcher.start()
        (watcher.root / "replicator.yaml").write_text(BAD["rank out of range"])
        await eventually(lambda: "replicator.failed" in watcher.names)
        assert "node-rank" in watcher.text("replicator.failed")
        await conductor.run_fresh(watcher)
        assert "replicator.failed" not in watcher.names


async def test_a_yaml_that_grows_is_waited_for_and_then_works(watcher: WatcherProcess, redis_url: str) -> None:
    async with conducting(redis_url) as conductor:
        watcher.start()
        with (watcher.root / "replicator.yaml").open("w") as file:
            await _scans(watcher, 2)
            file.write(f"job-name: {JOB}\nframework: pytorch\nnode-rank: 0\nnodes: 1")
            file.flush()
            await _scans(watcher, 3)
            assert not conductor.reports
            file.write("6\n")
        report = await conductor.hears(lambda report: report.session is not None)
        assert report.session is not None
        assert report.session.spec.shape.nodes == 16


async def _scans(watcher: WatcherProcess, count: int) -> None:
    """Let it look so many times."""
    name = "checkpoint_replicator_scans_total"
    goal = watcher.metric(name) + count
    await eventually(lambda: watcher.metric(name) >= goal)


async def test_the_contract_keeps_its_order(watcher: WatcherProcess, redis_url: str) -> None:
    marker = f"{JOB}-s0-n0-w0.restore"
    (watcher.root / "old-s3-n0-w0.restore").write_text("stale")
    async with conducting(redis_url) as conductor:
        watcher.start()
        write_yaml(watcher.root)
        await conductor.hears(lambda report: report.session is not None)
        assert watcher.names == {"replicator.yaml"}  # a: the leftovers went first
        await conductor.gather()
        await eventually(lambda: not watcher.names)  # b
        await conductor.restore(Outcome.NONE)
        await eventually(lambda: watcher.names == {"replicator.prerestore"})  # c
        assert watcher.text("replicator.prerestore") == "{}\n"
        await _scans(watcher, 2)
        assert marker not in watcher.names
        await conductor.gather(released=True)
        await eventually(lambda: marker in watcher.names)  # e
        assert watcher.text(marker) == ""
        report = await conductor.hears(lambda report: report.restore is not None and report.restore.published)
        assert report.session is not None
        assert report.session.state == "running"
        assert watcher.stop() == 0


async def test_s41_the_first_save_right_after_the_marker_is_not_lost(watcher: WatcherProcess, redis_url: str) -> None:
    async with conducting(redis_url) as conductor:
        watcher.start()
        await conductor.run_fresh(watcher)
        save(watcher.root, 0)
        save(watcher.root, 1)
        await conductor.hears(lambda _: steps(conductor) == [0, 1])
        assert all(held.own and held.tag.save.epoch == 1 for held in conductor.report.held)
        for held in conductor.report.held:
            assert (watcher.root / f"{held.tag.address}.data").read_text() == f"step {held.tag.save.step} worker 0"
            assert watcher.text(f"{held.tag.name}.meta") == held.tag.address


async def test_s41_saves_while_the_watcher_is_down_are_found(watcher: WatcherProcess, redis_url: str) -> None:
    async with conducting(redis_url) as conductor:
        watcher.start()
        await conductor.run_fresh(watcher)
        for step in range(1, 5):
            if step % 2:
                watcher.kill()
                save(watcher.root, step)
                watcher.start(wait=False)
            else:
                save(watcher.root, step)
        await conductor.hears(lambda _: steps(conductor) == [1, 2, 3, 4])
        assert {held.tag.save.epoch for held in conductor.report.held} == {1}


async def test_s11_step_zero_is_saved_and_restored(watcher: WatcherProcess, redis_url: str) -> None:
    async with conducting(redis_url) as conductor:
        watcher.start()
        await conductor.run_fresh(watcher)
        save(watcher.root, 0, b"zero")
        await conductor.hears(lambda _: steps(conductor) == [0])
        (tag,) = (held.tag for held in conductor.report.held)
        conductor.epoch = Epoch(2)
        conductor.reports.clear()
        write_yaml(watcher.root)
        await conductor.hears(lambda report: report.session is not None and report.session.state == "open")
        await conductor.gather()
        await conductor.restore(Outcome.RESTORE, tag.save, (ShardPlan(key=tag.key, tag=tag),))
        await conductor.hears(lambda report: report.restore is not None and report.restore.verified == (tag.key,))
        await conductor.gather(released=True)
        marker = watcher.root / f"{tag.name}.restore"
        await eventually(marker.is_symlink)
        assert marker.read_bytes() == b"zero"
        assert watcher.text("replicator.prerestore") == "restore-step: 0\n"
        marker.resolve().unlink()  # a trainer that deletes through the link
        assert (watcher.root / f"{tag.address}.data").read_bytes() == b"zero"


async def test_s05_a_flipped_bit_is_never_handed_out(watcher: WatcherProcess, redis_url: str) -> None:
    async with conducting(redis_url) as conductor:
        watcher.start()
        await conductor.run_fresh(watcher)
        save(watcher.root, 1, b"x" * 100_000)
        await conductor.hears(lambda _: steps(conductor) == [1])
        (tag,) = (held.tag for held in conductor.report.held)
        with (watcher.root / f"{tag.address}.data").open("r+b") as file:
            file.write(b"y")
        conductor.epoch = Epoch(2)
        write_yaml(watcher.root)
        await conductor.hears(lambda report: report.session is not None and report.session.state == "open")
        await conductor.gather()
        await conductor.restore(Outcome.RESTORE, tag.save, (ShardPlan(key=tag.key, tag=tag),))
        await eventually(lambda: any(f.kind == "corrupt" for report in conductor.reports for f in report.faults))
        await conductor.hears(lambda report: not report.held)
        assert watcher.metric('checkpoint_replicator_corrupt_copies_total{tier="own"}') == 1
        assert f"{tag.address}.data" not in watcher.names
        await conductor.gather(released=True)
        await eventually(lambda: "replicator.failed" in watcher.names)
        assert not any(name.endswith(".restore") for name in watcher.names)


async def test_s39_files_and_directories_moved_in_from_outside_are_seen(
    watcher: WatcherProcess, redis_url: str, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    async with conducting(redis_url) as conductor:
        watcher.start()
        await conductor.run_fresh(watcher, framework="pytorch.distributed")
        (outside / "4").mkdir()
        (outside / "4" / "model.pt").write_bytes(b"model")
        (outside / "4").rename(watcher.root / "4")
        await conductor.hears(lambda _: steps(conductor) == [4])
        write_yaml(outside, framework="pytorch.distributed")
        conductor.reports.clear()
        (outside / "replicator.yaml").rename(watcher.root / "replicator.yaml")
        await conductor.hears(lambda report: report.session is not None and report.session.state == "open")


async def test_s24_a_directory_that_fills_slowly_is_taken_whole(watcher: WatcherProcess, redis_url: str) -> None:
    async with conducting(redis_url) as conductor:
        watcher.start()
        await conductor.run_fresh(watcher, framework="pytorch.distributed")
        step = watcher.root / "7"
        step.mkdir()
        for part in range(4):
            await _scans(watcher, 2)
            assert step.is_dir()
            (step / f"__{part}_0.distcp").write_bytes(bytes([part]) * 1000)
        await _scans(watcher, 2)
        assert not conductor.report.held
        (step / ".metadata").write_bytes(pickle.dumps([f"__{part}_0.distcp" for part in range(4)]))
        await conductor.hears(lambda _: steps(conductor) == [7])
        (held,) = conductor.report.held
        tree = Ramdisk(watcher.root).tree(held.tag.address)
        assert len(list(tree.files)) == 5
        assert verify_shard(watcher.root / f"{held.tag.address}.data", tree).is_none


async def test_s40_nothing_is_lost_when_the_event_queue_overflows(watcher: WatcherProcess, redis_url: str) -> None:
    async with conducting(redis_url) as conductor:
        watcher.start()
        await conductor.run_fresh(watcher)
        watcher.signal(signal.SIGSTOP)
        for number in range(10_000):
            if number % 100 == 99:
                save(watcher.root, number)
            else:
                (watcher.root / f"note-{number}").touch()
        watcher.signal(signal.SIGCONT)
        await conductor.hears(lambda _: len(conductor.report.held) == 100, 60)
        assert watcher.metric("checkpoint_replicator_inotify_overflow_total") >= 1
        await eventually(lambda: watcher.metric("checkpoint_replicator_foreign_names") == 9_900)
        assert sum(name.startswith("note-") for name in watcher.names) == 9_900


async def test_a_keep_list_deletes_and_nothing_else_does(watcher: WatcherProcess, redis_url: str) -> None:
    async with conducting(redis_url) as conductor:
        watcher.start()
        await conductor.run_fresh(watcher)
        for step in (1, 2, 3):
            save(watcher.root, step)
        await conductor.hears(lambda _: steps(conductor) == [1, 2, 3])
        await conductor.keep(Save(Epoch(1), Step(2)), Save(Epoch(1), Step(2)))
        await conductor.hears(lambda _: steps(conductor) == [2, 3])
        report = await conductor.hears(lambda report: report.newest_committed is not None)
        assert report.newest_committed == Save(Epoch(1), Step(2))
        assert [held.committed for held in sorted(report.held, key=lambda held: held.tag)] == [True, False]
        until(lambda: sum(name.endswith(".data") for name in watcher.names) == 2)


async def test_a_second_watcher_waits_and_names_who_has_the_lock(watcher: WatcherProcess, redis_url: str) -> None:
    watcher.start()
    assert watcher.process is not None
    with WatcherProcess(watcher.base, redis_url) as second:
        second.run = watcher.base / "run2"
        second.start(wait=False)
        await eventually(lambda: "is held by" in second.get("readyz"))
        assert f"pid {watcher.process.pid}" in second.get("readyz")
        watcher.kill()
        await eventually(lambda: second.get("readyz") == "ok\n")
        assert second.stop() == 0


async def test_a_shared_key_that_somebody_spoilt_is_named_and_ends_no_watcher(
    watcher: WatcherProcess, redis_url: str
) -> None:
    command(redis_url, "SET", "ckpt:jobs", "by hand")
    write_yaml(watcher.root)
    watcher.start()
    await eventually(lambda: "ckpt:jobs" in watcher.get("readyz"))
    command(redis_url, "DEL", "ckpt:jobs")
    await eventually(lambda: watcher.get("readyz") == "ok\n")
    assert command(redis_url, "SMEMBERS", "ckpt:jobs") == b"*1\r\n$5\r\nllama\r\n"
    command(redis_url, "SET", "ckpt:hosts", "by hand")
    assert watcher.stop() == 0


async def test_law_3_kill_9_at_any_moment_loses_no_save(watcher: WatcherProcess, redis_url: str) -> None:
    async with conducting(redis_url) as conductor:
        watcher.start()
        await conductor.run_fresh(watcher)
        contents: dict[int, bytes] = {}
        for step, delay in enumerate((0.0, 0.005, 0.02, 0.05, 0.1, 0.3), start=1):
            contents[step] = os.urandom(1_000_000 * step)
            save(watcher.root, step, contents[step])
            await asyncio.sleep(delay)  # the moment of the crash
            watcher.kill()
            await asyncio.to_thread(watcher.start)
        await conductor.hears(lambda report: steps(conductor) == [*contents] and report.complete)
        for held in conductor.report.held:
            assert (watcher.root / f"{held.tag.address}.data").read_bytes() == contents[held.tag.save.step]
        assert not list((watcher.root / ".replicator" / "claims").rglob("*.save"))


async def test_s113_a_node_reports_and_hears_a_stop_while_it_hashes_a_gigabyte(
    watcher: WatcherProcess, redis_url: str
) -> None:
    loop = asyncio.get_running_loop()
    async with conducting(redis_url) as conductor:
        watcher.start()
        await conductor.run_fresh(watcher)
        gaps, count, heard = [0.0], len(conductor.reports), loop.time()

        def hashed() -> bool:
            nonlocal count, heard
            if len(conductor.reports) > count:
                gaps.append(loop.time() - heard)
                count, heard = len(conductor.reports), loop.time()
            return steps(conductor) == [1]

        big(watcher.root, 1)
        await eventually(hashed, 60)
        assert max(gaps) < Times().suspect  # nobody takes it for dead
        big(watcher.root, 2)
        await conductor.hears(lambda report: report.saving)
        assert watcher.stop() == 0
        watcher.start()
        await conductor.hears(lambda _: steps(conductor) == [1, 2], 60)


def big(root: Path, step: int) -> None:
    """Save a GiB that takes no room: a hole with another beginning each time."""
    name = f"{JOB}-s{step}-n0-w0.save"
    with (root / f"{name}.tmp").open("wb") as file:
        file.write(b"%d" % step)
        file.truncate(1 << 30)
    (root / f"{name}.tmp").rename(root / name)


async def test_without_redis_a_yaml_is_consumed_late_and_fails_with_its_address(tmp_path: Path) -> None:
    times = "empty-yaml=200ms,shape-quarrel=200ms,consumed=1s,abandoned-quiet=200ms,abandoned-most=500ms"
    times += ",bucket-silent=500ms,rendezvous=1500ms,failed=2s"
    with WatcherProcess(tmp_path, "redis://127.0.0.1:1/0", times) as watcher:
        watcher.start()
        await eventually(lambda: "127.0.0.1:1" in watcher.get("readyz"))
        write_yaml(watcher.root)
        await eventually(lambda: "replicator.yaml" not in watcher.names)
        await eventually(lambda: "replicator.failed" in watcher.names)
        assert "127.0.0.1:1" in watcher.text("replicator.failed")
