"""Rows about what stands on a ramdisk: real directories, and the watcher's hands on them."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.hashing import hash_shard, verify_shard
from checkpoint_replicator.ids import Address, Epoch, SessionId, Step
from checkpoint_replicator.ramdisk import Ramdisk
from checkpoint_replicator.save import Save, Tag
from checkpoint_watcher import effects as do
from checkpoint_watcher import events as did
from checkpoint_watcher.disk import Disk
from checkpoint_watcher.framework import Arrival
from checkpoint_watcher.record import Marker
from checkpoint_watcher.scan import Scanner
from support.shards import JOB, fill, fill_folder, named, tag_of

MIB = 1 << 20
STAMP = Stamp(1, Epoch(2), 3)


@pytest.fixture
def ramdisk(tmp_path: Path) -> Ramdisk:
    (tmp_path / "ramdisk").mkdir()
    return Ramdisk(tmp_path / "ramdisk")


def public(ramdisk: Ramdisk) -> set[str]:
    return {path.name for path in ramdisk.root.iterdir()} - {".replicator"}


def verified(disk: Disk, address: Address) -> str:
    """Hash a shard again; returns what is wrong with it."""
    answer = disk.verify(do.VerifyShard(address, STAMP))
    assert isinstance(answer, did.ShardVerified)
    return answer.reason


# ---- A


def test_s04_a_second_content_for_a_step_is_refused_at_any_point_and_all_of_the_first_stays(ramdisk: Ramdisk) -> None:
    first = named(ramdisk, fill_folder(ramdisk.root / "a", 1), step=10)
    ramdisk.commit(JOB, [first.save])
    disk = Disk(ramdisk, threads=1)
    second = fill_folder(ramdisk.root / "b", 2)
    tree = hash_shard(second)
    with pytest.raises(Exception, match="saved before"):
        ramdisk.name_shard(second, tree, [tag_of(tree, step=10)], own=True)
    fill(ramdisk.layout.partial(tree.address) / "data" / "a", 500, 2)  # and half of its files on their way in
    assert verified(disk, first.address) == ""
    assert (ramdisk.root / f"{first.name}.meta").read_text() == first.address
    assert [side.tag for side in ramdisk.sidecars()] == [first]


def test_s09_a_torn_newest_save_and_one_without_its_hash_hide_no_good_one(ramdisk: Ramdisk) -> None:
    good, unmarked, torn = (named(ramdisk, fill_folder(ramdisk.root / "x", step), step=step) for step in (1, 2, 3))
    tree = ramdisk.layout.tree(torn.address)
    tree.write_bytes(tree.read_bytes()[:-30])
    sidecar = ramdisk.layout.sidecar(unmarked)
    sidecar.write_text(sidecar.read_text().replace(unmarked.address, ""))
    ramdisk.recover()
    disk = Disk(Ramdisk(ramdisk.root), threads=1)
    held = {one.tag for one in disk.start().held}
    assert good in held
    assert unmarked not in held
    assert [verified(disk, tag.address) == "" for tag in sorted(held)] == [tag == good for tag in sorted(held)]
    assert ramdisk.layout.data(torn.address).exists()  # nothing is deleted by a doubt
    assert ramdisk.layout.data(unmarked.address).exists()


@pytest.mark.parametrize("junk", ["file", "folder", "partial", "torn partial", "aside"])
def test_s14_junk_of_a_dead_writer_is_never_taken_for_a_copy_and_is_gone_after_the_next(
    ramdisk: Ramdisk, tmp_path: Path, junk: str
) -> None:
    source = fill_folder(tmp_path / "x")
    tree = hash_shard(source)
    partial = ramdisk.layout.partial(tree.address)
    match junk:
        case "file":
            ramdisk.layout.data(tree.address).write_bytes(b"junk")
        case "folder":
            fill(ramdisk.layout.data(tree.address) / "a", 1000, 9)
        case "partial":
            fill_folder(partial / "data", 5)
            (partial / "tree").write_bytes(tree.encode())
            (partial / "bitmap").write_bytes(b"\xff" * 10)
        case "torn partial":
            fill(partial / "data", 10)
        case _:
            fill(ramdisk.layout.aside / f"{tree.address}.tree", 10)
    assert not ramdisk.stands(tree.address)
    with ramdisk.partial(tree) as copy:
        for number in range(tree.leaves):
            leaf = tree.leaf(number)
            data = (source / os.fsdecode(leaf.path)).read_bytes()[leaf.offset : leaf.offset + leaf.size]
            copy.put(number, data)
        assert copy.is_whole
        ramdisk.name_shard(copy.data, tree, [tag_of(tree)], own=False)
    ramdisk.discard_partial(tree.address)
    ramdisk.recover()
    ramdisk.sweep()
    assert verify_shard(ramdisk.layout.data(tree.address), tree).is_none
    assert public(ramdisk) == {f"{tree.address}.data", "job-s1-n0-w0.meta"}
    assert [list(folder.iterdir()) for folder in (ramdisk.layout.partials, ramdisk.layout.aside)] == [[], []]


def test_s20_a_directory_with_the_highest_number_is_no_save_and_stays(ramdisk: Ramdisk) -> None:
    saved = named(ramdisk, fill_folder(ramdisk.root / "7"), step=7)
    (ramdisk.root / "999999").mkdir()
    scanner = Scanner(ramdisk.root)
    for moment in range(60):
        snapshot = scanner.scan(moment)
        assert snapshot.finished == ()
    assert snapshot.unfinished == ("999999",)  # status shows it
    disk = Disk(ramdisk, threads=1)
    assert [held.tag for held in disk.start().held] == [saved]
    disk.perform(do.CleanUp())
    assert (ramdisk.root / "999999").is_dir()


# ---- B and C


def test_s47_fifty_crashes_amid_a_save_leave_no_byte_behind(ramdisk: Ramdisk) -> None:
    from support.shards import Crash, CrashingFiles

    tag = named(ramdisk, fill(ramdisk.root / "x", 3 * MIB))
    ramdisk.sweep()
    ramdisk.recover()
    baseline = ramdisk.layout.root
    before = _usage(baseline)
    for crash in range(50):
        claim = ramdisk.layout.claims / "1" / "job-s2-n0-w0"
        fill(claim, MIB, crash)
        tree = hash_shard(claim)
        with pytest.raises(Crash):
            Ramdisk(ramdisk.root, files=CrashingFiles(crash % 6)).name_shard(
                claim, tree, [tag_of(tree, step=2)], own=True
            )
        ramdisk.recover()
        for found in ramdisk.claims():
            ramdisk.discard(found)
        for side in ramdisk.sidecars():
            if side.tag != tag:
                ramdisk.drop(side.tag)
        ramdisk.sweep()
    assert _usage(baseline) <= before * 1.01


def _usage(root: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in root.rglob("*"))


def test_s53_what_stands_at_the_start_counts_and_is_never_held_twice(tmp_path: Path) -> None:
    root = tmp_path / "ramdisk"
    root.mkdir()
    quota = 10 * MIB
    first = Ramdisk(root, quota)
    tag = named(first, fill(root / "x", 9 * MIB))  # 90 % full
    for _ in range(3):  # the service is started again and again
        again = Ramdisk(root, quota)
        disk = Disk(again, threads=1)
        assert [held.tag for held in disk.start().held] == [tag]
        assert verified(disk, tag.address) == ""
        room = again.room()
        assert room.size == quota
        assert 0 < room.free <= MIB
    with pytest.raises(Exception, match="does not fit"):
        again.partial(hash_shard(fill(tmp_path / "copy", 2 * MIB, 5)))
    second = named(again, fill(root / "y", MIB // 2, 2), step=2)  # the trainer's next save
    assert verified(Disk(again, threads=1), second.address) == ""
    assert again.stands(tag.address)


# ---- what an earlier replicator did


def flip(data: Path) -> None:
    with (data / "sub" / "b").open("r+b") as file:
        file.write(b"\xff")


def shorten(data: Path) -> None:
    os.truncate(data / "sub" / "b", 1000)


def lose_a_file(data: Path) -> None:
    (data / "a").unlink()


@pytest.mark.parametrize("harm", [flip, shorten, lose_a_file])
def test_fault_8_a_damaged_own_copy_is_never_handed_out_and_a_peer_repairs_it_leaf_by_leaf(
    ramdisk: Ramdisk, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    tag = named(ramdisk, fill_folder(ramdisk.root / "x"))
    tree = ramdisk.tree(tag.address)
    good = fill_folder(tmp_path / "peer")
    harm(ramdisk.layout.data(tag.address))
    disk = Disk(ramdisk, threads=1)
    assert verified(disk, tag.address)
    assert disk.perform(do.Quarantine(tag.address)) == did.ShardQuarantined(tag.address)
    assert public(ramdisk) == set()
    asked = 0
    with ramdisk.partial(tree) as partial:
        for run in list(partial.missing()):
            for number in range(run.first, run.first + run.count):
                leaf = tree.leaf(number)
                data = (good / os.fsdecode(leaf.path)).read_bytes()[leaf.offset : leaf.offset + leaf.size]
                partial.put(number, data)
                asked += 1
        ramdisk.name_shard(partial.data, tree, [tag], own=True)
    assert 0 < asked < tree.leaves
    assert verified(disk, tag.address) == ""


@pytest.mark.parametrize("text", ["", "a" * 64 + "\n" + "b" * 64, "../../etc/passwd", "no address", "\0"])
def test_fault_10_a_meta_that_names_nothing_costs_no_copy_and_ours_is_written_anew(ramdisk: Ramdisk, text: str) -> None:
    """There the step was invalid, and then every copy on every node was deleted."""
    one = named(ramdisk, fill(ramdisk.root / "x", 10, 1), step=1)
    two = named(ramdisk, fill(ramdisk.root / "x", 10, 2), step=2)
    (ramdisk.root / f"{two.name}.meta").write_text(text)
    foreign = ramdisk.root / "job-s9-n0-w0.meta"
    foreign.write_text(text)
    disk = Disk(Ramdisk(ramdisk.root), threads=1)
    assert {held.tag for held in disk.start().held} == {one, two}
    assert (ramdisk.root / f"{two.name}.meta").read_text() == two.address
    assert foreign.read_text() == text
    assert [verified(disk, tag.address) for tag in (one, two)] == ["", ""]


def test_fault_20_a_directory_that_is_made_first_and_filled_then_is_left_to_its_trainer(ramdisk: Ramdisk) -> None:
    """There it was renamed at once, empty, and called replicated; the trainer's files had no place any more."""
    scanner = Scanner(ramdisk.root)
    step = ramdisk.root / "7"
    step.mkdir()
    now = 0.0
    for part in range(5):
        for _ in range(8):  # two seconds and more between two files
            now += 0.3
            assert scanner.scan(now, {"7": Arrival.NONE}).finished == ()
        with (step / f"__{part}_0.distcp").open("wb") as file:  # the trainer finds its directory
            file.write(bytes(1000))
            assert scanner.scan(now).finished == ()
    (step / ".metadata").write_bytes(pickle.dumps([f"__{part}_0.distcp" for part in range(5)]))
    scanner.scan(now + 1)
    (found,) = scanner.scan(now + 2.1).finished
    assert (found.name, found.size > 5000) == ("7", True)


def test_fault_22_foreign_files_stay_at_the_start_at_a_yaml_and_at_every_deletion(ramdisk: Ramdisk) -> None:
    """There all of these went."""
    root = ramdisk.root
    (root / "notes.txt").write_text("mine")
    (root / "logs").mkdir()
    (root / "logs" / "x.data").write_text("mine")
    (root / "link").symlink_to("logs")
    (root / f"{'a' * 64}.data").write_text("another's")
    (root / "other-s1-n0-w0.meta").write_text("a" * 64)
    (root / "jax-init-info.txt").write_text("mine")
    before = {path: path.lstat().st_ino for path in root.rglob("*") if ".replicator" not in path.parts}
    tags: list[Tag] = [named(ramdisk, fill(root / f"x{step}", 10, step), step=step) for step in (1, 2)]
    disk = Disk(Ramdisk(root), threads=1)
    disk.start()
    disk.perform(do.CleanUp())
    disk.perform(do.PublishMarkers(SessionId("s"), (Marker("job-s2-n0-w0.restore", tags[1].address),)))
    disk.perform(do.DropSaves((tags[0],)))
    disk.perform(do.CleanUp())
    disk.perform(do.DropSaves((tags[1],)))
    disk.sweep()
    disk.perform(do.TakeInventory(recover=True))
    now = {path: path.lstat().st_ino for path in root.rglob("*") if ".replicator" not in path.parts}
    assert now == before


def test_fault_23_a_start_under_another_job_name_deletes_nothing_of_the_right_one(ramdisk: Ramdisk) -> None:
    tag = named(ramdisk, fill(ramdisk.root / "x", 10))
    disk = Disk(Ramdisk(ramdisk.root), threads=1)
    started = disk.start()
    assert [held.tag for held in started.held] == [tag]
    disk.perform(do.CleanUp())
    typo = Save(Epoch(1), Step(1))
    disk.perform(do.MarkCommitted(type(JOB)("jbo"), typo))
    disk.sweep()
    assert ramdisk.stands(tag.address)
    assert not ramdisk.sidecars()[0].committed
