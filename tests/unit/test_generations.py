import pytest

from checkpoint_replicator.generations import Generations, generations

MIB = 1 << 20


def test_two_generations_are_needed_and_three_are_comfortable_beside_the_next_save() -> None:
    assert generations(64 * MIB, 20 * MIB, 2) == Generations(
        size=60 * MIB, fit=0, needed=142 * MIB, comfortable=202 * MIB
    )


@pytest.mark.parametrize(("room", "fit"), [(0, 0), (61, 0), (62, 1), (101, 1), (102, 2), (142, 3)])
def test_a_generation_fits_only_beside_what_is_kept_free(room: int, fit: int) -> None:
    assert generations(room, 20, 1).fit == fit


def test_nothing_saved_needs_nothing() -> None:
    assert generations(100, 0, 2) == Generations(size=0, fit=0, needed=0, comfortable=0)
