"""One backup, step by step, against answers that the test gives."""

from dataclasses import dataclass, field

import pytest

from checkpoint_coordinator.backups import BackupRecord, Listing, Phase, Situation
from checkpoint_coordinator.making import MOST_FAILURES, RETRY, Making
from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Address, Epoch, Host, Job, Rank, Step, Worker
from checkpoint_replicator.messages import BackupEntry, BackupResult
from checkpoint_replicator.save import Save, ShardKey, Tag
from checkpoint_replicator.shape import Shape

SHAPE = Shape(2, 1, 1, "pytorch")
SAVE = Save(Epoch(1), Step(5))
STAMP = Stamp(4, Epoch(1), 9)
UNIX = 1_700_000_000.0
NAME = "2023-11-14_22-13"
A, B = Host("a"), Host("b")


def tag(rank: int) -> Tag:
    key = ShardKey(Rank(rank), Worker(0))
    return Tag(Job("run"), SAVE, SHAPE, key, Address(f"F{rank:064x}"), 10)


@dataclass
class Script:
    """A backup of two shards; `a` holds the first of them, `b` both."""

    holders: dict[Address, set[Host]] = field(
        default_factory=lambda: {tag(0).address: {A, B}, tag(1).address: {B}},
    )
    uploaders: tuple[Host, ...] = (A, B)
    now: float = 0.0
    results: dict[str, tuple[Host, BackupResult]] = field(default_factory=dict)
    records: list[BackupRecord] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    names: int = 0

    def __post_init__(self) -> None:
        self.making = Making(
            save=SAVE,
            shape=SHAPE,
            tags=(tag(0), tag(1)),
            begun=self.now,
            turn=10.0,
            new_id=self._new_id,
            put=self.records.append,
            note=lambda event, **_: self.notes.append(event),
        )

    def _new_id(self) -> str:
        self.names += 1
        return f"id-{self.names}"

    def advance(self, listing: Listing | None = None, fault: str = "", known: tuple[str, ...] = ()) -> None:
        at = Situation(
            now=self.now,
            unix=UNIX,
            stamp=STAMP,
            uploaders=self.uploaders,
            results=self.results,
            holders=self.holders,
        )
        self.making.advance(at, listing, fault, known)

    def answer(self, *, refused: str = "") -> list[str]:
        """Have every order answered; returns what was ordered, of whom and of which ranks."""
        told: list[str] = []
        for chore in self.making.chores:
            for host, order in chore.orders():
                told.append(f"{order.kind} {host} {[one.key.rank for one in order.tags]}")
                sizes = {f"{one.address}.data": one.size for one in order.tags} if order.kind == "upload" else {}
                self.results[order.id] = (
                    host,
                    BackupResult(
                        id=order.id, name=order.name, kind=order.kind, done=not refused, reason=refused, sizes=sizes
                    ),
                )
        self.advance()
        return told

    def to(self, phase: Phase) -> None:
        """Bring it there, all going well."""
        self.advance(Listing(self.now, ()))
        while self.making.phase is not phase:
            assert self.answer()


@pytest.fixture
def script() -> Script:
    return Script()


def test_it_waits_for_a_listing_and_says_why_there_is_none(script: Script) -> None:
    script.advance(fault="a: 503")
    assert script.making.phase is Phase.LISTING
    assert script.making.reason == "a: 503"
    assert script.records == []


def test_its_name_is_above_what_is_listed_and_what_is_known(script: Script) -> None:
    script.advance(Listing(0.0, (BackupEntry(name=NAME, whole=False),)), known=("2023-11-14_22-14",))
    assert script.making.name == "2023-11-14_22-15"
    assert script.making.stamp == STAMP


def test_each_shard_goes_up_from_one_host_that_holds_it(script: Script) -> None:
    script.to(Phase.UPLOADING)
    assert script.answer() == ["upload a [0]", "upload b [1]"]
    assert script.making.phase is Phase.SEALING


def test_what_was_sent_is_in_its_manifest_and_its_record(script: Script) -> None:
    script.to(Phase.CLOSING)
    document = script.making.chores[0].document
    assert all(f"{tag(rank).address}.data" in document for rank in (0, 1))
    script.to(Phase.COMPLETE)
    assert script.records[-1].bytes == 20
    assert script.making.last is not None
    assert script.making.last.name == NAME
    assert script.notes == ["backup_verified"]


def test_a_group_that_no_host_holds_whole_is_taken_apart(script: Script) -> None:
    script.holders = {tag(0).address: {A}, tag(1).address: {A}}
    script.to(Phase.UPLOADING)
    script.holders = {tag(0).address: {A}, tag(1).address: {B}}
    script.now = 60.0
    script.uploaders = (B, A)
    script.making.chores[0].tries.clear()
    script.advance()
    script.advance()
    assert script.answer() == ["upload a [0]", "upload b [1]"]


def test_a_shard_that_no_host_holds_is_named(script: Script) -> None:
    script.to(Phase.UPLOADING)
    script.holders[tag(1).address] = set()
    script.advance()
    assert "no live host with an uploader holds" in script.making.reason
    assert "-n1-w0" in script.making.reason


def test_a_failed_phase_is_tried_again_after_a_pause_and_too_many_give_it_up(script: Script) -> None:
    script.to(Phase.RESERVING)
    for number in range(MOST_FAILURES):
        assert script.making.phase is Phase.RESERVING
        while script.making.chores:
            script.answer(refused="403")
        script.advance()
        assert script.making.chores == []
        script.now += RETRY
        if number < MOST_FAILURES - 1:
            script.advance()
            assert script.making.chores != []
    assert script.making.phase is Phase.ABANDONED
    assert not script.making.usable
    assert script.records[-1].reason.endswith("403")


def test_what_fails_at_its_manifest_may_be_whole(script: Script) -> None:
    script.to(Phase.CLOSING)
    while script.making.chores:
        script.answer(refused="412 it is there")
    assert script.making.phase is Phase.ABANDONED
    assert script.making.usable
    assert script.making.last is None


def test_the_record_of_a_further_try_says_why_the_one_before_failed_until_it_gets_on(script: Script) -> None:
    script.making.before = "a: no space left on device"
    script.to(Phase.RESERVING)
    assert script.records[-1].reason == "tried again: a: no space left on device"
    script.to(Phase.UPLOADING)
    assert script.records[-1].reason == ""
