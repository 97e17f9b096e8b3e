from pathlib import Path

import pytest

from checkpoint_replicator.errors import BusyError
from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.hashing import hash_shard
from checkpoint_replicator.ids import Epoch, Job, Rank, Step, Worker
from checkpoint_replicator.ramdisk import JobFence, Ramdisk, ShardName, Sidecar
from checkpoint_replicator.ramdisk.standing import Standing
from checkpoint_replicator.save import Save, ShardKey
from support.shards import JOB, fill, fill_folder, named

NAME = ShardName(JOB, Step(3), ShardKey(Rank(0), Worker(0)))


def test_a_claim_takes_the_save_away_and_is_listed(tmp_path: Path) -> None:
    ramdisk = Ramdisk(tmp_path)
    claim = ramdisk.claim(fill_folder(tmp_path / "3"), Epoch(12), NAME)
    assert ramdisk.claims() == (claim,)
    assert not (tmp_path / "3").exists()
    assert (claim.path / "a").exists()
    (ramdisk.layout.claims / "12" / "stray").touch()
    (ramdisk.layout.claims / "stray").mkdir()
    assert ramdisk.claims() == (claim,)
    ramdisk.discard(claim)
    assert ramdisk.claims() == ()


def test_a_stocktake_says_what_stands_and_what_has_fallen(tmp_path: Path) -> None:
    ramdisk = Ramdisk(tmp_path)
    tags = [named(ramdisk, fill(tmp_path / "x", step), step=step) for step in (1, 2)]
    with (tmp_path / f"{tags[0].address}.data").open("ab") as file:
        file.write(b"more")
    standing, fallen = ramdisk.stocktake()
    assert ([one.tag for one in standing], [one.tag for one in fallen]) == ([tags[1]], [tags[0]])


def test_what_is_named_during_a_stocktake_has_not_fallen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ramdisk = Ramdisk(tmp_path)
    first = named(ramdisk, fill(tmp_path / "x", 1))
    stands = Standing.stands

    def slow(self: Standing, sidecar: Sidecar) -> bool:
        named(ramdisk, fill(tmp_path / "x", 2), step=2)
        return stands(self, sidecar)

    monkeypatch.setattr(Standing, "stands", slow)
    standing, fallen = ramdisk.stocktake()
    assert ([one.tag for one in standing], fallen) == ([first], ())


def test_a_second_claim_of_a_name_waits(tmp_path: Path) -> None:
    ramdisk = Ramdisk(tmp_path)
    ramdisk.claim(fill(tmp_path / "x", 1), Epoch(1), NAME)
    with pytest.raises(BusyError, match="still being hashed"):
        ramdisk.claim(fill(tmp_path / "x", 2), Epoch(1), NAME)
    assert (tmp_path / "x").stat().st_size == 2
    with pytest.raises(FileNotFoundError):
        ramdisk.claim(tmp_path / "gone", Epoch(2), NAME)


def test_the_fence_survives_and_never_goes_back(tmp_path: Path) -> None:
    save = Save(Epoch(1), Step(5))
    Ramdisk(tmp_path).raise_fence(JOB, Stamp(2, Epoch(1), 7), save)
    assert Ramdisk(tmp_path).raise_fence(JOB, Stamp(1, Epoch(9), 9)) == JobFence(
        obeyed=Stamp(2, Epoch(1), 7), newest_committed=save
    )


def test_a_fence_that_does_not_parse_is_set_aside_and_written_anew_from_what_is_known(tmp_path: Path) -> None:
    ramdisk = Ramdisk(tmp_path)
    ramdisk.raise_fence(Job("other"), Stamp(7, Epoch(1), 1))
    ramdisk.layout.fence.write_bytes(b"garbage")
    known, fault = ramdisk.read_fences()
    assert known is not None
    assert known.of(Job("other")).obeyed == Stamp(7, Epoch(1), 1)
    assert fault.endswith("kept as fence.json.unreadable")
    ramdisk.raise_fence(JOB, Stamp(1, Epoch(1), 1))
    found, _ = Ramdisk(tmp_path).read_fences()
    assert found is not None
    assert {job: fence.obeyed for job, fence in found.jobs.items()} == {
        "other": Stamp(7, Epoch(1), 1),
        JOB: Stamp(1, Epoch(1), 1),
    }
    assert ramdisk.layout.fence.with_name("fence.json.unreadable").read_bytes() == b"garbage"


def test_a_fence_that_was_removed_in_order_is_not_brought_back(tmp_path: Path) -> None:
    ramdisk = Ramdisk(tmp_path)
    ramdisk.raise_fence(Job("other"), Stamp(7, Epoch(1), 1))
    ramdisk.fences.remove()
    ramdisk.raise_fence(JOB, Stamp(1, Epoch(1), 1))
    found, _ = ramdisk.read_fences()
    assert found is not None
    assert set(found.jobs) == {JOB}


def test_the_host_is_remembered(tmp_path: Path) -> None:
    ramdisk = Ramdisk(tmp_path)
    assert ramdisk.host is None
    ramdisk.write_host("node-3")
    assert Ramdisk(tmp_path).host == "node-3"


def test_a_service_lock_names_its_holder(tmp_path: Path) -> None:
    ramdisk = Ramdisk(tmp_path)
    with ramdisk.hold("watcher", "one"), pytest.raises(BusyError, match="held by one"):
        ramdisk.hold("watcher", "two")
    with ramdisk.hold("watcher", "two"), ramdisk.hold("transfer", "three"):
        pass


def test_the_public_directory_shows_nothing_of_ours(tmp_path: Path) -> None:
    ramdisk = Ramdisk(tmp_path)
    ramdisk.recover()
    assert [path.name for path in tmp_path.iterdir()] == [".replicator"]


def test_a_small_public_file_is_replaced_at_once(tmp_path: Path) -> None:
    ramdisk = Ramdisk(tmp_path)
    ramdisk.write_public("replicator.failed", "old")
    ramdisk.write_public("replicator.failed", "new")
    assert (tmp_path / "replicator.failed").read_text() == "new"
    assert not list(ramdisk.layout.aside.iterdir())


def test_public_names_are_cleared_into_the_trash_and_what_is_gone_is_fine(tmp_path: Path) -> None:
    ramdisk = Ramdisk(tmp_path)
    fill_folder(tmp_path / "step=3")
    (tmp_path / "link").symlink_to("step=3")
    assert ramdisk.clear([tmp_path / "step=3", tmp_path / "link", tmp_path / "gone"]) == 2
    assert [path.name for path in tmp_path.iterdir()] == [".replicator"]
    assert len(list(ramdisk.layout.trash.iterdir())) == 2
    assert ramdisk.sweep() == 0


def test_what_a_named_partial_left_is_cleared_and_what_can_be_gone_on_with_stays(tmp_path: Path) -> None:
    ramdisk = Ramdisk(tmp_path)
    trees = [hash_shard(fill(tmp_path / f"x{size}", size)) for size in (10, 20, 30)]
    named, begun, corrupt = trees
    for tree in trees:
        ramdisk.partial(tree).close()
    ramdisk.layout.partial(named.address).joinpath("data").unlink()
    folder = ramdisk.layout.partial(corrupt.address)
    folder.joinpath("data").rename(folder / "seed")
    ramdisk.clear_partials()
    assert set(ramdisk.partials()) == {begun.address, corrupt.address}
