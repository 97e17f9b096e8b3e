import pytest

from checkpoint_replicator.errors import ConfigError
from checkpoint_replicator.restarts import Restarts, exit_text


def test_delays_double_up_to_a_limit() -> None:
    restarts = Restarts(first=1, most=5)
    assert [restarts.ended(1, lived=0) for _ in range(4)] == [1, 2, 4, 5]
    assert restarts.count == 4


def test_a_calm_life_makes_the_next_delay_short_again() -> None:
    restarts = Restarts(first=1, most=8, calm=10)
    assert [restarts.ended(-9, lived) for lived in (0, 0, 10)] == [1, 2, 1]


def test_a_wrong_configuration_is_not_tried_again() -> None:
    restarts = Restarts()
    assert restarts.ended(ConfigError.exit_code, lived=100) is None
    assert restarts.count == 0


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0, "ended with exit code 0"),
        (-9, "was killed by signal 9"),
        (70, "ended with exit code 70 (an error that it could not handle)"),
        (78, "ended with exit code 78 (its configuration is wrong)"),
    ],
)
def test_an_end_is_told_in_words(code: int, text: str) -> None:
    assert exit_text(code) == text
