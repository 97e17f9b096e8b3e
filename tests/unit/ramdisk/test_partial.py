import errno
import os
import random
import threading
from pathlib import Path

import pytest

from checkpoint_replicator.errors import CorruptError, NoRoomError, ProtocolError
from checkpoint_replicator.hashing import hash_shard, verify_shard
from checkpoint_replicator.messages import Run
from checkpoint_replicator.ramdisk import Partial, Ramdisk
from checkpoint_replicator.ramdisk.files import Files
from checkpoint_replicator.tree import Tree
from support.shards import Crash, CrashingFiles, fill, fill_folder, named, tag_of

MIB = 1 << 20


def leaves_of(source: Path, tree: Tree) -> list[bytes]:
    found = []
    for number in range(tree.leaves):
        wanted = tree.leaf(number)
        path = source if wanted.path == b"." else source / os.fsdecode(wanted.path)
        found.append(path.read_bytes()[wanted.offset : wanted.offset + wanted.size])
    return found


@pytest.fixture
def ramdisk(tmp_path: Path) -> Ramdisk:
    (tmp_path / "ramdisk").mkdir()
    return Ramdisk(tmp_path / "ramdisk")


@pytest.mark.parametrize("folder", [True, False])
def test_leaves_in_any_order_make_the_shard(tmp_path: Path, ramdisk: Ramdisk, *, folder: bool) -> None:
    source = fill_folder(tmp_path / "x") if folder else fill(tmp_path / "x", 3 * MIB + 1)
    tree = hash_shard(source)
    leaves = list(enumerate(leaves_of(source, tree)))
    random.Random(1).shuffle(leaves)
    with ramdisk.partial(tree) as partial:
        for number, data in leaves:
            assert not partial.is_whole
            partial.put(number, data)
            partial.put(number, data)
        assert partial.is_whole
        assert partial.have_bytes == tree.size
        assert list(partial.missing()) == []
        ramdisk.name_shard(partial.data, tree, [tag_of(tree)], own=False)
    ramdisk.discard_partial(tree.address)
    assert ramdisk.stands(tree.address)
    assert verify_shard(ramdisk.layout.data(tree.address), tree).is_none
    assert ramdisk.partials() == ()


def test_an_empty_shard_is_whole_at_once(tmp_path: Path, ramdisk: Ramdisk) -> None:
    (tmp_path / "x" / "void").mkdir(parents=True)
    for source in (tmp_path / "x", fill(tmp_path / "f", 0)):
        tree = hash_shard(source)
        with ramdisk.partial(tree) as partial:
            assert partial.is_whole
            ramdisk.name_shard(partial.data, tree, [tag_of(tree, step=tree.is_directory)], own=False)
        assert verify_shard(ramdisk.layout.data(tree.address), tree).is_none


def test_verified_leaves_survive_the_process(tmp_path: Path, ramdisk: Ramdisk) -> None:
    source = fill(tmp_path / "x", 12 * MIB)
    tree = hash_shard(source)
    leaves = leaves_of(source, tree)
    with ramdisk.partial(tree) as partial:
        for number in (0, 3, 4, 11):
            partial.put(number, leaves[number])
    with ramdisk.partial(tree) as partial:
        assert (partial.have, partial.have_bytes) == (4, 4 * MIB)
        assert list(partial.missing()) == [Run(first=1, count=2), Run(first=5, count=6)]
        buffer = bytearray(MIB)
        assert partial.pread_leaf(3, buffer) == MIB
        assert buffer == leaves[3]
        with pytest.raises(CorruptError, match="not here yet"):
            partial.pread_leaf(5, buffer)


def test_what_was_noted_is_verified_when_it_is_gone_on_with(tmp_path: Path, ramdisk: Ramdisk) -> None:
    tree = hash_shard(fill(tmp_path / "x", 12 * MIB))
    leaves = leaves_of(tmp_path / "x", tree)
    with ramdisk.partial(tree) as partial:
        partial.put(3, leaves[3])
        partial.put(4, leaves[4])
    with partial.data.open("r+b") as file:
        file.seek(4 * MIB)
        file.write(b"damage")
    (partial.folder / "bitmap").write_bytes(b"\xff\xff")
    for _ in range(2):
        with ramdisk.partial(tree) as again:
            assert (again.have, again.has(3), again.has(4)) == (1, True, False)


@pytest.mark.parametrize("damage", [b"", b"short", b"\0" * MIB])
def test_a_bad_leaf_is_not_written(tmp_path: Path, ramdisk: Ramdisk, damage: bytes) -> None:
    tree = hash_shard(fill(tmp_path / "x", 2 * MIB))
    with ramdisk.partial(tree) as partial:
        with pytest.raises(CorruptError, match="another digest"):
            partial.put(1, damage)
        assert partial.have == 0
        for number in (-1, 2, 10**12):
            with pytest.raises(ProtocolError):
                partial.put(number, b"")


def test_threads_may_put_at_once(tmp_path: Path, ramdisk: Ramdisk) -> None:
    tree = hash_shard(fill(tmp_path / "x", 33 * MIB))
    leaves = leaves_of(tmp_path / "x", tree)
    with ramdisk.partial(tree) as partial:

        def put(start: int) -> None:
            for number in range(start, 33, 2):
                partial.put(number, leaves[number])

        threads = [threading.Thread(target=put, args=(start,)) for start in (0, 1, 0)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert partial.have == 33
    assert verify_shard(partial.data, tree).is_none


def test_all_room_is_taken_before_the_first_leaf(tmp_path: Path, ramdisk: Ramdisk) -> None:
    tree = hash_shard(fill(tmp_path / "x", 5 * MIB))
    with ramdisk.partial(tree) as partial:
        assert partial.data.stat().st_size == 5 * MIB
        assert partial.data.stat().st_blocks * 512 >= 5 * MIB


def test_an_allocation_that_fails_leaves_nothing(
    tmp_path: Path, ramdisk: Ramdisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = hash_shard(fill_folder(tmp_path / "x"))
    real = os.posix_fallocate

    def full(fd: int, offset: int, length: int) -> None:
        if length > MIB:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(fd, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(NoRoomError, match="no bytes or inodes"):
        ramdisk.partial(tree)
    assert ramdisk.partials() == ()


def test_the_reserve_of_the_trainer_is_left_alone(tmp_path: Path) -> None:
    tree = hash_shard(fill(tmp_path / "x", 4 * MIB))
    (tmp_path / "r").mkdir()
    ramdisk = Ramdisk(tmp_path / "r", quota=10 * MIB)
    with pytest.raises(NoRoomError, match="reserved"):
        ramdisk.partial(tree, reserve=7 * MIB)
    assert ramdisk.partials() == ()
    with pytest.raises(NoRoomError, match="inodes does not fit"):
        ramdisk.partial(tree, reserve_inodes=1 << 41)
    ramdisk.partial(tree, reserve=5 * MIB).close()
    assert ramdisk.room().free <= 6 * MIB
    with pytest.raises(NoRoomError):  # the room of a partial is counted though it is empty
        ramdisk.partial(hash_shard(fill(tmp_path / "y", 4 * MIB, 2)), reserve=5 * MIB)
    ramdisk.partial(tree, reserve=1 << 40).close()  # what was admitted goes on


def test_good_leaves_of_a_corrupt_copy_need_not_travel(ramdisk: Ramdisk) -> None:
    tag = named(ramdisk, fill(ramdisk.root / "x", 6 * MIB))
    tree = ramdisk.tree(tag.address)
    leaves = leaves_of(ramdisk.layout.data(tag.address), tree)
    with ramdisk.layout.data(tag.address).open("r+b") as file:
        file.seek(2 * MIB + 5)
        file.write(b"damage")
        file.truncate(5 * MIB)
    ramdisk.condemn(tag.address)
    with ramdisk.partial(tree) as partial:
        assert list(partial.missing()) == [Run(first=2, count=1), Run(first=5, count=1)]
        assert not (partial.folder / "seed").exists()
        for number in (2, 5):
            partial.put(number, leaves[number])
        ramdisk.name_shard(partial.data, tree, [tag], own=True)
    assert verify_shard(ramdisk.layout.data(tag.address), tree).is_none


def test_a_seed_without_a_good_leaf_does_no_harm(tmp_path: Path, ramdisk: Ramdisk) -> None:
    tree = hash_shard(fill_folder(tmp_path / "x"))
    folder = ramdisk.layout.partial(tree.address)
    folder.mkdir()
    (folder / "seed").symlink_to("/etc")
    with ramdisk.partial(tree) as partial:
        assert partial.have == 0
        assert partial.seed(tmp_path / "none") == 0
        assert partial.seed(fill(tmp_path / "f", 10)) == 0


def test_a_seed_gives_way_when_room_is_short(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    ramdisk = Ramdisk(tmp_path / "r", quota=6 * MIB)
    tag = named(ramdisk, fill(ramdisk.root / "x", 4 * MIB))
    tree = ramdisk.tree(tag.address)
    ramdisk.condemn(tag.address)
    ramdisk.sweep()
    with ramdisk.partial(tree) as partial:
        assert partial.have == 0


@pytest.mark.parametrize("name", ["tree", "bitmap", "data"])
@pytest.mark.parametrize("garbage", [None, b"", b"garbage"])
def test_s14_a_damaged_partial_is_begun_anew(
    tmp_path: Path, ramdisk: Ramdisk, name: str, garbage: bytes | None
) -> None:
    source = fill_folder(tmp_path / "x")
    tree = hash_shard(source)
    ramdisk.partial(tree).close()
    folder = ramdisk.layout.partial(tree.address)
    Files().remove(folder / name)
    if garbage is not None:
        (folder / name).write_bytes(garbage)
    with ramdisk.partial(tree) as partial:
        assert partial.have == 0
        for number, data in enumerate(leaves_of(source, tree)):
            partial.put(number, data)
        assert verify_shard(partial.data, tree).is_none


def test_a_file_that_vanished_under_a_partial_is_no_fault_of_the_sender(tmp_path: Path, ramdisk: Ramdisk) -> None:
    source = fill_folder(tmp_path / "x")
    tree = hash_shard(source)
    with ramdisk.partial(tree) as partial:
        (partial.data / "a").unlink()
        with pytest.raises(ProtocolError, match="the partial was damaged"):
            partial.put(0, leaves_of(source, tree)[0])
        assert partial.have == 0
    assert ramdisk.open_partial(tree.address) is None
    with ramdisk.partial(tree) as partial:
        partial.put(0, leaves_of(source, tree)[0])


def test_a_crash_while_a_partial_is_made_leaves_one_that_is_begun_anew(tmp_path: Path) -> None:
    tree = hash_shard(fill_folder(tmp_path / "x"))
    for point in range(100):
        root = tmp_path / str(point)
        root.mkdir()
        Ramdisk(root)
        try:
            Ramdisk(root, files=CrashingFiles(point)).partial(tree).close()
        except Crash:
            ramdisk = Ramdisk(root)
            opened = Partial.open(ramdisk.layout.partial(tree.address))
            if opened is not None:
                opened.close()
            with ramdisk.partial(tree) as partial:
                assert partial.have == 0
        else:
            return
    pytest.fail("it never ended")
