import pytest

from checkpoint_replicator.fence import ZERO, Stamp, parse_stamp
from checkpoint_replicator.ids import Epoch


def test_a_stamp_of_a_later_token_is_higher_whatever_else_it_says() -> None:
    assert Stamp(2, Epoch(1), 1) > Stamp(1, Epoch(9), 99)


def test_within_a_token_the_epoch_counts_before_the_number() -> None:
    assert Stamp(1, Epoch(2), 1) > Stamp(1, Epoch(1), 99)
    assert Stamp(1, Epoch(2), 3) > Stamp(1, Epoch(2), 2)


def test_every_stamp_is_above_zero() -> None:
    assert Stamp(1, Epoch(0), 0) > ZERO


def test_text_and_stamp_are_the_same_thing() -> None:
    stamp = Stamp(7, Epoch(3), 12)
    assert str(stamp) == "7.3.12"
    assert parse_stamp(str(stamp)) == stamp


@pytest.mark.parametrize(
    "text",
    ["", "1", "1.2", "1.2.3.4", "a.b.c", "1..2", "-1.2.3", "1.2_0.3", " 1.2.3", "\u0661.2.3", f"1.2.{'9' * 5000}"],
)
def test_other_text_is_no_stamp(text: str) -> None:
    with pytest.raises(ValueError, match=r"^expected token\.epoch\.number, found"):
        parse_stamp(text)


@pytest.mark.parametrize("text", [f"{1 << 48}.0.0", f"0.{1 << 53}.0", f"0.0.{1 << 53}"])
def test_a_stamp_above_which_no_fence_could_be_raised_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"^Expected `int` <="):
        parse_stamp(text)
