import os
import shutil
from pathlib import Path

import pytest

from checkpoint_replicator.hashing import hash_shard
from checkpoint_replicator.ids import Rank, SessionId, Step, Worker
from checkpoint_replicator.ramdisk import Ramdisk, ShardName
from checkpoint_replicator.save import ShardKey
from support.shards import JOB, fill, fill_folder, named

SESSION = SessionId("session")
NAME = ShardName(JOB, Step(1), ShardKey(Rank(0), Worker(0)))


@pytest.mark.parametrize("folder", [True, False])
def test_deleting_through_the_marker_leaves_the_replica_whole(tmp_path: Path, *, folder: bool) -> None:
    ramdisk = Ramdisk(tmp_path)
    tag = named(ramdisk, fill_folder(tmp_path / "x") if folder else fill(tmp_path / "x", 10))
    assert ramdisk.publish(SESSION, NAME, tag.address)
    marker = tmp_path / "job-s1-n0-w0.restore"
    assert str(marker.readlink()) == f".replicator/handout/session/{tag.address}.data"
    assert hash_shard(marker.resolve()).address == tag.address
    if folder:
        shutil.rmtree(marker.resolve())
    else:
        marker.resolve().unlink()
    assert hash_shard(ramdisk.layout.data(tag.address)).address == tag.address
    assert ramdisk.stands(tag.address)


def test_the_renamed_marker_of_a_trainer_still_leads_to_the_data(tmp_path: Path) -> None:
    ramdisk = Ramdisk(tmp_path)
    tag = named(ramdisk, fill_folder(tmp_path / "x"))
    ramdisk.publish(SESSION, NAME, tag.address)
    (tmp_path / "job-s1-n0-w0.restore").rename(tmp_path / "1")
    assert (tmp_path / "1" / "a").is_file()


def test_publishing_twice_is_one_handout(tmp_path: Path) -> None:
    ramdisk = Ramdisk(tmp_path)
    tag = named(ramdisk, fill(tmp_path / "x", 10))
    (ramdisk.layout.handouts / SESSION).mkdir()
    (ramdisk.layout.handouts / SESSION / f"{tag.address}.part").touch()  # left by a crash
    assert ramdisk.publish(SESSION, NAME, tag.address)
    assert ramdisk.publish(SESSION, NAME, tag.address)
    assert ramdisk.layout.data(tag.address).stat().st_nlink == 2


def test_where_no_link_is_possible_the_marker_leads_to_the_data_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ramdisk = Ramdisk(tmp_path)
    tag = named(ramdisk, fill_folder(tmp_path / "x"))

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", refuse)
    assert not ramdisk.publish(SESSION, NAME, tag.address)
    assert str((tmp_path / "job-s1-n0-w0.restore").readlink()) == f"{tag.address}.data"
    assert list((ramdisk.layout.handouts / SESSION).iterdir()) == []


def test_nothing_to_restore_is_an_empty_file(tmp_path: Path) -> None:
    ramdisk = Ramdisk(tmp_path)
    ramdisk.handouts.publish_none(ShardName(JOB, Step(0), NAME.key))
    marker = tmp_path / "job-s0-n0-w0.restore"
    assert not marker.is_symlink()
    assert marker.read_bytes() == b""


def test_handouts_of_other_sessions_go(tmp_path: Path) -> None:
    ramdisk = Ramdisk(tmp_path)
    tag = named(ramdisk, fill(tmp_path / "x", 10))
    ramdisk.publish(SessionId("old"), NAME, tag.address)
    ramdisk.publish(SESSION, NAME, tag.address)
    assert ramdisk.handouts.discard(SESSION) == 1
    ramdisk.sweep()
    assert [path.name for path in ramdisk.layout.handouts.iterdir()] == [SESSION]
    assert ramdisk.stands(tag.address)
