"""Failing seeds are told short."""

import pytest

from checkpoint_coordinator import commit
from simulation.laws import LawBrokenError
from simulation.run import play
from simulation.story import fewest, keys_of, law_of, retell, story

LINES = [
    "    1.000 h0.watcher     save_named step=3",
    "    1.100 h1.watcher     < ShardNamed(tag=Tag(save=Save(epoch=1, step=3)))",
    "    1.200 c0             save_committed save=1.30",
    "    1.300 redis          down",
]


def test_a_story_tells_what_touches_a_save_or_a_host_and_what_went_wrong() -> None:
    assert story(LINES, "1.3")[0].endswith("ShardNamed(tag=Tag(save=1.3))")
    assert [line.split()[1] for line in story(LINES, "1.3")] == ["h1.watcher", "redis"]
    assert [line.split()[1] for line in story(LINES, "h0")] == ["h0.watcher", "redis"]
    assert len(story(LINES)) == len(LINES)


def test_the_keys_of_a_story_are_the_saves_and_hosts_that_the_breach_names() -> None:
    error = LawBrokenError(3, "save 1.3 was committed, but h1 lost it")
    error.args = (f"seed 5, 34.213 s: {error}",)
    assert keys_of(error) == ("1.3", "h1")


def test_troubles_that_a_breach_does_not_need_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit.Crew, "required", lambda _self, _rank: 0)
    seed = next(seed for seed in range(100) if law_of(play(seed).error) == 4)
    failed = play(seed)
    short = fewest(seed, failed)
    assert law_of(short.error) == 4
    assert len(short.troubles) < len(failed.troubles)
    told = retell(seed)
    assert "law 4" in told
    assert f"again: make sim SEED={seed} WITHOUT=" in told


def test_a_good_seed_has_no_story() -> None:
    assert retell(3) == "seed 3: all laws hold"
