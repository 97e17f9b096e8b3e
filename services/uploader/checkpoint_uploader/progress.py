"""How far a thread is with an order, and the wish that it stops; shared by the thread and the event loop."""

import threading
from collections.abc import Callable

from checkpoint_replicator.errors import TransientError

__all__ = ["CancelledError", "Progress"]


class CancelledError(TransientError):
    """The order was given up while its thread was at it."""


class Progress:
    """Counts bytes; any sign of life, also without bytes, counts as a beat.

    Args:
        counted: called with each number of bytes, from the thread.
    """

    def __init__(self, counted: Callable[[int], None] | None = None) -> None:
        self._counted = counted
        self._lock = threading.Lock()
        self._cancelled = threading.Event()
        self.sent = 0
        self.beats = 0

    def cancel(self) -> None:
        """Let the next `moved` raise."""
        self._cancelled.set()

    def moved(self, size: int = 0) -> None:
        """Note a sign of life and `size` bytes.

        Raises:
            CancelledError: the order was given up.
        """
        if self._cancelled.is_set():
            raise CancelledError("given up")
        with self._lock:
            self.beats += 1
            self.sent += size
        if size and self._counted is not None:
            self._counted(size)
