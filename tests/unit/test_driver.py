import asyncio
from collections.abc import Sequence

import pytest

from checkpoint_replicator.driver import drive
from checkpoint_replicator.machine import Ticked
from support.clock import ManualClock


class Echo:
    """Says what it hears; wants to be asked again at the moments given."""

    def __init__(self, deadlines: list[float] | None = None) -> None:
        self.deadlines = deadlines or []

    def handle(self, event: str | Ticked, now: float) -> Sequence[str]:
        if isinstance(event, Ticked):
            self.deadlines.pop(0)
            return ["ticked"]
        return [f"{event} at {now:g}", f"after {event}"]

    def next_deadline(self) -> float | None:
        return self.deadlines[0] if self.deadlines else None


class Stage:
    """Collects effects and stops the drive at the last one wanted."""

    def __init__(self, last: str) -> None:
        self.last = last
        self.said: list[str] = []
        self.stopping = asyncio.Event()
        self.inbox: asyncio.Queue[str] = asyncio.Queue()

    async def perform(self, effect: str) -> None:
        await asyncio.sleep(0)
        self.said.append(effect)
        if effect == self.last:
            self.stopping.set()


async def test_effects_are_performed_in_order_before_the_next_event() -> None:
    stage = Stage("after b")
    for event in ("a", "b"):
        stage.inbox.put_nowait(event)
    await drive(Echo(), stage.inbox, stage.perform, stage.stopping, ManualClock(5))
    assert stage.said == ["a at 5", "after a", "b at 5", "after b"]


async def test_a_deadline_that_has_passed_comes_before_waiting_events() -> None:
    stage = Stage("after a")
    stage.inbox.put_nowait("a")
    await drive(Echo([1, 2]), stage.inbox, stage.perform, stage.stopping, ManualClock(5))
    assert stage.said == ["ticked", "ticked", "a at 5", "after a"]


async def test_an_event_that_comes_late_is_not_lost_to_earlier_deadlines() -> None:
    stage = Stage("after late")
    loop = asyncio.get_running_loop()
    loop.call_later(0.02, stage.inbox.put_nowait, "late")
    soon = [loop.time() + 0.005, loop.time() + 0.01]
    await drive(Echo(soon), stage.inbox, stage.perform, stage.stopping, loop.time)
    assert stage.said[:2] == ["ticked", "ticked"]
    assert stage.said[-1] == "after late"


async def test_stopping_ends_a_wait_without_a_deadline() -> None:
    stage = Stage("never")
    asyncio.get_running_loop().call_soon(stage.stopping.set)
    await drive(Echo(), stage.inbox, stage.perform, stage.stopping)
    assert stage.said == []


async def test_every_input_is_recorded_before_it_is_handled() -> None:
    stage = Stage("after a")
    stage.inbox.put_nowait("a")
    recorded: list[tuple[str | Ticked, float]] = []
    await drive(
        Echo(),
        stage.inbox,
        stage.perform,
        stage.stopping,
        ManualClock(5),
        record=lambda *input_: recorded.append(input_),
    )
    assert recorded == [("a", 5)]


async def test_an_effect_that_fails_ends_the_drive() -> None:
    stage = Stage("never")
    stage.inbox.put_nowait("a")

    async def fail(effect: str) -> None:
        await asyncio.sleep(0)
        raise OSError(effect)

    with pytest.raises(OSError, match="a at"):
        await drive(Echo(), stage.inbox, fail, stage.stopping)
