import os
from pathlib import Path

import pytest

from checkpoint_replicator import leaf
from checkpoint_replicator.errors import CorruptError, ProtocolError
from checkpoint_replicator.ids import Address
from checkpoint_replicator.ramdisk import Ramdisk
from support.shards import fill, fill_folder, named


@pytest.mark.parametrize("folder", [True, False])
def test_leaves_are_read_by_number(tmp_path: Path, *, folder: bool) -> None:
    ramdisk = Ramdisk(tmp_path)
    tag = named(ramdisk, fill_folder(tmp_path / "x") if folder else fill(tmp_path / "x", (1 << 20) + 7))
    buffer = bytearray(leaf.LEAF_SIZE)
    with ramdisk.open_shard(tag.address) as shard:
        assert shard.tree.address == tag.address
        for number in range(shard.tree.leaves):
            size = shard.pread_leaf(number, buffer)
            assert leaf.digest(buffer[:size]) == shard.tree.leaf(number).digest
        with pytest.raises(ProtocolError, match="expected 0 to"):
            shard.pread_leaf(shard.tree.leaves, buffer)
        with pytest.raises(ProtocolError, match="a buffer of 3 bytes"):
            shard.pread_leaf(0, bytearray(3))


def test_a_truncated_file_is_corrupt_and_kills_nobody(tmp_path: Path) -> None:
    ramdisk = Ramdisk(tmp_path)
    tag = named(ramdisk, fill(tmp_path / "x", 3 << 20))
    with ramdisk.open_shard(tag.address) as shard:
        os.truncate(ramdisk.layout.data(tag.address), 1 << 20)
        assert shard.pread_leaf(0, bytearray(1 << 20)) == 1 << 20
        with pytest.raises(CorruptError, match="ends before"):
            shard.pread_leaf(1, bytearray(1 << 20))


def test_missing_or_changed_kinds_of_data_are_corrupt(tmp_path: Path) -> None:
    ramdisk = Ramdisk(tmp_path)
    tag = named(ramdisk, fill(tmp_path / "x", 10))
    data = ramdisk.layout.data(tag.address)
    data.unlink()
    with pytest.raises(CorruptError, match=rf"^{data}: is missing$"):
        ramdisk.open_shard(tag.address)
    data.mkdir()
    with pytest.raises(CorruptError, match="expected a file"):
        ramdisk.open_shard(tag.address)
    data.rmdir()
    data.symlink_to("/etc/passwd")
    with pytest.raises(CorruptError, match=rf"^{data}: is a link, expected a file or a directory$"):
        ramdisk.open_shard(tag.address)


def test_a_damaged_tree_names_its_file(tmp_path: Path) -> None:
    ramdisk = Ramdisk(tmp_path)
    tag = named(ramdisk, fill(tmp_path / "x", 10))
    other = named(ramdisk, fill(tmp_path / "x", 11), step=2)
    path = ramdisk.layout.tree(tag.address)
    text = ramdisk.layout.tree(other.address).read_bytes()
    for garbage in (b"", b"garbage", text):
        path.write_bytes(garbage)
        with pytest.raises(ProtocolError, match=path.name):
            ramdisk.open_shard(tag.address)
        with pytest.raises(ProtocolError, match=path.name):
            ramdisk.tree(tag.address)
    assert path.exists()


def test_an_unknown_shard_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Ramdisk(tmp_path).open_shard(Address("0" * 64))


def test_descriptors_are_given_back(tmp_path: Path) -> None:
    ramdisk = Ramdisk(tmp_path)
    tag = named(ramdisk, fill_folder(tmp_path / "x"))
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count, not paths
    with ramdisk.open_shard(tag.address) as shard:
        for number in range(shard.tree.leaves):
            shard.pread_leaf(number, bytearray(1 << 20))
        shard.close()
    ramdisk.layout.tree(tag.address).write_bytes(b"garbage")
    with pytest.raises(ProtocolError):
        ramdisk.open_shard(tag.address)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
