"""Scripts of backups: the fake uploaders of `support.fake_nodes` do what is ordered."""

from itertools import count

import msgspec
import pytest

from checkpoint_coordinator.archive import Archive
from checkpoint_coordinator.backups import BackupRecord, LastBackup, Phase, Situation
from checkpoint_coordinator.making import MOST_FAILURES
from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Address, Epoch, Host, Job, Step
from checkpoint_replicator.messages import BackupResult
from checkpoint_replicator.records import BackupOrder, Orders
from checkpoint_replicator.save import Save
from checkpoint_replicator.shape import Shape
from checkpoint_replicator.times import Times
from support.fake_nodes import Bucket, FakeNode

JOB = Job("run")
SHAPE = Shape(2, 1, 1, "pytorch")
STAMP = Stamp(4, Epoch(1), 9)
UNIX = 1_700_000_000.0
NAME = "2023-11-14_22-13"


def save(step: int, epoch: int = 1) -> Save:
    return Save(Epoch(epoch), Step(step))


class Script:
    """An archive, two hosts with uploaders, one bucket."""

    def __init__(self) -> None:
        self.bucket = Bucket()
        nodes: dict[Host, FakeNode] = {}
        self.nodes = [FakeNode(JOB, name, nodes, self.bucket) for name in ("a", "b")]
        numbers = count(1)
        self.archive = Archive(Times(), lambda: f"id-{next(numbers)}")
        self.now = 100.0
        self.committed: Save | None = None
        self.uploaders: tuple[Host, ...] = (Host("a"), Host("b"))
        self.notes: list[str] = []

    def commit(self, step: int) -> None:
        self.committed = save(step)
        for rank, node in enumerate(self.nodes):
            node.hold(self.committed, rank, 0, SHAPE, own=True)

    def run(self, seconds: float, **situation: object) -> None:
        for _ in range(round(seconds / 0.5)):
            self.now += 0.5
            self.archive.advance(self._situation(**situation))
            self.notes += [note["event"] for note in self.archive.notes]
            self.archive.notes.clear()
            orders = self.archive.orders()
            for node in self.nodes:
                if node.alive:
                    mine = Orders(stamp=STAMP, backup=orders.get(node.host, ()))
                    node._back_up(mine.backup)

    def run_to(self, phase: Phase) -> None:
        for _ in range(40):
            if [record.state for record in self.archive.records.values()] == [phase]:
                return
            self.run(0.5)
        pytest.fail(f"{phase} was not reached")

    def _situation(self, **situation: object) -> Situation:
        tags = sorted({t for node in self.nodes for t in node.held if t.save == self.committed})
        holders: dict[Address, frozenset[Host]] = {}
        for node in self.nodes:
            for tag in node.held:
                if node.alive:
                    holders[tag.address] = holders.get(tag.address, frozenset()) | {node.host}
        made = Situation(
            now=self.now,
            unix=UNIX + self.now - 100,
            stamp=STAMP,
            uploaders=self.uploaders,
            results={r.id: (node.host, r) for node in self.nodes for r in node._results.values()},
            committed=self.committed,
            shape=SHAPE,
            tags=tuple(tags),
            holders=holders,
        )
        return msgspec.structs.replace(made, **situation)

    @property
    def complete(self) -> list[str]:
        return sorted(name for name, objects in self.bucket.objects.items() if "MANIFEST.json" in objects)


@pytest.fixture
def script() -> Script:
    return Script()


def test_a_backup_is_reserved_uploaded_sealed_and_closed_in_this_order(script: Script) -> None:
    script.commit(1)
    phases: list[str] = []
    for _ in range(20):
        script.run(0.5)
        phases += [str(record.state) for record in script.archive.records.values()]
    assert list(dict.fromkeys(phases)) == ["reserving", "uploading", "sealing", "closing", "complete"]
    assert script.complete == [NAME]
    assert script.archive.last == LastBackup(
        name=NAME, save=save(1), verified_at=script.archive.records[NAME].verified_at
    )
    objects = list(script.bucket.objects[NAME])
    assert objects[0] == "ORDER.json"
    assert objects[-1] == "MANIFEST.json"
    metas = [number for number, name in enumerate(objects) if name.endswith(".meta")]
    data = [number for number, name in enumerate(objects) if name.endswith((".data", ".tree"))]
    assert max(data) < min(metas)


def test_every_address_goes_up_once_from_a_host_that_holds_it(script: Script) -> None:
    script.commit(1)
    script.nodes[1].held.update(script.nodes[0].held)
    script.run(10)
    assert len([name for name in script.bucket.objects[NAME] if name.endswith(".data")]) == 2
    assert script.notes == ["backup_due", "backup_verified"]


def test_s30_what_fails_is_tried_again_and_counts_only_when_verified(script: Script) -> None:
    script.commit(1)
    script.bucket.fault = "503 slow down"
    script.run(20)
    assert script.archive.last is None
    assert "503" in script.archive.listing_fault
    script.bucket.fault = None
    script.run(20)
    assert script.archive.last is not None


def test_a_store_that_takes_nothing_is_an_alarm_once_and_its_reason_stays_in_sight(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(node: FakeNode, order: BackupOrder) -> BackupResult:
        reason = "No space left on device" if order.kind == "reserve" else ""
        return do(node, order) if not reason else BackupResult(id=order.id, kind=order.kind, name="", reason=reason)

    do = FakeNode._do
    monkeypatch.setattr(FakeNode, "_do", full)
    script.commit(1)
    seen: set[str] = set()
    for _ in range(240):
        script.run(0.5)
        seen.update(one.reason for one in script.archive.records.values() if one.state is Phase.RESERVING)
    assert script.notes.count("backup_failed") > MOST_FAILURES
    assert script.notes.count("backups_failing") == 1
    assert seen >= {"b: No space left on device", "tried again: b: No space left on device"}
    monkeypatch.undo()
    script.run(60)
    assert script.notes.count("backup_verified") == 1
    assert script.archive.records[max(script.archive.records)].reason == ""


def test_a_host_that_dies_in_its_turn_is_replaced_by_the_next(script: Script) -> None:
    script.commit(1)
    script.nodes[1].held.update(script.nodes[0].held)
    script.nodes[0].alive = False
    script.run(30)
    script.uploaders = (Host("b"),)
    script.run(30)
    assert script.complete == [NAME]


def test_names_are_above_every_listed_one(script: Script) -> None:
    script.bucket.objects["2030-01-01_00-00"] = {"junk": b""}
    script.commit(1)
    script.run(15)
    assert script.complete == ["2030-01-01_00-01"]


def test_a_verified_backup_in_the_bucket_is_found_before_another_is_made(script: Script) -> None:
    script.commit(1)
    script.run(15)
    fresh = Archive(Times(), lambda: "other")
    script.archive = fresh
    script.run(15)
    assert fresh.last is not None
    assert fresh.last.name == NAME
    assert list(script.bucket.objects) == [NAME]


def test_a_backup_that_an_earlier_coordinator_began_goes_on(script: Script) -> None:
    script.commit(1)
    script.run_to(Phase.UPLOADING)
    begun = dict(script.archive.records)
    assert [record.state for record in begun.values()] == [Phase.UPLOADING]
    numbers = count(100)
    script.archive = Archive(Times(), lambda: f"id-{next(numbers)}")
    script.archive.recall(begun, None)
    script.run(15)
    assert script.complete == [NAME]


def test_what_an_earlier_coordinator_began_of_a_save_that_is_gone_is_closed(script: Script) -> None:
    record = BackupRecord(name=NAME, save=save(1), shape=SHAPE, state=Phase.UPLOADING, stamp=STAMP)
    script.bucket.objects[NAME] = {"junk": b""}
    script.archive.recall({NAME: record}, None)
    script.commit(2)
    script.run(20)
    assert script.archive.records[NAME].state is Phase.ABANDONED
    assert script.bucket.objects[NAME]["MANIFEST.json"] == b'{"state":"abandoned"}'
    assert len(script.complete) == 2


def test_a_leftover_order_in_the_bucket_is_closed(script: Script) -> None:
    script.commit(1)
    script.run_to(Phase.UPLOADING)
    left = script.bucket.objects.pop(NAME)
    script.bucket.objects["2023-11-14_20-00"] = {"ORDER.json": left["ORDER.json"]}
    numbers = count(100)
    script.archive = Archive(Times(), lambda: f"id-{next(numbers)}")
    script.run(30, stamp=Stamp(5, Epoch(1), 1))
    assert script.bucket.objects["2023-11-14_20-00"]["MANIFEST.json"] == b'{"state":"abandoned"}'


def test_a_sweep_that_was_broken_off_is_gone_on_with(script: Script) -> None:
    script.commit(1)
    script.run_to(Phase.UPLOADING)
    left = script.bucket.objects.pop(NAME)
    swept = {"ORDER.json": left["ORDER.json"], "MANIFEST.json": b'{"state":"abandoned"}'}
    script.bucket.objects["2023-11-14_20-00"] = {**swept, "half.data": b"half"}
    numbers = count(100)
    script.archive = Archive(Times(), lambda: f"id-{next(numbers)}")
    script.bucket.fault = "Permission denied"
    script.run(30, stamp=Stamp(5, Epoch(1), 1))
    script.bucket.fault = None
    script.run(60, stamp=Stamp(5, Epoch(1), 1))
    assert script.bucket.objects["2023-11-14_20-00"] == swept


def test_a_save_that_no_live_host_holds_any_more_is_given_up(script: Script) -> None:
    script.commit(1)
    script.run_to(Phase.RESERVING)
    script.nodes[1].held.clear()
    script.run(60)
    assert "backup_failed" in script.notes
    assert script.archive.save is None or script.archive.last is None


def test_hold_stops_ordering(script: Script) -> None:
    script.commit(1)
    script.run(20, hold=True)
    assert script.bucket.objects == {}


def test_without_uploaders_nothing_is_ordered(script: Script) -> None:
    script.commit(1)
    script.uploaders = ()
    script.run(5)
    assert script.archive.orders() == {}


def test_a_listing_counts_only_when_it_was_asked_for_late_enough(script: Script) -> None:
    script.archive.want_listing(script.now)
    script.run(2)
    assert script.archive.listed_since(100) is not None
    assert script.archive.listed_since(script.now) is None
