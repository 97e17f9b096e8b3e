"""Processes die at numbered points, are started again, and the laws hold: judged by bytes, not by words.

With each commit `CHOSEN` crashes and sequences run; `--all-crashes` runs all, `--crash NAME` those whose name holds it.
"""

from typing import get_args

import pytest

from checkpoint_coordinator.commit import SaveState
from checkpoint_coordinator.words import Effect as CoordinatorEffect
from checkpoint_replicator.records import EpochState
from checkpoint_transfer.effects import TransferEffect
from checkpoint_uploader.holder import HolderEffect
from checkpoint_uploader.machine import Effect as UploaderEffect
from checkpoint_watcher.effects import Effect as WatcherEffect
from crash.points import EVERY, LISTS, REACHABLE, UNREACHED, effect_of, stage_of
from crash.report import Report
from crash.scene import Scene
from crash.stages import STAGES

EFFECTS = {
    "watcher": get_args(WatcherEffect),
    "transfer": get_args(TransferEffect),
    "uploader": (*get_args(UploaderEffect), *get_args(HolderEffect)),
    "coordinator": get_args(CoordinatorEffect),
}


@pytest.mark.parametrize("service", EFFECTS)
def test_every_effect_of_a_service_has_its_failpoints(service: str) -> None:
    named = {effect.__name__ for effect in EFFECTS[service]}
    listed = {point.split()[0] for point in LISTS[service]}
    assert named - listed == set(), (
        f"list them in checkpoint_{service}/failpoints.py, and tests/crash/points.py: where?"
    )
    assert listed - named <= {"Start", "Sweep"}


def test_every_state_that_a_coordinator_writes_has_its_failpoints() -> None:
    wanted = {f"coordinator Write epoch={state}" for state in EpochState}
    wanted |= {f"coordinator Write step={state}" for state in SaveState}
    assert wanted - {effect_of(point) for point in EVERY} == set()


def test_every_point_lies_on_the_way_of_a_stage_or_says_why_not() -> None:
    assert {stage_of(point) for point in REACHABLE} <= STAGES.keys()
    assert UNREACHED.keys() <= {*EVERY, *map(effect_of, EVERY)}
    assert all(UNREACHED.values())


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.timeout(180)
async def test_laws_hold_where_a_process_dies_at(crash_point: str, scene: Scene, report: Report) -> None:
    stage = STAGES[stage_of(crash_point)]
    with report.item("crash point", crash_point, scene):
        if stage.prepare is not None:
            await stage.prepare(scene)
        assert await scene.crash_at(crash_point, lambda: stage.act(scene)) == []
        if stage.tidy is not None:
            await stage.tidy(scene)


def test_no_place_was_passed_that_no_list_names(census: set[str]) -> None:
    assert {effect_of(place) for place in census} - {effect_of(place) for place in EVERY} == set()
