"""How fast seeds are played, and which of them are small worlds."""

import pytest

from simulation.__main__ import main
from simulation.pace import Pace, Paces
from simulation.world import World, is_small

BIG, SMALL = 2, 3


def test_a_small_world_is_one_job_of_two_or_three_nodes_and_perhaps_one_host_more() -> None:
    worlds = [world for world in map(World, range(200)) if world.small]
    assert len(worlds) > 150
    assert {len(world.trainings) for world in worlds} == {1}
    assert {training.nodes for world in worlds for training in world.trainings.values()} == {2, 3}
    assert {len(world.hosts) for world in worlds} == {2, 3, 4}
    assert [world.small for world in map(World, (BIG, SMALL))] == [is_small(BIG), is_small(SMALL)] == [False, True]


def test_a_pace_is_told_in_seeds_a_minute_of_cpu() -> None:
    assert str(Pace(435, 17.4)) == "435 seeds, 17.4 s of CPU, 1500 seeds a minute"
    assert str(Pace(1, 0.0)) == "1 seed, 0.0 s of CPU, 0 seeds a minute"


def test_small_worlds_have_a_pace_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((1.0, 1.5, 2.0, 4.0))
    monkeypatch.setattr("simulation.pace.process_time", lambda: next(clock))
    paces = Paces()
    for seed in (SMALL, BIG):
        with paces.measured(seed):
            pass
    assert (paces.all, paces.small) == (Pace(2, 2.5), Pace(1, 0.5))


def test_small_worlds_can_be_played_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", f"{BIG}..{SMALL + 1}", "--small"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert " events: 1 seed, " in told[-4]
    assert told[-3].startswith("small worlds: 1 seed, ")


def test_seeds_of_which_none_is_small_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--seeds", str(BIG), "--small"])
    assert "--small: none of these seeds makes a small world" in capsys.readouterr().err
