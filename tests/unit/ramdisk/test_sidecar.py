from pathlib import Path

import pytest

from checkpoint_replicator.ramdisk import Ramdisk
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
