import pytest

from checkpoint_replicator.ids import Address, Epoch, Job, Rank, Step, Worker
from checkpoint_replicator.save import Save, ShardKey, Tag, parse_save, shards_of
from checkpoint_replicator.shape import Shape


def test_a_save_of_a_later_epoch_is_newer_even_at_a_lower_step() -> None:
    assert Save(Epoch(2), Step(5)) > Save(Epoch(1), Step(100))


def test_step_zero_is_older_than_step_one_and_nothing_else() -> None:
    assert Save(Epoch(1), Step(0)) < Save(Epoch(1), Step(1))
    assert Save(Epoch(1), Step(0)) > Save(Epoch(0), Step(9))


def test_text_and_save_are_the_same_thing() -> None:
    assert parse_save("3.20") == Save(Epoch(3), Step(20))
    assert str(parse_save("3.20")) == "3.20"


@pytest.mark.parametrize(
    "text", ["", "3", "3.", "a.b", "1.2.3", "-1.2", "1_0.2", " 1.2", "\u0661.2", f"1.{'9' * 5000}"]
)
def test_other_text_is_no_save(text: str) -> None:
    with pytest.raises(ValueError, match=r"^expected epoch\.step, found"):
        parse_save(text)


@pytest.mark.parametrize("text", [f"1.{1 << 53}", f"{1 << 53}.1"])
def test_numbers_that_redis_cannot_count_exactly_are_no_save(text: str) -> None:
    with pytest.raises(ValueError, match=r"^Expected `int` <= 9007199254740991"):
        parse_save(text)


def test_a_tag_gives_the_public_name() -> None:
    shape = Shape(2, 1, 1, "pytorch")
    tag = Tag(Job("j"), Save(Epoch(1), Step(7)), shape, ShardKey(Rank(1), Worker(0)), Address("a" * 64), 3)
    assert tag.name == "j-s7-n1-w0"


def test_a_shape_has_a_shard_for_each_worker_of_each_rank() -> None:
    assert [str(key) for key in shards_of(Shape(2, 2, 1, "pytorch"))] == ["n0/w0", "n0/w1", "n1/w0", "n1/w1"]
