"""A backup store in memory: away at times, and deadly to a caller between two of its calls."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from checkpoint_replicator.errors import UnreachableError
from simulation.process import KilledError
from support.memory_blobs import MemoryBlobStore

if TYPE_CHECKING:
    from simulation.world import World

__all__ = ["Bucket"]


class Bucket:
    """One store for all uploaders."""

    def __init__(self, world: "World", root: str) -> None:
        self.world = world
        self.store = MemoryBlobStore(root)
        self.store.before = self._enter
        self.down = False
        self.failing = 0.0
        """Chance that one call gets no answer."""
        self.deadly = 0.0
        """Chance that the caller dies at one call."""

    def calm(self) -> None:
        """Every call is answered."""
        self.down = False
        self.failing = self.deadly = 0.0

    @contextmanager
    def used(self) -> Iterator[None]:
        """Look at what was written after each use."""
        before = len(self.store.log)
        try:
            yield
        finally:
            self.world.court.stored(self.store.log[before:])

    def _enter(self, method: str, name: str) -> None:
        chance = self.world.chance
        if self.deadly and chance.random() < self.deadly:
            self.world.hits["uploader died at work"] += 1
            raise KilledError
        if self.down or (self.failing and chance.random() < self.failing):
            raise UnreachableError(f"{method} {name}: the store does not answer")
