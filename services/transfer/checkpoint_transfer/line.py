"""A line to one peer's PULL: what cannot be sent at once is tried again for a while, within a bound."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from checkpoint_replicator.bus import Body, Bus, Sender
from checkpoint_replicator.messages import Envelope

__all__ = ["Line"]

WAITING: Final = 256
"""Messages that wait for the peer at most."""
_PAUSE_LEAST: Final = 0.001
_PAUSE_MOST: Final = 0.05


class Line:
    """One PUSH socket, opened at the first message."""

    def __init__(self, bus: Bus, endpoint: str, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Take the endpoint, and for how many seconds a message is tried."""
        self.endpoint = endpoint
        self.used = clock()
        self._bus = bus
        self._patience = patience
        self._clock = clock
        self._sender: Sender | None = None
        self._was_connected = False
        self._waiting: deque[tuple[Envelope, Body, float, Callable[[], None] | None]] = deque()
        self._flush: asyncio.Task[None] | None = None

    def send(self, envelope: Envelope, body: Body = (), unsent: Callable[[], None] | None = None) -> None:
        """Send now or soon; `unsent` is called when the peer took nothing until the deadline."""
        self.used = self._clock()
        if self._sender is None:
            self._sender = self._bus.push(self.endpoint)
        if not self._waiting and self._sender.send(envelope, body):
            return
        if len(self._waiting) >= WAITING:
            if unsent is not None:
                unsent()
            return
        self._waiting.append((envelope, body, self._clock() + self._patience, unsent))
        if self._flush is None or self._flush.done():
            self._flush = asyncio.create_task(self._send_waiting(), name=f"line {self.endpoint}")

    def is_lost(self) -> bool:
        """Tell whether the connection that was there is gone since the last time this was asked."""
        connected = self._sender is not None and self._sender.connected
        lost = self._was_connected and not connected
        self._was_connected = connected
        return lost

    def close(self) -> None:
        """Drop what waits and close the socket; a later message opens it anew."""
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        waiting, self._waiting = self._waiting, deque()
        for _, _, _, unsent in waiting:
            if unsent is not None:
                unsent()
        if self._sender is not None:
            self._sender.close()
            self._sender = None
        self._was_connected = False

    async def _send_waiting(self) -> None:
        pause = _PAUSE_LEAST
        while self._waiting and self._sender is not None:
            envelope, body, deadline, unsent = self._waiting[0]
            if self._sender.send(envelope, body):
                self._waiting.popleft()
                pause = _PAUSE_LEAST
            elif self._clock() >= deadline:
                self._waiting.popleft()
                if unsent is not None:
                    unsent()
            else:
                await asyncio.sleep(pause)
                pause = min(pause * 2, _PAUSE_MOST)
