"""A real uploader process among strangers, and beside a backup root that somebody wrote into."""

import os
import subprocess
from pathlib import Path

import pytest

from checkpoint_replicator.ids import Job
from checkpoint_replicator.messages import Service
from checkpoint_replicator.ramdisk import Ramdisk
from support.backup_scene import JOB, NAME, Scene
from support.hostile import annoy_http, frames, shout
from support.uploader_node import HOST, UploaderNode

pytestmark = pytest.mark.timeout(180)

DEEP = '{"state":' * 50_000
STRANGE = {
    "2026-01-01_00-01/MANIFEST.json": DEEP.encode(),
    "2026-01-01_00-02/MANIFEST.json": b'{"state": "complete", "save": {"epoch": 99999999999999999999, "step": 1}}',
    "2026-01-01_00-03/MANIFEST.json": b'{"state": "' + b"x" * 1_000_000 + b'"}',
    "2026-01-01_00-04/ORDER.json": b"x" * 1_000_000,
    "2026-01-01_00-05/ORDER.json": b"\xff\xfe\0",
    f"2026-01-01_00-06/{JOB}-s1-n99999-w0.meta": b"a" * 64,
    f"2026-01-01_00-06/{'a' * 64}.data": b"x",
    f"2026-01-01_00-07/{JOB}-s999999999999999-n0-w65535.meta": b"a" * 64,
    f"2026-01-01_00-07/{'a' * 64}.data": b"x",
    f"2026-01-01_00-08/{JOB}-s1-n0-w0.meta": b"../../../etc/passwd",
    "2026-01-01_00-09/MANIFEST.json/inside": b"x",
    "2026-13-45_99-99/MANIFEST.json": b"{}",
    "not a backup/at all": b"x",
    os.fsdecode(b"2026-01-01_00-10/\xff\xfe-s1-n0-w0.meta"): b"a" * 64,
    "2026-01-01_00-11/new\nline-s1-n0-w0.meta": b"a" * 64,
}


def copy_of(path: Path, to: Path) -> None:
    subprocess.run(["cp", "-a", str(path), str(to)], check=True)


async def test_s16_neither_strangers_nor_a_littered_backup_root_stop_an_uploader(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    (tmp_path / "ramdisk").mkdir()
    scene = Scene(tmp_path / "shards")
    disk = Ramdisk(tmp_path / "ramdisk")
    for path, tree, tag in zip((scene.file, scene.directory), scene.trees, scene.tags, strict=True):
        copy_of(path, tmp_path / "copy")
        disk.name_shard(tmp_path / "copy", tree, (tag,), own=True)
    root = tmp_path / "backups"
    for name, content in STRANGE.items():
        path = root / JOB / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (root / JOB / "2026-01-01_00-12").symlink_to("/etc")
    os.mkfifo(root / JOB / "2026-01-01_00-01" / "pipe")
    before = sorted(str(path) for path in root.rglob("*"))
    async with UploaderNode(tmp_path / "ramdisk", root.as_uri(), Job(JOB)) as node:
        endpoint = node.endpoint("uploader")
        heard = (one for one in frames(HOST, Service.UPLOADER, endpoint) if b"UploaderOrders" not in one[0])
        await shout(endpoint, heard)
        annoy_http(node.health)
        listing = await node.one(scene.simple("list"))
        assert listing.done, listing.reason
        assert [entry.name for entry in listing.entries if entry.whole] == []
        assert all(len(entry.reason) < 400 and entry.reason.isprintable() for entry in listing.entries)
        answers = [await node.one(order) for order in (scene.reserve(), scene.upload(0), scene.upload(1), scene.seal())]
        assert (await node.one(scene.manifest(answers))).done
        listing = await node.one(scene.simple("list"))
        assert [entry.name for entry in listing.entries if entry.whole] == [NAME]
        assert set(before) < {str(path) for path in root.rglob("*")}
        assert len(node.lives) == 1
        assert node.alive
        assert "bus_rejected_total 0.0" not in node.metrics()
        assert "uploader_strange_messages_total 0.0" not in node.metrics()
