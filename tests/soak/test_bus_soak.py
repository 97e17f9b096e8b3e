"""Rows that want very many messages of one socket."""

import asyncio

import pytest

from checkpoint_replicator.bus import Received, Sender
from checkpoint_replicator.bus.zeromq import ZeroMQBus
from checkpoint_replicator.messages import NotYet
from support.eventually import eventually
from support.factories import ADDRESS, envelope

pytestmark = pytest.mark.timeout(3600)


class End:
    """One of two peers: sends numbers to the other, and hears the other's in order."""

    def __init__(self, bus: ZeroMQBus) -> None:
        self.bus = bus
        self.heard = 0
        self.sent = 0
        self.longest = 0.0
        """The longest time without a message, in seconds."""
        self._last: float | None = None

    async def open(self) -> str:
        return await self.bus.pull("tcp://127.0.0.1:0", self._hear)

    async def _hear(self, received: Received) -> None:
        message = received.envelope.message
        assert isinstance(message, NotYet)
        assert message.reason == str(self.heard)
        self.heard += 1
        now = asyncio.get_running_loop().time()
        self.longest = max(self.longest, now - (self._last or now))
        self._last = now

    async def send_all(self, sender: Sender, count: int) -> None:
        await eventually(lambda: sender.connected)
        while self.sent < count:
            taken = sender.send(envelope(NotYet(address=ADDRESS, reason=str(self.sent))))
            self.sent += taken
            if not taken or self.sent % 50 == 0:
                await asyncio.sleep(0)


WHOLE = 500_000
"""A million in both ways together."""


@pytest.mark.parametrize("count", [5_000, pytest.param(WHOLE, marks=pytest.mark.nightly)])
async def test_s69_messages_both_ways_never_stall_and_none_is_missed(count: int) -> None:
    buses = ZeroMQBus(), ZeroMQBus()
    one, two = (End(bus) for bus in buses)
    to_one, to_two = await one.open(), await two.open()
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(one.send_all(buses[0].push(to_two), count))
            tasks.create_task(two.send_all(buses[1].push(to_one), count))
        await eventually(lambda: one.heard == two.heard == count, 60)
    finally:
        for bus in buses:
            await bus.close()
    pause = max(one.longest, two.longest)
    print(f"longest pause {pause:.3f} s")  # noqa: T201 - the figure of the row
    assert count < WHOLE or pause < 1  # fewer run beside other tests, which take the processor for as long
