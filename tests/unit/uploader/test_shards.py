from pathlib import Path

import pytest

from checkpoint_replicator import leaf
from checkpoint_replicator.errors import CorruptError
from checkpoint_replicator.ids import Address
from checkpoint_replicator.ramdisk import Ramdisk
from checkpoint_uploader.shards import RamdiskShards
from support.shards import fill, fill_folder, named


@pytest.fixture
def ramdisk(tmp_path: Path) -> Ramdisk:
    (tmp_path / "ramdisk").mkdir()
    return Ramdisk(tmp_path / "ramdisk")


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_leaves_are_read_as_they_stand(ramdisk: Ramdisk, tmp_path: Path, kind: str) -> None:
    source = fill(tmp_path / "save", (1 << 20) + 9) if kind == "file" else fill_folder(tmp_path / "save")
    tag = named(ramdisk, source)
    with RamdiskShards(ramdisk).open(tag.address) as shard:
        assert shard.tree.address == tag.address
        for number in range(shard.tree.leaves):
            assert leaf.digest(shard.read(number)) == shard.tree.leaf(number).digest


def test_a_shard_that_is_not_there_is_not_found(ramdisk: Ramdisk) -> None:
    with pytest.raises(FileNotFoundError), RamdiskShards(ramdisk).open(Address("0" * 64)):
        pass


def test_a_truncated_file_is_corrupt_when_it_is_read(ramdisk: Ramdisk, tmp_path: Path) -> None:
    tag = named(ramdisk, fill(tmp_path / "save", 5000))
    with (ramdisk.root / f"{tag.address}.data").open("r+b") as file:
        file.truncate(10)
    with RamdiskShards(ramdisk).open(tag.address) as shard, pytest.raises(CorruptError):
        shard.read(0)
