"""Save, delete, kill, restore, join, backup: in all orders of up to three, in haste; the laws hold after each step."""

import pytest

from crash.report import Report
from crash.scene import Scene
from crash.sequences import ACTIONS, SEQUENCES, play


def test_there_is_every_sequence_of_up_to_three_actions() -> None:
    assert len(SEQUENCES) == 6 + 6**2 + 6**3
    assert {name for names in SEQUENCES.values() for name in names} == ACTIONS.keys()


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.timeout(180)
async def test_laws_hold_after(sequence: str, scene: Scene, report: Report) -> None:
    with report.item("sequence", sequence, scene):
        await play(scene, sequence)
