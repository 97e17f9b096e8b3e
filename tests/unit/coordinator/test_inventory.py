from checkpoint_coordinator.inventory import Line, take_stock
from checkpoint_replicator.ids import Address, Epoch, Host, Job, Rank, Step, Worker
from checkpoint_replicator.messages import BackupEntry, Held
from checkpoint_replicator.save import Save, ShardKey, Tag
from checkpoint_replicator.shape import Shape

SHAPE = Shape(2, 1, 1, "pytorch")


def tag(step: int, rank: int, content: str = "a", epoch: int = 1, shape: Shape = SHAPE) -> Tag:
    key = ShardKey(Rank(rank), Worker(0))
    return Tag(Job("run"), Save(Epoch(epoch), Step(step)), shape, key, Address(content * 64), 1)


def test_lines_come_newest_first() -> None:
    shards = [Held(tag=tag(step, 0, epoch=epoch)) for epoch, step in ((1, 5), (2, 1), (1, 9))]
    found = take_stock({Host("a"): (shards, None)})
    assert [str(one.line.save) for one in found] == ["2.1", "1.9", "1.5"]


def test_data_of_two_shapes_never_forms_one_save() -> None:
    other = Shape(3, 1, 1, "pytorch")
    found = take_stock({Host("a"): ([Held(tag=tag(1, 0)), Held(tag=tag(1, 1, shape=other))], None)})
    assert len(found.lines) == 2
    assert found.of(Save(Epoch(1), Step(1))) == tuple(found.lines.values())


def test_an_address_is_held_under_whatever_name() -> None:
    found = take_stock({Host("a"): ([Held(tag=tag(1, 0)), Held(tag=tag(2, 0))], None)})
    assert [copy.host for copy in found.holders[Address("a" * 64)]] == ["a"]


def test_of_two_contents_the_committed_one_counts_then_the_backed_up_then_the_own() -> None:
    first, second = tag(1, 0, "a"), tag(1, 0, "b")
    line = Line(first.save, SHAPE)

    def resolved(one: Held, other: Held, *backups: BackupEntry) -> Tag | None:
        return (
            take_stock({Host("a"): ([one], None), Host("b"): ([other], None)}, backups).lines[line].resolve(first.key)
        )

    assert resolved(Held(tag=first), Held(tag=second)) is None
    assert resolved(Held(tag=first, own=True), Held(tag=second)) == first
    entry = BackupEntry(name="2026-01-01_00-00", whole=True, tags=(second,))
    assert resolved(Held(tag=first, own=True), Held(tag=second), entry) == second
    assert resolved(Held(tag=first, committed=True), Held(tag=second), entry) == first


def test_what_nobody_holds_is_missing() -> None:
    found = take_stock({Host("a"): ([Held(tag=tag(1, 0))], None)}).lines[Line(Save(Epoch(1), Step(1)), SHAPE)]
    assert found.missing() == (ShardKey(Rank(1), Worker(0)),)
    assert not found.committed
    assert found.hosts(ShardKey(Rank(0), Worker(0)), Address("a" * 64)) == {"a"}


def test_backups_of_googles_are_lines_of_their_own() -> None:
    google = Shape(2, 1, 1, "")
    entries = [
        BackupEntry(
            name=name, whole=True, tags=(tag(step, 0, epoch=0, shape=google), tag(step, 1, epoch=0, shape=google))
        )
        for name, step in (("2026-01-01_00-00", 9), ("2026-01-02_00-00", 5))
    ]
    found = take_stock({Host("a"): ([Held(tag=tag(7, 0, epoch=0))], None)}, entries)
    assert [(one.line.foreign[:10], one.line.save.step) for one in found] == [
        ("", 7),
        ("2026-01-02", 5),
        ("2026-01-01", 9),
    ]
