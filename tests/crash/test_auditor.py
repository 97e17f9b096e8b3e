"""The auditor himself: he is content with a cluster at rest, and sees each breach."""

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from crash.auditor import RANKS, Auditor, Evidence
from crash.content import Ledger, Saved
from crash.evidence import Disk, Index, Line, read_backups, read_disk

FIRST: Line = (1, 1)
SECOND: Line = (1, 2)


class Town:
    """Two ramdisks and a backup store, as services would leave them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ledger = Ledger()
        self.index = Index(
            fence=(1, 1, 9),
            epoch={"state": "running", "released": "true"},
            steps={},
            upto=None,
            keep=frozenset(),
            drop=frozenset(),
            inventory={},
            last_backup="",
            lease={},
        )
        for rank in RANKS:
            (root / f"node-{rank}").mkdir()
        (root / "backup/job").mkdir(parents=True)

    def data(self, folder: Path, saved: Saved) -> str:
        """Put the bytes of a shard somewhere; returns what stands for its address."""
        address = f"D{abs(hash(saved)):064x}"[:65]
        (folder / f"{address}.data").mkdir(parents=True, exist_ok=True)
        for name, data in self.ledger.enter(saved).items():
            (folder / f"{address}.data" / name).write_bytes(data)
        return address

    def name(self, node: int, save: Line, saved: Saved) -> None:
        """Name a shard on a node."""
        local = self.root / f"node-{node}"
        address = self.data(local, saved)
        name = f"job-s{save[1]}-n{saved.rank}-w0"
        (local / f"{name}.meta").write_text(address)
        sidecar = local / f".replicator/saves/{save[0]}/{name}.json"
        sidecar.parent.mkdir(parents=True, exist_ok=True)
        sidecar.write_text(json.dumps({"tag": {"address": address}}))

    def commit(self, save: Line, life: int = 1) -> None:
        """Have a save everywhere, and called committed."""
        for node in RANKS:
            for rank in RANKS:
                self.name(node, save, Saved(life, save[1], rank))
        self.index.steps = {**self.index.steps, save: {"state": "committed", "copies": "1"}}
        self.index.upto = save

    def back_up(self, save: Line, name: str = "2026-01-01_00-00") -> Path:
        """Have a save in a verified backup."""
        folder = self.root / "backup/job" / name
        folder.mkdir()
        (folder / "ORDER.json").write_text(json.dumps({"save": {"epoch": save[0], "step": save[1]}}))
        for rank in RANKS:
            address = self.data(folder, Saved(1, save[1], rank))
            (folder / f"job-s{save[1]}-n{rank}-w0.meta").write_text(address)
        objects = {str(path.relative_to(folder)): {"size": path.stat().st_size} for path in folder.rglob("*.distcp")}
        (folder / "MANIFEST.json").write_text(json.dumps({"state": "complete", "objects": objects}))
        return folder

    @property
    def disks(self) -> list[Disk]:
        return [read_disk(self.root / f"node-{node}", self.ledger) for node in RANKS]

    def look(self) -> Evidence:
        """All there is now; what Redis says is as it is now too."""
        index = Index(**{name: getattr(self.index, name) for name in self.index.__struct_fields__})
        return Evidence(disks=self.disks, backups=read_backups(self.root / "backup", self.ledger), index=index)


@pytest.fixture
def town(tmp_path: Path) -> Town:
    town = Town(tmp_path)
    town.commit(FIRST)
    town.back_up(FIRST)
    return town


def the(folder: Path, pattern: str) -> Path:
    return min(folder.glob(pattern))


def remove(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def test_a_cluster_at_rest_has_no_breach_and_all_is_whole(town: Town) -> None:
    auditor = Auditor()
    for _ in range(2):
        assert auditor.look(town.look()) == []
        assert auditor.quiet(town.look()) == []
    assert town.look().newest == FIRST


def flip(town: Town) -> None:
    with the(town.root / "node-0", "*.data/__*").open("r+b") as file:
        file.write(b"no")


def unname(town: Town) -> None:
    remove(the(town.root / "node-0", "*.data"))


def mix_lives(town: Town) -> None:
    town.name(0, FIRST, Saved(2, 1, 0))


def take_a_later_draft(town: Town) -> None:
    town.name(0, SECOND, Saved(1, 2, 0, draft=1))


def swap_ranks(town: Town) -> None:
    town.name(0, SECOND, Saved(1, 2, 1))
    wrong = the(town.root / "node-0", ".replicator/saves/1/job-s2-n1-w0.json")
    wrong.rename(wrong.with_name("job-s2-n0-w0.json"))


def call_committed(town: Town) -> None:
    town.index.upto = SECOND


def call_replicated(town: Town) -> None:
    town.name(0, SECOND, Saved(1, 2, 0))
    town.name(1, SECOND, Saved(1, 2, 1))
    town.index.steps = {**town.index.steps, SECOND: {"state": "committed", "copies": "1"}}


def obey_the_future(town: Town) -> None:
    (town.root / "node-0/.replicator/fence.json").write_text(json.dumps({"jobs": {"job": {"obeyed": "2.1.1"}}}))


def mark_before_data(town: Town) -> None:
    folder = town.back_up(SECOND, "2026-01-01_00-01")
    remove(the(folder, "*.data"))
    (folder / "MANIFEST.json").unlink()


def close_too_early(town: Town) -> None:
    folder = town.back_up(SECOND, "2026-01-01_00-01")
    the(folder, "*.data/__*").write_bytes(b"")


@pytest.mark.parametrize(
    ("fault", "law"),
    [
        (flip, 9),
        (unname, 9),
        (mix_lives, 1),
        (take_a_later_draft, 1),
        (swap_ranks, 1),
        (call_committed, 3),
        (call_replicated, 4),
        (obey_the_future, 7),
        (mark_before_data, 9),
        (close_too_early, 9),
    ],
)
def test_a_breach_is_seen(town: Town, fault: Callable[[Town], None], law: int) -> None:
    fault(town)
    assert f"law {law}:" in "\n".join(Auditor().look(town.look()))


def test_a_save_that_goes_without_a_newer_commit_is_a_breach_and_with_one_it_is_not(town: Town) -> None:
    auditor = Auditor()
    auditor.look(town.look())
    town.commit(SECOND)
    auditor.look(town.look())
    for path in (town.root / "node-0/.replicator/saves/1").glob("job-s1-*"):
        path.unlink()
    assert auditor.look(town.look()) == []
    for path in (town.root / "node-1/.replicator/saves/1").glob("job-s2-*"):
        path.unlink()
    assert "law 5: node-1 dropped (1, 2)" in "\n".join(auditor.look(town.look()))


def test_what_the_test_took_away_itself_is_no_breach(town: Town) -> None:
    auditor = Auditor()
    auditor.look(town.look())
    auditor.wiped(1)
    for path in (town.root / "node-1").iterdir():
        if path.name != ".replicator":
            remove(path) if path.is_dir() else path.unlink()
    for path in (town.root / "node-1/.replicator/saves/1").iterdir():
        path.unlink()
    assert auditor.look(town.look()) == []
    assert "law 4: at rest node-1 has no copy" in "\n".join(auditor.quiet(town.look()))


def test_stamps_and_commits_that_go_back_are_breaches(town: Town) -> None:
    auditor = Auditor()
    auditor.look(town.look())
    town.index.fence, town.index.upto = (1, 1, 8), None
    found = "\n".join(auditor.look(town.look()))
    assert "the fence went from" in found
    assert "committed went back" in found


@pytest.mark.parametrize("left", ["claims/1/job-s1-n0-w0", "partial/{address}/bitmap", "trash/x"])
def test_what_is_left_over_is_no_rest(town: Town, left: str) -> None:
    left = left.format(address=the(town.root / "node-1", "*.data").stem)
    path = town.root / "node-0/.replicator" / left
    path.parent.mkdir(parents=True)
    path.touch()
    assert f"law 6: node-0 still has {left}" in Auditor().quiet(town.look())


def test_a_partial_that_nobody_can_fill_may_wait_for_who_does(town: Town) -> None:
    path = town.root / "node-0/.replicator/partial/D0/bitmap"
    path.parent.mkdir(parents=True)
    path.touch()
    assert Auditor().quiet(town.look()) == []


def unname_all(town: Town, node: int) -> None:
    for path in town.root.glob(f"node-{node}/.replicator/saves/*/*"):
        path.unlink()


def test_what_people_went_back_behind_may_go_and_is_not_the_newest(town: Town) -> None:
    auditor = Auditor()
    town.commit(SECOND)
    auditor.look(town.look())
    auditor.go_back(FIRST)
    town.index.upto, town.index.steps = FIRST, {}
    for path in town.root.glob("node-*/.replicator/saves/1/job-s2-*"):
        path.unlink()
    now = msgspec.structs.replace(town.look(), undone=auditor.undone)
    assert auditor.look(now) == []
    assert now.newest == FIRST


def test_what_people_had_forgotten_need_not_be_there_and_only_with_all_that_hosts_hold_it_may_go(town: Town) -> None:
    auditor = Auditor()
    (town.root / "backup/job/2026-01-01_00-00/MANIFEST.json").unlink()
    auditor.look(town.look())
    town.index.upto, town.index.steps = None, {}
    for ramdisks in (False, True):
        auditor.forget(ramdisks=ramdisks)
        assert auditor.look(msgspec.structs.replace(town.look(), forgotten=auditor.forgotten)) == []
        unname_all(town, int(ramdisks))
        found = auditor.look(msgspec.structs.replace(town.look(), forgotten=auditor.forgotten))
        assert bool(found) is not ramdisks
        town.commit(FIRST)
        town.index.upto, town.index.steps = None, {}
        auditor.look(msgspec.structs.replace(town.look(), forgotten=auditor.forgotten))
