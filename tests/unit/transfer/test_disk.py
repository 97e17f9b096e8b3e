import errno
import os
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from checkpoint_replicator.errors import BusyError, CorruptError
from checkpoint_replicator.hashing import hash_shard
from checkpoint_replicator.ids import Address, Epoch, Host, Job, Rank, Step, Worker
from checkpoint_replicator.messages import Run
from checkpoint_replicator.ramdisk import Ramdisk
from checkpoint_replicator.save import Save, ShardKey, Tag
from checkpoint_replicator.shape import Shape
from checkpoint_replicator.tree import Directory, File, Tree
from checkpoint_transfer.buffers import Buffers
from checkpoint_transfer.disk import OLD, Disk, sizes_of
from checkpoint_transfer.effects import Naming, Reserve, ShardAbsent, ShardChecked, ShardOpened
from checkpoint_transfer.receiving import (
    LeavesStored,
    NamingFailed,
    PartialAbsent,
    PartialOpened,
    PartialRefused,
    RoomMissing,
    ShardNamed,
    ShardStood,
    StoreFailed,
    TreeSpoiled,
)
from checkpoint_transfer.source import Source
from support.transfer_net import MIB

A = Source(Host("a"))
DATA = os.urandom(2 * MIB + 5)


def tag_of(tree: Tree, step: int = 1) -> Tag:
    save = Save(Epoch(1), Step(step))
    return Tag(Job("job"), save, Shape(2, 1, 1, "pytorch"), ShardKey(Rank(0), Worker(0)), tree.address, tree.size)


class Scene:
    """A shard of one file elsewhere, and this node's empty ramdisk."""

    def __init__(self, root: Path, quota: int | None = None) -> None:
        source = root / "source"
        source.write_bytes(DATA)
        self.tree = hash_shard(source)
        self.address = self.tree.address
        self.body = (self.tree.encode(),)
        self.root = root / "ramdisk"
        self.root.mkdir()
        self.ramdisk = Ramdisk(self.root, quota)
        self.disk = Disk(self.ramdisk, Buffers(4 * MIB, 2))
        self.tag = tag_of(self.tree)

    def open(self) -> None:
        assert isinstance(self.disk.open_partial(self.address, A, self.body, None), PartialOpened)

    def fill(self) -> None:
        self.open()
        run = (Run(first=0, count=3),)
        assert self.disk.store(self.address, A, run, (DATA,), len(DATA)) == LeavesStored(A, (0, 1, 2), (), len(DATA))

    def name(self, tag: Tag | None = None) -> ShardNamed | NamingFailed:
        return self.disk.name(self.address, (Naming((tag or self.tag,), own=False),))

    @property
    def data(self) -> Path:
        return self.root / f"{self.address}.data"


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_shard_is_received_verified_and_named(scene: Scene) -> None:
    assert scene.disk.open_partial(scene.address, None, None, None) == PartialAbsent()
    scene.fill()
    assert scene.name() == ShardNamed()
    assert scene.data.read_bytes() == DATA
    assert scene.disk.open_partial(scene.address, None, None, None) == ShardStood()
    assert scene.ramdisk.partials() == ()


def test_a_bad_leaf_is_told_from_good_ones_and_not_written(scene: Scene) -> None:
    scene.open()
    garbled = bytes((DATA[0] ^ 1,)) + DATA[1:]
    stored = scene.disk.store(scene.address, A, (Run(first=0, count=3),), (garbled,), len(DATA))
    assert stored == LeavesStored(A, (1, 2), (0,), len(DATA))
    assert isinstance(scene.name(), NamingFailed)
    assert not scene.data.exists()


@pytest.mark.parametrize("body", [b"", b"short", DATA[: 2 * MIB]])
def test_a_short_frame_makes_its_last_leaves_bad(scene: Scene, body: bytes) -> None:
    scene.open()
    stored = scene.disk.store(scene.address, A, (Run(first=0, count=3),), (body,), 0)
    assert isinstance(stored, LeavesStored)
    assert stored.bad[-1] == 2


def test_a_partial_is_gone_on_with_after_it_was_closed(scene: Scene) -> None:
    scene.open()
    scene.disk.store(scene.address, A, (Run(first=1, count=1),), (DATA[MIB : 2 * MIB],), MIB)
    scene.disk.close(scene.address)
    opened = scene.disk.open_partial(scene.address, None, None, None)
    assert isinstance(opened, PartialOpened)
    assert (list(opened.have), list(opened.sizes)) == ([1], [MIB, MIB, 5])


def test_a_tree_of_another_address_or_of_none_is_spoiled(scene: Scene) -> None:
    other = Tree([Directory(b"x")]).encode()
    for body in (other, b"garbage", b""):
        assert isinstance(scene.disk.open_partial(scene.address, A, (body,), None), TreeSpoiled)
    assert scene.ramdisk.partials() == ()


def test_a_copy_without_room_beside_the_reserve_is_not_begun(tmp_path: Path) -> None:
    scene = Scene(tmp_path, quota=4 * MIB)
    assert isinstance(scene.disk.open_partial(scene.address, A, scene.body, Reserve(2 * MIB, 0)), RoomMissing)
    assert scene.ramdisk.partials() == ()
    assert isinstance(scene.disk.open_partial(scene.address, A, scene.body, Reserve(MIB, 0)), PartialOpened)


def test_what_a_copy_lacks_is_told(tmp_path: Path) -> None:
    scene = Scene(tmp_path, quota=4 * MIB)
    answer = scene.disk.open_partial(scene.address, A, scene.body, Reserve(2 * MIB, 0))
    assert isinstance(answer, RoomMissing)
    assert answer.lacking >= len(DATA) + 2 * MIB - 4 * MIB


def test_a_ramdisk_that_may_not_be_written_is_not_called_full(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = OSError(errno.EROFS, "Read-only file system")
    monkeypatch.setattr(scene.ramdisk, "partial", Mock(side_effect=refused))
    answer = scene.disk.open_partial(scene.address, A, scene.body, None)
    assert answer == PartialRefused("the ramdisk refuses a copy: [Errno 30] Read-only file system")


def test_law_8_before_the_first_save_a_copy_leaves_room_for_one_as_large_as_itself(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    small = Scene(tmp_path / "small", quota=4 * MIB)
    unknown = Reserve(0, 0, alike=True)
    assert isinstance(small.disk.open_partial(small.address, A, small.body, unknown), RoomMissing)
    (tmp_path / "large").mkdir()
    large = Scene(tmp_path / "large", quota=5 * MIB)
    assert isinstance(large.disk.open_partial(large.address, A, large.body, unknown), PartialOpened)


def partials_of_ages(scene: Scene, *ages: float) -> list[Address]:
    addresses = []
    for number, age in enumerate(ages):
        tree = Tree([File(b".", MIB, bytes((number,)) * 32)])
        scene.ramdisk.partial(tree).close()
        when = time.time() - age
        os.utime(scene.ramdisk.layout.partial(tree.address) / "bitmap", (when, when))
        addresses.append(tree.address)
    return addresses


def test_law_8_old_partials_that_nobody_fills_make_room_for_the_trainer_and_no_more_than_needed(tmp_path: Path) -> None:
    scene = Scene(tmp_path, quota=6 * MIB)
    oldest, younger, busy = partials_of_ages(scene, 500, 100, 1000)
    assert scene.disk.trim(2 * MIB, {busy}) == 0
    assert scene.disk.trim(3 * MIB, {busy}) == 1
    assert set(scene.ramdisk.partials()) == {younger, busy}
    assert scene.disk.trim(6 * MIB, {busy}) == 1
    assert scene.ramdisk.partials() == (busy,)
    assert oldest


def test_s47_a_partial_that_nobody_filled_for_a_day_goes_and_a_younger_one_stays(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    _, young = partials_of_ages(scene, OLD + 60, OLD - 60)
    broken = scene.ramdisk.layout.partials / ("e" * 64)
    broken.mkdir()
    assert scene.disk.trim(0, ()) == 2
    assert scene.ramdisk.partials() == (young,)


def test_an_open_partial_is_never_trimmed(scene: Scene) -> None:
    scene.open()
    assert scene.disk.trim(1 << 60, ()) == 0
    assert scene.ramdisk.partials() == (scene.address,)


def test_an_idle_partial_gives_way_to_a_copy_that_needs_its_room(tmp_path: Path) -> None:
    scene = Scene(tmp_path, quota=4 * MIB)
    idle = Tree([File(b".", 2 * MIB, b"d" * 64)])
    scene.ramdisk.partial(idle).close()
    assert isinstance(scene.disk.open_partial(scene.address, A, scene.body, None), PartialOpened)
    assert scene.ramdisk.partials() == (scene.address,)


def test_leaves_for_a_partial_that_is_not_open_are_refused(scene: Scene) -> None:
    assert isinstance(scene.disk.store(scene.address, A, (Run(first=0, count=1),), (DATA,), MIB), StoreFailed)


def test_another_shard_under_the_same_name_is_a_clash_and_its_partial_goes(scene: Scene, tmp_path: Path) -> None:
    other = tmp_path / "ramdisk" / "other"
    other.write_bytes(b"other")
    tree = hash_shard(other)
    scene.ramdisk.name_shard(other, tree, [tag_of(tree)], own=True)
    scene.fill()
    failed = scene.name()
    assert isinstance(failed, NamingFailed)
    assert failed.clash
    assert scene.ramdisk.partials() == ()


def test_a_second_tag_is_added_to_a_shard_that_stands(scene: Scene) -> None:
    scene.fill()
    scene.name()
    second = tag_of(scene.tree, step=2)
    assert scene.name(second) == ShardNamed()
    assert {sidecar.tag for sidecar in scene.ramdisk.sidecars()} == {scene.tag, second}


def test_leaves_are_read_a_buffer_a_run_from_shard_and_partial(scene: Scene) -> None:
    scene.fill()
    runs = (Run(first=1, count=2), Run(first=0, count=1))
    assert [bytes(frame) for frame in scene.disk.read(scene.address, runs)] == [DATA[MIB:], DATA[:MIB]]
    scene.name()
    assert bytes(scene.disk.read(scene.address, runs)[1]) == DATA[:MIB]
    scene.disk.close(scene.address)
    opened = scene.disk.open_shard(scene.address)
    assert opened == ShardOpened(scene.address, sizes_of(scene.tree))
    assert bytes(scene.disk.read(scene.address, runs)[0]) == DATA[MIB:]


def test_an_open_shard_is_not_dropped_and_a_closed_one_is(scene: Scene) -> None:
    scene.fill()
    scene.name()
    scene.disk.close(scene.address)
    scene.disk.open_shard(scene.address)
    with pytest.raises(BusyError):
        scene.ramdisk.drop(scene.tag)
    scene.disk.close(scene.address)
    assert scene.ramdisk.drop(scene.tag)
    assert isinstance(scene.disk.open_shard(scene.address), ShardAbsent)


def test_a_truncated_shard_and_one_that_is_not_open_cannot_be_read(scene: Scene) -> None:
    scene.fill()
    scene.name()
    scene.disk.close(scene.address)
    with pytest.raises(CorruptError, match="is not open here"):
        scene.disk.read(scene.address, (Run(first=0, count=1),))
    os.truncate(scene.data, 5)
    scene.disk.open_shard(scene.address)
    with pytest.raises(CorruptError, match="ends before"):
        scene.disk.read(scene.address, (Run(first=0, count=1),))


def test_a_check_tells_a_changed_shard_from_a_well_one_and_from_none(scene: Scene) -> None:
    scene.fill()
    scene.name()
    assert scene.disk.check(scene.address) == ShardChecked(scene.address, "")
    with scene.data.open("r+b") as file:
        file.write(bytes((DATA[0] ^ 1,)))
    assert "1 leaves differ, first 0" in scene.disk.check(scene.address).fault
    scene.disk.close(scene.address)
    scene.ramdisk.drop(scene.tag)
    assert scene.disk.check(scene.address) == ShardChecked(scene.address, "")


def test_what_stood_before_is_found_but_for_own_shards_that_are_still_to_be_offered(scene: Scene) -> None:
    assert scene.disk.found() == ()
    scene.fill()
    scene.name()
    assert scene.disk.found() == (scene.address,)
    scene.ramdisk.add_tags([scene.tag], own=True)
    assert scene.disk.found() == ()
    scene.ramdisk.commit(scene.tag.job, [scene.tag.save])
    assert scene.disk.found() == (scene.address,)
    scene.disk.close(scene.address)
    scene.ramdisk.drop(scene.tag)
    assert scene.disk.found() == ()


def test_a_check_ends_early_with_the_process_and_finds_nothing(scene: Scene) -> None:
    scene.fill()
    scene.name()
    with scene.data.open("r+b") as file:
        file.write(bytes((DATA[0] ^ 1,)))
    scene.disk.end()
    assert scene.disk.check(scene.address) == ShardChecked(scene.address, "")


def test_the_tree_of_a_partial_and_of_a_shard_is_the_same_text(scene: Scene) -> None:
    with pytest.raises(CorruptError, match="its tree cannot be read"):
        scene.disk.tree(scene.address)
    scene.fill()
    assert scene.disk.tree(scene.address) == scene.body[0]
    scene.name()
    scene.disk.close(scene.address)
    assert scene.disk.tree(scene.address) == scene.body[0]


def test_sizes_follow_the_leaves_through_all_files() -> None:
    files = [File(b"a", 0, b""), File(b"b", MIB + 7, b"d" * 64), File(b"c", 3, b"d" * 32)]
    assert list(sizes_of(Tree(files))) == [MIB, 7, 3]
