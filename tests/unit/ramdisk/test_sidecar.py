import time
from pathlib import Path

import pytest

from checkpoint_replicator.ramdisk import Ramdisk
from checkpoint_replicator.ramdisk.files import Files
from checkpoint_replicator.ramdisk.sidecar import UNSETTLED, Reader
from support.clock import ManualClock
from support.shards import fill, named


def test_sidecars_come_in_order_of_their_saves(tmp_path: Path) -> None:
    ramdisk = Ramdisk(tmp_path)
    for seed, (epoch, step) in enumerate([(2, 1), (1, 9), (10, 0)]):
        named(ramdisk, fill(tmp_path / "x", 10, seed), epoch=epoch, step=step)
    assert [str(sidecar.tag.save) for sidecar in ramdisk.sidecars()] == ["1.9", "2.1", "10.0"]


@pytest.mark.parametrize("garbage", [b"", b"{}", b'{"tag": {}}', b"\xff"])
def test_an_unreadable_sidecar_is_named_and_hides_no_other(tmp_path: Path, garbage: bytes) -> None:
    ramdisk = Ramdisk(tmp_path)
    named(ramdisk, fill(tmp_path / "x", 10, 1), step=1)
    tag = named(ramdisk, fill(tmp_path / "x", 10, 2), step=2)
    path = ramdisk.layout.sidecar(tag)
    path.write_bytes(garbage)
    inventory = ramdisk.inventory()
    assert [sidecar.tag.save.step for sidecar in inventory.sidecars] == [1]
    assert str(path) in str(inventory.unreadable[str(path)])
    assert inventory.doubts(tag.name)


def test_a_sidecar_in_a_wrong_place_is_unreadable(tmp_path: Path) -> None:
    ramdisk = Ramdisk(tmp_path)
    tag = named(ramdisk, fill(tmp_path / "x", 10))
    path = ramdisk.layout.sidecar(tag)
    path.rename(path.with_name("job-s7-n0-w0.json"))
    assert "holds the tag of epoch 1" in str(*ramdisk.inventory().unreadable.values())


def test_stray_files_among_the_epochs_do_no_harm(tmp_path: Path) -> None:
    ramdisk = Ramdisk(tmp_path)
    (ramdisk.layout.saves / "file").touch()
    assert ramdisk.inventory().sidecars == ()


def test_only_what_changed_is_read_again_and_what_is_fresh_each_time(tmp_path: Path) -> None:
    ramdisk = Ramdisk(tmp_path)
    tag = named(ramdisk, fill(tmp_path / "x", 10))
    clock = ManualClock(time.time())
    reader = Reader(ramdisk.layout, Files(), clock)
    (fresh,) = reader.read().sidecars
    (again,) = reader.read().sidecars
    assert again == fresh
    assert again is not fresh
    clock.now += 10 * UNSETTLED
    (settled,) = reader.read().sidecars
    assert reader.read().sidecars[0] is settled
    ramdisk.commit(tag.job, [tag.save])
    assert reader.read().sidecars[0].committed
    ramdisk.drop(tag)
    assert reader.read().sidecars == ()
