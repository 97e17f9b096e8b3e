"""Buffers that are lent for one message and come back when ZeroMQ has let go of them.

Fresh memory for every message would cost a page fault and a zeroing for each 4 KiB. A buffer comes back when the last
view of it dies, and ZeroMQ keeps its view until the kernel has the bytes; so nothing is ever written over too early.
"""

import ctypes
import threading
import weakref
from typing import Final

from checkpoint_replicator.buffer import new_buffer

__all__ = ["Buffers"]

_SMALL: Final = 256 << 10
"""Below this many bytes fresh memory is as fast."""


class Buffers:
    """Keeps up to `most` free buffers of `size` bytes; lends more when none is free."""

    def __init__(self, size: int, most: int) -> None:
        self._size = size
        self._most = most
        self._free: list[memoryview] = []
        self._lent: dict[int, weakref.ref[ctypes.Array[ctypes.c_char]]] = {}
        self._lease = ctypes.c_char * size
        self._lock = threading.RLock()  # a view may die in the middle of anything

    @property
    def free(self) -> int:
        """Buffers that lie ready."""
        return len(self._free)

    def lend(self, size: int) -> memoryview:
        """Return a writable view of `size` bytes with any content."""
        if size > self._size or size < _SMALL:
            return memoryview(bytearray(size))
        with self._lock:
            whole = self._free.pop() if self._free else new_buffer(self._size)
            # Every view, and every slice of one, keeps the lease alive; a view itself may die before its slices.
            lease = self._lease.from_buffer(whole)
            key = id(lease)
            self._lent[key] = weakref.ref(lease, lambda _: self._take_back(key, whole))
        return memoryview(lease).cast("B")[:size]

    def _take_back(self, key: int, whole: memoryview) -> None:
        with self._lock:
            self._lent.pop(key, None)
            if len(self._free) < self._most:
                self._free.append(whole)
