"""The loop that all services share: wait for an event, ask the machine, perform its effects."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from checkpoint_replicator import failpoint
from checkpoint_replicator.machine import Machine, Ticked

__all__ = ["drive"]

Event = TypeVar("Event")
Effect = TypeVar("Effect")


async def drive(
    machine: Machine[Event | Ticked, Effect],
    inbox: asyncio.Queue[Event],
    perform: Callable[[Effect], Awaitable[None]],
    stopping: asyncio.Event,
    clock: Callable[[], float] = time.monotonic,
    *,
    record: Callable[[Event | Ticked, float], None] | None = None,
) -> None:
    """Feed the machine until `stopping` is set.

    Effects are performed in order and before the next event is taken, so `perform` starts what takes long as a task of
    its own and answers with an event. `record` sees every input first, for logs that can be replayed.
    `Ticked` comes when the machine's deadline has passed, also while events keep coming.
    """
    stop = asyncio.create_task(stopping.wait(), name="drive-stop")
    arrival: asyncio.Task[Event] | None = None
    try:
        while not stopping.is_set():
            event: Event | Ticked
            deadline = machine.next_deadline()
            left = None if deadline is None else deadline - clock()
            if left is not None and left <= 0:
                event = Ticked()
                await asyncio.sleep(0)  # a machine that is always due must not starve the loop
            elif arrival is None and not inbox.empty():
                event = inbox.get_nowait()  # without a task; whoever fills the inbox runs when it is empty
            else:
                # The task outlives a time-out, so no event is lost between two waits.
                arrival = arrival or asyncio.create_task(inbox.get(), name="drive-inbox")
                await asyncio.wait((arrival, stop), timeout=left, return_when=asyncio.FIRST_COMPLETED)
                if not arrival.done():
                    continue
                event, arrival = arrival.result(), None
            now = clock()
            if record is not None:
                record(event, now)
            for effect in machine.handle(event, now):
                with failpoint.giving(effect):
                    await perform(effect)
    finally:
        stop.cancel()
        if arrival is not None:
            arrival.cancel()
