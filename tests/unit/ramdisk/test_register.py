import os
from collections.abc import Callable
from pathlib import Path

import pytest

from checkpoint_replicator.errors import BusyError, CorruptError, ProtocolError, RefusedError
from checkpoint_replicator.hashing import hash_shard
from checkpoint_replicator.ids import Epoch, Rank, SessionId, Step, Worker
from checkpoint_replicator.ramdisk import Inventory, Ramdisk, ShardName, parse_data
from checkpoint_replicator.ramdisk.sidecar import Reader
from checkpoint_replicator.save import Save, ShardKey
from checkpoint_replicator.tree import Tree
from support.shards import JOB, Crash, CrashingFiles, fill, fill_folder, named, tag_of

SESSION = SessionId("session")
NAME = ShardName(JOB, Step(1), ShardKey(Rank(0), Worker(0)))


@pytest.fixture
def ramdisk(tmp_path: Path) -> Ramdisk:
    return Ramdisk(tmp_path)


def meta(ramdisk: Ramdisk, step: int = 1) -> str | None:
    path = ramdisk.root / f"job-s{step}-n0-w0.meta"
    return path.read_text() if path.exists() else None


def public(ramdisk: Ramdisk) -> set[str]:
    return {path.name for path in ramdisk.root.iterdir()} - {".replicator"}


# ---- naming


def test_a_named_shard_has_data_meta_tree_and_sidecar(ramdisk: Ramdisk) -> None:
    source = fill_folder(ramdisk.root / "1")
    tree = hash_shard(source)
    tag = tag_of(tree)
    (sidecar,) = ramdisk.name_shard(source, tree, [tag], own=True, verified_at=5.0)
    assert public(ramdisk) == {f"{tree.address}.data", "job-s1-n0-w0.meta"}
    assert meta(ramdisk) == tree.address
    assert ramdisk.tree(tree.address) == tree
    assert ramdisk.sidecars() == (sidecar,)
    assert (sidecar.tag, sidecar.own, sidecar.committed, sidecar.verified_at) == (tag, True, False, 5.0)
    assert ramdisk.standing(sidecar)
    assert ramdisk.stands(tree.address)


def test_the_highest_epoch_of_a_name_is_shown(ramdisk: Ramdisk) -> None:
    newer = named(ramdisk, fill(ramdisk.root / "x", 10, 2), epoch=2)
    older = named(ramdisk, fill(ramdisk.root / "x", 10, 1), epoch=1)
    assert meta(ramdisk) == newer.address
    ramdisk.drop(newer)
    assert meta(ramdisk) == older.address
    ramdisk.drop(older)
    assert meta(ramdisk) is None


def test_the_same_bytes_again_get_another_tag_and_the_source_goes(ramdisk: Ramdisk) -> None:
    first = named(ramdisk, fill(ramdisk.root / "x", 10), step=1)
    inode = ramdisk.layout.data(first.address).stat().st_ino
    second = named(ramdisk, fill(ramdisk.root / "x", 10), step=2)
    assert ramdisk.layout.data(first.address).stat().st_ino == inode
    assert public(ramdisk) == {f"{first.address}.data", "job-s1-n0-w0.meta", "job-s2-n0-w0.meta"}
    ramdisk.drop(first)
    assert ramdisk.stands(second.address)
    ramdisk.drop(second)
    assert public(ramdisk) == set()


def test_naming_twice_changes_nothing(ramdisk: Ramdisk) -> None:
    source = fill(ramdisk.root / "x", 10)
    tree = hash_shard(source)
    ramdisk.name_shard(source, tree, [tag_of(tree)], own=True)
    before = ramdisk.sidecars()
    ramdisk.commit(JOB, [before[0].tag.save])
    ramdisk.add_tags([tag_of(tree)], own=False)
    (after,) = ramdisk.sidecars()
    assert after.committed
    assert after.own


def test_tags_are_added_only_to_what_stands(ramdisk: Ramdisk) -> None:
    tag = named(ramdisk, fill(ramdisk.root / "x", 10), own=False)
    tree = ramdisk.tree(tag.address)
    ramdisk.add_tags([tag_of(tree, step=2)], own=False)
    assert meta(ramdisk, 2) == tag.address
    os.truncate(ramdisk.layout.data(tag.address), 3)
    with pytest.raises(CorruptError, match="does not stand"):
        ramdisk.add_tags([tag_of(tree, step=3)], own=False)
    with pytest.raises(CorruptError, match="no tree"):
        ramdisk.add_tags([tag_of(Tree([]))], own=False)


def test_changed_bytes_under_an_address_are_replaced_by_verified_ones(ramdisk: Ramdisk) -> None:
    tag = named(ramdisk, fill(ramdisk.root / "x", 10), step=1)
    os.truncate(ramdisk.layout.data(tag.address), 3)
    assert not ramdisk.standing(ramdisk.sidecars()[0])
    named(ramdisk, fill(ramdisk.root / "x", 10), step=2)
    assert all(ramdisk.standing(sidecar) for sidecar in ramdisk.sidecars())
    assert hash_shard(ramdisk.layout.data(tag.address)).address == tag.address


def test_foreign_bytes_under_an_address_are_replaced(ramdisk: Ramdisk) -> None:
    source = fill(ramdisk.root / "x", 10)
    address = hash_shard(source).address
    fill_folder(ramdisk.layout.data(address))
    tag = named(ramdisk, source)
    assert ramdisk.stands(tag.address)


def test_data_that_has_its_name_already_gets_a_sidecar(ramdisk: Ramdisk) -> None:
    source = fill(ramdisk.root / "x", 10)
    tree = hash_shard(source)
    source.rename(ramdisk.layout.data(tree.address))
    assert named(ramdisk, ramdisk.layout.data(tree.address)).address == tree.address
    assert ramdisk.stands(tree.address)


def test_other_bytes_for_a_standing_name_and_epoch_are_refused(ramdisk: Ramdisk) -> None:
    first = named(ramdisk, fill(ramdisk.root / "x", 10, 1))
    with pytest.raises(RefusedError, match="saved before"):
        named(ramdisk, fill(ramdisk.root / "x", 10, 2))
    assert meta(ramdisk) == first.address
    assert (ramdisk.root / "x").exists()


def test_a_tag_that_does_not_fit_its_tree_is_refused(ramdisk: Ramdisk) -> None:
    source = fill(ramdisk.root / "x", 10)
    tree = hash_shard(source)
    with pytest.raises(ProtocolError, match="its tag says"):
        ramdisk.name_shard(source, tree, [tag_of(Tree([]))], own=True)
    with pytest.raises(ProtocolError, match="needs a tag"):
        ramdisk.name_shard(source, tree, [], own=True)
    assert public(ramdisk) == {"x"}


# ---- dropping


def test_dropping_frees_the_name_and_sweeping_the_room(ramdisk: Ramdisk) -> None:
    tag = named(ramdisk, fill_folder(ramdisk.root / "x"))
    ramdisk.publish(SESSION, NAME, tag.address)
    assert ramdisk.drop(tag)
    assert not ramdisk.drop(tag)
    assert public(ramdisk) == {"job-s1-n0-w0.restore"}
    assert not (ramdisk.root / "job-s1-n0-w0.restore").exists()
    assert ramdisk.sweep() == 0
    left = {path for path in ramdisk.layout.private.rglob("*") if path.is_file()}
    assert left - set(ramdisk.layout.spare.iterdir()) == {ramdisk.layout.names_lock}


@pytest.mark.parametrize("how", ["directory", "pipe", "link", "gone"])
def test_a_shard_whose_tree_is_no_file_any_more_is_dropped_all_the_same(ramdisk: Ramdisk, how: str) -> None:
    tag = named(ramdisk, fill(ramdisk.root / "x", 10, 1))
    tree = ramdisk.layout.tree(tag.address)
    tree.unlink()
    match how:
        case "directory":
            tree.mkdir()
            (tree / "x").touch()
        case "pipe":
            os.mkfifo(tree)
        case "link":
            tree.symlink_to("nowhere")
    assert ramdisk.drop(tag)
    assert not os.path.lexists(tree)
    assert public(ramdisk) == set()
    assert ramdisk.sweep() == 0


def test_s28_a_shard_that_is_read_is_not_dropped(ramdisk: Ramdisk) -> None:
    tag = named(ramdisk, fill(ramdisk.root / "x", 10))
    before = ramdisk.sidecars(), public(ramdisk)
    with ramdisk.open_shard(tag.address):
        with pytest.raises(BusyError, match="being read"):
            ramdisk.drop(tag)
        with pytest.raises(BusyError, match="being read"):
            ramdisk.condemn(tag.address)
        assert (ramdisk.sidecars(), public(ramdisk)) == before
    assert ramdisk.drop(tag)
    with pytest.raises(FileNotFoundError):
        ramdisk.open_shard(tag.address)


def test_a_foreign_meta_stays(ramdisk: Ramdisk) -> None:
    foreign = ramdisk.root / "job-s5-n0-w0.meta"
    foreign.write_text("a" * 64)
    tag = named(ramdisk, fill(ramdisk.root / "x", 10))
    ramdisk.recover()
    ramdisk.drop(tag)
    assert public(ramdisk) == {foreign.name}
    assert [text for _, text in ramdisk.strays()] == ["a" * 64]


def test_nothing_is_discarded_while_a_sidecar_cannot_be_read(ramdisk: Ramdisk) -> None:
    tag = named(ramdisk, fill(ramdisk.root / "x", 10), step=1)
    named(ramdisk, fill(ramdisk.root / "x", 10), step=2)
    path = ramdisk.layout.saves / "1" / "job-s2-n0-w0.json"
    path.write_bytes(b"{")
    ramdisk.drop(tag)
    recovery = ramdisk.recover()
    assert str(path) in str(recovery.unreadable[0])
    assert recovery.dropped == ()
    assert ramdisk.layout.data(tag.address).exists()
    assert meta(ramdisk, 2) == tag.address
    assert path.read_bytes() == b"{"


def test_commit_is_noted_once(ramdisk: Ramdisk) -> None:
    named(ramdisk, fill(ramdisk.root / "x", 10, 1), step=1)
    named(ramdisk, fill(ramdisk.root / "x", 10, 2), step=2)
    save = Save(Epoch(1), Step(2))
    assert ramdisk.commit(JOB, [save]) == 1
    assert ramdisk.commit(JOB, [save]) == 0
    assert [sidecar.committed for sidecar in ramdisk.sidecars()] == [False, True]


def test_condemned_bytes_lose_every_name_and_become_a_seed(ramdisk: Ramdisk) -> None:
    tag = named(ramdisk, fill_folder(ramdisk.root / "x"), step=1)
    ramdisk.add_tags([tag_of(ramdisk.tree(tag.address), step=2)], own=False)
    assert len(ramdisk.condemn(tag.address)) == 2
    assert public(ramdisk) == set()
    assert ramdisk.sidecars() == ()
    assert (ramdisk.layout.partial(tag.address) / "seed" / "a").exists()
    assert ramdisk.condemn(tag.address) == ()


# ---- crashes

Action = Callable[[Ramdisk], object]


def name_one(ramdisk: Ramdisk) -> None:
    """What a watcher does with a claim, again after a restart if it still stands."""
    source = ramdisk.layout.claims / "2" / "job-s1-n0-w0"
    if source.exists():
        tree = hash_shard(source)
        ramdisk.name_shard(source, tree, [tag_of(tree, epoch=2)], own=True)


def drop_one(ramdisk: Ramdisk) -> None:
    for sidecar in ramdisk.sidecars():
        if sidecar.tag.save.epoch == 1:
            ramdisk.drop(sidecar.tag)


def condemn_one(ramdisk: Ramdisk) -> None:
    for sidecar in ramdisk.sidecars():
        if sidecar.tag.save.epoch == 1:
            ramdisk.condemn(sidecar.tag.address)


def replace_one(ramdisk: Ramdisk) -> None:
    """Name verified bytes over changed ones of the same address."""
    source = ramdisk.layout.claims / "3" / "job-s1-n0-w0"
    if source.exists():
        tree = hash_shard(source)
        ramdisk.name_shard(source, tree, [tag_of(tree, epoch=3)], own=False)


def publish_one(ramdisk: Ramdisk) -> None:
    ramdisk.publish(SESSION, NAME, ramdisk.sidecars()[0].tag.address)


def prepare(root: Path, *, changed: bool) -> None:
    """A committed save of epoch 1 under the name, a claim of epoch 2 with other bytes, one of epoch 3 with the same."""
    ramdisk = Ramdisk(root)
    tag = named(ramdisk, fill_folder(root / "x", 1), epoch=1)
    ramdisk.commit(JOB, [tag.save])
    fill_folder(ramdisk.layout.claims / "2" / "job-s1-n0-w0", 2)
    fill_folder(ramdisk.layout.claims / "3" / "job-s1-n0-w0", 1)
    if changed:
        os.truncate(ramdisk.layout.data(tag.address) / "a", 1)
    ramdisk.sweep()


def check_visible(ramdisk: Ramdisk, *, changed: bool) -> None:
    """Law 9: whatever stands under a final name is whole; a `.meta` shows data that stands."""
    for path in ramdisk.root.iterdir():
        address = parse_data(path.name)
        if address is not None and not changed:
            assert hash_shard(path).address == address
        if path.name.endswith(".meta"):
            assert (ramdisk.root / f"{path.read_text()}.data").exists()


def check_consistent(ramdisk: Ramdisk) -> None:
    """After a recovery: no name without bytes, no bytes without a name, the highest epoch is shown."""
    inventory = ramdisk.inventory()
    assert not inventory.unreadable
    addresses = {sidecar.tag.address for sidecar in inventory.sidecars}
    assert {path.name.removesuffix(".tree") for path in ramdisk.layout.trees.iterdir()} == addresses
    assert {parse_data(name) for name in public(ramdisk) if name.endswith(".data")} <= addresses
    for sidecar in inventory.sidecars:
        assert sidecar.committed or ramdisk.layout.data(sidecar.tag.address).exists()
    there = [
        side.tag.address for side in inventory.named("job-s1-n0-w0") if ramdisk.layout.data(side.tag.address).exists()
    ]
    assert meta(ramdisk) == next(iter(there), None)
    assert list(ramdisk.layout.aside.iterdir()) == []


def outcome(ramdisk: Ramdisk) -> object:
    ramdisk.sweep()
    sidecars = {(side.tag, side.own, side.committed, ramdisk.standing(side)) for side in ramdisk.sidecars()}
    return public(ramdisk), meta(ramdisk), sidecars, ramdisk.claims(), ramdisk.partials()


@pytest.mark.parametrize(
    ("action", "changed"),
    [
        (name_one, False),
        (drop_one, False),
        (condemn_one, True),
        (replace_one, True),
        (replace_one, False),
        (publish_one, False),
    ],
)
def test_a_crash_between_any_two_system_calls_is_recovered(tmp_path: Path, action: Action, *, changed: bool) -> None:
    prepare(tmp_path / "whole", changed=changed)
    whole = Ramdisk(tmp_path / "whole", files=(counting := CrashingFiles(10_000)))
    action(whole)
    points = 10_000 - counting.left
    expected = outcome(whole)
    assert points >= 3
    for point in range(points):
        root = tmp_path / f"crash{point}"
        prepare(root, changed=changed)
        files = CrashingFiles(point)
        with pytest.raises(Crash):
            action(Ramdisk(root, files=files))
        check_visible(Ramdisk(root), changed=changed)
        ramdisk = Ramdisk(root)
        ramdisk.recover()
        check_consistent(ramdisk)
        check_visible(ramdisk, changed=changed)
        if action is not drop_one and action is not condemn_one:
            committed = [side for side in ramdisk.sidecars() if side.committed]
            assert [side.tag.save.epoch for side in committed] == [1]  # law 3
            assert changed or ramdisk.standing(committed[0])
        action(ramdisk)
        ramdisk.recover()
        check_consistent(ramdisk)
        if action is condemn_one:  # the seed may be lost, never a name
            continue
        assert relative(outcome(ramdisk), root) == relative(expected, tmp_path / "whole"), files.done


def relative(value: object, root: Path) -> str:
    return repr(sorted(repr(part) for part in value) if isinstance(value, tuple) else value).replace(str(root), "")


def test_a_crash_in_the_recovery_itself_is_recovered(tmp_path: Path) -> None:
    for point in range(100):
        root = tmp_path / f"{point}"
        prepare(root, changed=False)
        with pytest.raises(Crash):
            name_one(Ramdisk(root, files=CrashingFiles(4)))
        try:
            Ramdisk(root, files=CrashingFiles(point)).recover()
        except Crash:
            Ramdisk(root).recover()
            check_consistent(Ramdisk(root))
            check_visible(Ramdisk(root), changed=False)
        else:
            check_consistent(Ramdisk(root))
            return
    pytest.fail("recovery never ended")


# ---- many shards


def test_naming_what_is_new_and_committing_read_no_other_sidecar_and_dropping_reads_all_once(
    ramdisk: Ramdisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    tags = [named(ramdisk, fill(ramdisk.root / "x", 10, step), step=step) for step in range(40)]
    looked: list[str] = []
    read = Reader.read

    def counted(self: Reader, only: Callable[[str, str], bool] | None = None) -> Inventory:
        found = read(self, only)
        looked.extend(one.tag.name for one in found.sidecars)
        return found

    monkeypatch.setattr(Reader, "read", counted)
    fresh = named(ramdisk, fill(ramdisk.root / "x", 10, 1000), step=1000)
    assert looked == []
    assert ramdisk.commit(JOB, [fresh.save]) == 1
    assert looked == [fresh.name]
    looked.clear()
    assert ramdisk.drop_all(tags[:16]) == ()
    assert len(looked) == 41
    assert len(ramdisk.sidecars()) == 25


def test_a_name_that_is_taken_anew_frees_only_bytes_that_nobody_else_names(ramdisk: Ramdisk) -> None:
    first = named(ramdisk, fill(ramdisk.root / "x", 10, 1), step=1)
    ramdisk.add_tags([tag_of(ramdisk.tree(first.address), step=2)], own=True)
    os.truncate(ramdisk.layout.data(first.address), 3)  # stands no more, so the name may be given anew
    named(ramdisk, fill(ramdisk.root / "x", 10, 2), step=1)
    assert ramdisk.layout.data(first.address).exists()
    named(ramdisk, fill(ramdisk.root / "x", 10, 3), step=2)
    assert not ramdisk.layout.data(first.address).exists()
    assert len(ramdisk.sidecars()) == 2


def test_of_many_the_busy_ones_stay_and_those_that_are_gone_do_not_matter(ramdisk: Ramdisk) -> None:
    tags = [named(ramdisk, fill(ramdisk.root / "x", 10, step), step=step) for step in range(3)]
    ramdisk.drop(tags[0])
    with ramdisk.open_shard(tags[1].address):
        assert ramdisk.drop_all(tags) == (tags[1],)
    assert [one.tag for one in ramdisk.sidecars()] == [tags[1]]
