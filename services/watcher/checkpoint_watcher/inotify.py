"""The one door to inotify: it says "look again" and how a name arrived, never what is true.

Events may be lost (the queue overflows, a rename tells less than it should); the scan makes up for all of it.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from asyncinotify import Inotify, Mask

from checkpoint_replicator.errors import UnreachableError
from checkpoint_watcher.entry import Kind, classify
from checkpoint_watcher.framework import Arrival

__all__ = ["Watchman"]

CACHE: Final = 256
"""Events read at once."""
MAX_NAMES: Final = 100_000
"""Names remembered between two scans; beyond them the scan judges without knowing how a name arrived."""
INTERESTING: Final = {Kind.YAML, Kind.FILE, Kind.DIRECTORY}


class Watchman:
    """Watches one directory.

    Args:
        root: the directory.
        wake: called when it is time to look.
        overflowed: called when the kernel lost events.
    """

    def __init__(self, root: Path, wake: Callable[[], None], overflowed: Callable[[], None] = lambda: None) -> None:
        self._root = root
        self._wake = wake
        self._overflowed = overflowed
        self._arrivals: dict[str, Arrival] = {}
        self._inotify = Inotify(cache_size=CACHE)
        # The watch stands before the first scan begins.
        mask = Mask.CLOSE_WRITE | Mask.MOVED_TO | Mask.CREATE | Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.ONLYDIR
        self._inotify.add_watch(root, mask)

    def take(self) -> dict[str, Arrival]:
        """How names arrived since the last call."""
        arrivals, self._arrivals = self._arrivals, {}
        return arrivals

    def close(self) -> None:
        """Stop watching."""
        self._inotify.close()

    async def run(self) -> None:
        """Listen until cancelled.

        Raises:
            UnreachableError: the directory itself is gone; a new process must look for it.
        """
        while True:
            event = await self._inotify.get()
            mask = event.mask
            if mask & Mask.Q_OVERFLOW:
                self._overflowed()
                self._wake()
            elif mask & (Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.UNMOUNT | Mask.IGNORED):
                raise UnreachableError(f"{self._root}: the directory was removed or replaced")
            elif event.name is not None:
                self._note(str(event.name), mask)
            await asyncio.sleep(0)  # a flood of events must not starve the loop

    def _note(self, name: str, mask: Mask) -> None:
        directory = bool(mask & Mask.ISDIR)
        if classify(name, directory=directory) not in INTERESTING:
            return
        if mask & Mask.MOVED_TO:
            self._remember(name, Arrival.MOVED)
        elif mask & Mask.CLOSE_WRITE:
            self._remember(name, Arrival.CLOSED)
        self._wake()

    def _remember(self, name: str, arrival: Arrival) -> None:
        if len(self._arrivals) < MAX_NAMES:
            self._arrivals[name] = arrival
