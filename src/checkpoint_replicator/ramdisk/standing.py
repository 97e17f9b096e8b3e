"""Which shards stand, asked again and again: a whole directory is not walked each time."""

import os
import time
from collections.abc import Callable
from typing import Final

from checkpoint_replicator.ids import Address
from checkpoint_replicator.ramdisk.layout import Layout
from checkpoint_replicator.ramdisk.register import Register
from checkpoint_replicator.ramdisk.sidecar import Sidecar

__all__ = ["TRUSTED", "Standing"]

TRUSTED: Final = 10.0
"""Seconds for which a directory that looks the same from above is taken to be the same below."""
_Mark = tuple[int, int, int, int]
"""Inode, size, mtime and ctime of a shard's file or topmost directory."""


class Standing:
    """Remembers what stood when; for one thread.

    Args:
        layout: of the ramdisk.
        register: looks at a whole shard.
        clock: monotonic seconds.
    """

    def __init__(self, layout: Layout, register: Register, clock: Callable[[], float] = time.monotonic) -> None:
        self._layout = layout
        self._register = register
        self._clock = clock
        self._known: dict[Address, tuple[str, _Mark, float]] = {}

    def stands(self, sidecar: Sidecar) -> bool:
        """Tell whether a shard stands; a change deep inside a directory may be seen only after `TRUSTED` seconds."""
        address = sidecar.tag.address
        mark = self._look(address)
        known = self._known.get(address)
        now = self._clock()
        if known is not None and known[:2] == (sidecar.fingerprint, mark) and now < known[2] + TRUSTED:
            return True
        if mark is None or self._register.fault(sidecar) is not None:
            self._known.pop(address, None)
            return False
        self._known[address] = (sidecar.fingerprint, mark, now)
        return True

    def forget(self, but: set[Address]) -> None:
        """Forget all shards but these."""
        self._known = {address: known for address, known in self._known.items() if address in but}

    def _look(self, address: Address) -> _Mark | None:
        try:
            facts = os.lstat(self._layout.data(address))
            os.lstat(self._layout.tree(address))
        except OSError:
            return None
        return facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns
