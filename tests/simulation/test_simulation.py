"""Seeds of trouble: after each event the laws hold, and in quiet the job comes back. `make sim SEED=n` replays one."""

from collections import Counter
from typing import Final

import pytest

from simulation.__main__ import main as asked
from simulation.__main__ import seeds
from simulation.kept import KEPT, Kept
from simulation.run import play, run
from simulation.sometimes import SOMETIMES
from simulation.story import retell

SEEDS: Final = 500
pytestmark = pytest.mark.timeout(120)  # a seed takes a second, more where the machine is busy
PLAYED: Final[set[int]] = set()
TOTAL: Final[Counter[str]] = Counter()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_laws_hold_whatever_goes_wrong(seed: int) -> None:
    played = play(seed)
    if played.error is not None:
        pytest.fail(retell(seed), pytrace=False)
    TOTAL.update(played.hits)
    PLAYED.add(seed)


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: f"{kept.seed}-{kept.showed}".replace(" ", "-"))
def test_what_once_broke_a_law_does_so_no_more(kept: Kept) -> None:
    played = play(kept.seed, without=kept.without)
    if played.error is not None:
        pytest.fail(retell(kept.seed, kept.without), pytrace=False)


def test_every_kind_of_trouble_happened_at_least_once() -> None:
    if len(PLAYED) < SEEDS:
        pytest.skip("not all seeds were played in this run")
    assert [name for name in SOMETIMES if not TOTAL[name]] == []


def test_a_seed_is_always_the_same_run() -> None:
    lines: list[list[str]] = [[], []]
    for told in lines:
        run(3, told.append)
    assert lines[0] == lines[1]


@pytest.mark.parametrize("text", ["abc", "5..x", "5..3", ""])
def test_what_is_no_range_of_seeds_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        asked(["--seeds", text])
    assert f"expected from..to such as 0..500, found {text!r}" in capsys.readouterr().err


def test_seeds_are_a_range_or_one() -> None:
    assert [seeds("3..6"), seeds("7")] == [range(3, 6), range(7, 8)]
