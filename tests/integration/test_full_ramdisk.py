"""A ramdisk that is really full: a small tmpfs in a mount namespace of its own.

Each scenario runs in a process of its own, which mounts the tmpfs first; pytest only starts it and reads its verdict.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from checkpoint_replicator.errors import NoRoomError
from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.hashing import hash_shard, verify_shard
from checkpoint_replicator.ids import Epoch, Rank, SessionId, Step, Worker
from checkpoint_replicator.ramdisk import JobFence, Partial, Ramdisk, ShardName
from checkpoint_replicator.ramdisk.files import Files
from checkpoint_replicator.save import Save, ShardKey, Tag
from checkpoint_replicator.tree import Tree
from checkpoint_watcher import effects as do
from checkpoint_watcher import events as did
from checkpoint_watcher.disk import Disk
from checkpoint_watcher.record import Claim
from support.redis import absent
from support.shards import JOB, fill, named, tag_of

MIB = 1 << 20
NAME = ShardName(JOB, Step(2), ShardKey(Rank(0), Worker(0)))


def fill_up(ramdisk: Ramdisk) -> Path:
    """Take every byte that is left."""
    path = ramdisk.root / "filler"
    with path.open("wb", buffering=0) as file, suppress(OSError):
        for size in (MIB, 4096):
            with suppress(OSError):
                while file.write(bytes(size)):
                    pass
    assert ramdisk.room().free == 0
    return path


def without_spare(ramdisk: Ramdisk) -> Path:
    """Take every byte that is left, the spare's too."""
    for path in ramdisk.layout.spare.iterdir():
        path.unlink()
    return fill_up(ramdisk)


def committed(ramdisk: Ramdisk, size: int = 4 * MIB) -> Tag:
    tag = named(ramdisk, fill(ramdisk.root / "x", size), step=1)
    ramdisk.commit(JOB, [tag.save])
    return tag


def check_committed(ramdisk: Ramdisk, tag: Tag) -> None:
    assert verify_shard(ramdisk.layout.data(tag.address), ramdisk.tree(tag.address)).is_none
    (sidecar,) = [side for side in ramdisk.sidecars() if side.tag == tag]
    assert sidecar.committed
    assert ramdisk.standing(sidecar)


def a_tree_of(size: int) -> Tree:
    """Return the tree of a file elsewhere."""
    path = Path(os.environ["OUTSIDE"]) / "source"
    return hash_shard(fill(path, size, 9))


def scenario_a_copy_that_does_not_fit_is_refused_before_its_first_byte(ramdisk: Ramdisk) -> None:
    tag = committed(ramdisk)
    free = ramdisk.room().free
    with pytest.raises(NoRoomError, match="does not fit"):
        ramdisk.partial(a_tree_of(14 * MIB))
    with pytest.raises(NoRoomError, match="reserved"):  # law 8
        ramdisk.partial(a_tree_of(6 * MIB), reserve=8 * MIB)
    assert ramdisk.room().free == free
    assert ramdisk.partials() == ()
    fill(ramdisk.root / "save", 10 * MIB)
    check_committed(ramdisk, tag)


def scenario_an_allocation_that_fails_is_taken_back(ramdisk: Ramdisk) -> None:
    tag = committed(ramdisk)
    tree = a_tree_of(14 * MIB)
    free = ramdisk.room().free
    with pytest.raises(NoRoomError, match="no bytes or inodes"):
        Partial.create(ramdisk.layout.partial(tree.address), tree, Files())
    assert ramdisk.room().free == free
    assert ramdisk.partials() == ()
    check_committed(ramdisk, tag)


def scenario_an_admitted_copy_ends_well_on_a_full_ramdisk(ramdisk: Ramdisk) -> None:
    tree = a_tree_of(5 * MIB)
    data = (Path(os.environ["OUTSIDE"]) / "source").read_bytes()
    with ramdisk.partial(tree) as partial:
        filler = without_spare(ramdisk)
        for number in range(5):
            partial.put(number, data[number * MIB : (number + 1) * MIB])
        with pytest.raises(NoRoomError):
            ramdisk.name_shard(partial.data, tree, [tag_of(tree)], own=False)
        assert partial.data.exists()
        filler.unlink()
        ramdisk.name_shard(partial.data, tree, [tag_of(tree)], own=False)
    assert verify_shard(ramdisk.layout.data(tree.address), tree).is_none


def scenario_a_save_that_cannot_be_named_waits_in_its_claim(ramdisk: Ramdisk) -> None:
    tag = committed(ramdisk)
    claim = ramdisk.claim(fill(ramdisk.root / "2", MIB, 2), Epoch(1), NAME)
    tree = hash_shard(claim.path)
    filler = without_spare(ramdisk)
    for _ in range(2):
        with pytest.raises(NoRoomError):
            ramdisk.name_shard(claim.path, tree, [tag_of(tree, step=2)], own=True)
    assert not ramdisk.layout.data(tree.address).exists()
    assert not ramdisk.layout.meta("job-s2-n0-w0").exists()
    ramdisk.recover()
    assert ramdisk.claims() == (claim,)
    check_committed(ramdisk, tag)
    filler.unlink()
    ramdisk.recover()
    ramdisk.name_shard(claim.path, tree, [tag_of(tree, step=2)], own=True)
    assert ramdisk.stands(tree.address)


def scenario_a_full_ramdisk_keeps_the_old_documents_and_can_be_emptied(ramdisk: Ramdisk) -> None:
    tag = committed(ramdisk)
    older = named(ramdisk, fill(ramdisk.root / "x", 4096), epoch=0)
    stamp = Stamp(1, Epoch(1), 1)
    ramdisk.raise_fence(JOB, stamp)
    without_spare(ramdisk)
    with pytest.raises(NoRoomError):
        ramdisk.raise_fence(JOB, Stamp(2, Epoch(1), 2))
    record = ramdisk.fences.read()
    assert record is not None
    assert record.of(JOB) == JobFence(obeyed=stamp)
    assert ramdisk.drop(tag)  # dropping must need no room
    ramdisk.sweep()
    assert ramdisk.room().free >= 4 * MIB - 4096 * 32
    ramdisk.recover()
    assert ramdisk.layout.meta(tag.name).read_text() == older.address


def scenario_a_ramdisk_full_to_the_last_page_can_still_commit_and_drop(ramdisk: Ramdisk) -> None:
    tag = committed(ramdisk)
    ramdisk.recover()
    claim = ramdisk.claim(fill(ramdisk.root / "2", MIB, 2), Epoch(1), NAME)
    tree = hash_shard(claim.path)
    fill_up(ramdisk)
    newer = tag_of(tree, step=2)
    ramdisk.name_shard(claim.path, tree, [newer], own=True)
    ramdisk.commit(JOB, [newer.save])
    ramdisk.raise_fence(JOB, Stamp(1, Epoch(1), 1), newer.save)
    ramdisk.drop(tag)
    ramdisk.sweep()
    check_committed(ramdisk, newer)
    assert len(list(ramdisk.layout.spare.iterdir())) == 8


def scenario_without_inodes_nothing_is_half_named_and_the_marker_leads_to_the_data(ramdisk: Ramdisk) -> None:
    folder = ramdisk.root / "many"
    for number in range(8):
        fill(folder / str(number), 10, number)
    claim = ramdisk.claim(folder, Epoch(1), NAME)
    tree = hash_shard(claim.path)
    tag = tag_of(tree, step=2)
    fillers: list[Path] = []
    for path in ramdisk.layout.spare.iterdir():
        path.unlink()
    with suppress(OSError):
        while True:
            path = ramdisk.root / f"filler{len(fillers)}"
            path.touch()
            fillers.append(path)
    assert ramdisk.room().inodes_free == 0
    assert ramdisk.room().free > MIB
    with pytest.raises(NoRoomError):
        ramdisk.name_shard(claim.path, tree, [tag], own=True)
    assert ramdisk.claims() == (claim,)
    with pytest.raises(NoRoomError, match="inodes does not fit"):
        ramdisk.partial(a_tree_of(10))
    for _ in range(6):
        fillers.pop().unlink()
    ramdisk.name_shard(claim.path, tree, [tag], own=True)
    assert not ramdisk.publish(SessionId("session"), NAME, tree.address)
    marker = ramdisk.layout.restore(NAME)
    assert str(marker.readlink()) == f"{tree.address}.data"
    assert verify_shard(marker.resolve(), tree).is_none


def scenario_fault_7_a_full_ramdisk_ends_no_service_and_costs_no_committed_save(ramdisk: Ramdisk) -> None:
    """There the service ended with code 1, since not even its error log found room."""
    tag = committed(ramdisk)
    disk = Disk(ramdisk, threads=1)
    started = disk.start()
    assert [held.tag for held in started.held] == [tag]
    name = "job-s2-n0-w0.save"
    fill(ramdisk.root / name, MIB, 2)
    claim = Claim(JOB, Save(Epoch(1), Step(2)), tag.shape, ShardKey(Rank(0), Worker(0)))
    assert isinstance(disk.perform(do.ClaimSave(name, (ramdisk.root / name).stat().st_ino, claim)), did.SaveClaimed)
    filler = without_spare(ramdisk)
    hashed = disk.hash(do.HashClaim(claim))
    assert isinstance(hashed, did.ClaimHashed)
    newer = Tag(JOB, claim.save, tag.shape, claim.key, hashed.address, hashed.size)
    for _ in range(3):
        failed = disk.perform(do.NameShard(claim, newer))
        assert isinstance(failed, did.NamingFailed)
        assert failed.reason
        disk.perform(do.AppendErrors(f"step 2: {failed.reason}"))  # finds no room, and that is all
        disk.perform(do.PublishStatus("{}" * 4096))
    check_committed(ramdisk, tag)
    filler.unlink()
    assert disk.perform(do.NameShard(claim, newer)) == did.ShardNamed(claim, newer)
    disk.perform(do.AppendErrors("room again"))
    assert "room again" in (ramdisk.root / "replicator.errors").read_text()


def scenario_s51_of_a_hundred_tiny_copies_those_that_are_admitted_are_whole(ramdisk: Ramdisk) -> None:
    """Inodes run out while most bytes are free."""
    tag = committed(ramdisk, 4096)
    ramdisk.recover()
    stored, refused = [], []
    for number in range(100):
        tree = a_tree_of(10 + number)
        try:
            with ramdisk.partial(tree, reserve=4096, reserve_inodes=4) as partial:
                partial.put(0, (Path(os.environ["OUTSIDE"]) / "source").read_bytes())
                copy = tag_of(tree, step=10 + number)
                ramdisk.name_shard(partial.data, tree, [copy], own=False)
            ramdisk.discard_partial(tree.address)
            stored.append(copy)
        except NoRoomError as error:
            refused.append(str(error))
    assert stored
    assert refused
    assert all("inodes does not fit" in reason for reason in refused)
    room = ramdisk.room()
    assert room.free > 8 * MIB  # told apart
    assert room.inodes_free >= 4  # law 8
    assert all(verify_shard(ramdisk.layout.data(one.address), ramdisk.tree(one.address)).is_none for one in stored)
    assert ramdisk.partials() == ()
    check_committed(ramdisk, tag)
    named(ramdisk, fill(ramdisk.root / "save", 100, 3), step=2)  # the trainer's next save


def scenario_s53_a_ramdisk_that_is_almost_full_at_the_start_is_accounted_and_the_next_save_fits(
    ramdisk: Ramdisk,
) -> None:
    tag = committed(ramdisk, 14 * MIB)
    assert Disk(ramdisk, threads=1).start().held
    free = ramdisk.room().free
    for _ in range(5):  # the service is started again and again
        again = Ramdisk(ramdisk.root)
        disk = Disk(again, threads=1)
        assert [held.tag for held in disk.start().held] == [tag]
        assert again.room().free >= free  # nothing was held a second time
        with pytest.raises(NoRoomError, match="does not fit"):
            again.partial(a_tree_of(MIB), reserve=MIB)
    newer = named(again, fill(again.root / "x", MIB, 2), step=2)
    assert again.stands(newer.address)
    check_committed(again, tag)
    again.commit(JOB, [newer.save])
    again.drop(tag)  # a keep list permits it now
    again.sweep()
    assert again.room().free >= 12 * MIB


SCENARIOS = {name.removeprefix("scenario_"): run for name, run in globals().items() if name.startswith("scenario_")}


def namespace() -> Sequence[str] | None:
    """Return the words that give a program mounts of its own; None where that is not permitted."""
    for words in (("unshare", "-m"), ("unshare", "-rm")):
        with suppress(OSError):
            probe = (*words, "mount", "-t", "tmpfs", "tmpfs", "/mnt")
            if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
                return words
    return None


@pytest.fixture(scope="module")
def mounts() -> Sequence[str]:
    words = namespace()
    if words is None:
        absent("a mount namespace (root, or user namespaces)")
    assert words is not None
    return words


def test_s51_of_a_hundred_tiny_copies_those_that_are_admitted_are_whole(tmp_path: Path, mounts: Sequence[str]) -> None:
    play(tmp_path, mounts, "s51_of_a_hundred_tiny_copies_those_that_are_admitted_are_whole")


def test_s53_a_ramdisk_that_is_almost_full_at_the_start_is_accounted_and_the_next_save_fits(
    tmp_path: Path, mounts: Sequence[str]
) -> None:
    play(tmp_path, mounts, "s53_a_ramdisk_that_is_almost_full_at_the_start_is_accounted_and_the_next_save_fits")


def test_fault_7_a_full_ramdisk_ends_no_service_and_costs_no_committed_save(
    tmp_path: Path, mounts: Sequence[str]
) -> None:
    play(tmp_path, mounts, "fault_7_a_full_ramdisk_ends_no_service_and_costs_no_committed_save")


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if not name.startswith(("s5", "fault_"))])
def test_on_a_full_ramdisk(tmp_path: Path, mounts: Sequence[str], scenario: str) -> None:
    play(tmp_path, mounts, scenario)


def play(tmp_path: Path, mounts: Sequence[str], scenario: str) -> None:
    """Play a scenario in a process of its own."""
    (tmp_path / "ramdisk").mkdir()
    (tmp_path / "outside").mkdir()
    support = Path(__file__).parent.parent
    environment = os.environ | {"OUTSIDE": os.fspath(tmp_path / "outside"), "PYTHONPATH": os.fspath(support)}
    done = subprocess.run(
        (*mounts, sys.executable, __file__, scenario, tmp_path / "ramdisk"),
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr


def main(scenario: str, root: str) -> None:
    """Mount and run one scenario, inside the namespace."""
    subprocess.run(("mount", "-t", "tmpfs", "-o", "size=16m,nr_inodes=60", "tmpfs", root), check=True)
    SCENARIOS[scenario](Ramdisk(Path(root)))


if __name__ == "__main__":
    main(*sys.argv[1:])
