"""A backup store in memory: away, forbidden, slow or late at times, and deadly to a caller between two of its calls."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

from checkpoint_replicator.blobs import Blob
from checkpoint_replicator.errors import PermanentError, UnreachableError
from simulation.process import KilledError
from support.memory_blobs import MemoryBlobStore

if TYPE_CHECKING:
    from simulation.world import World

__all__ = ["Bucket"]


class Bucket:
    """One store for all uploaders.

    Attributes:
        down: nothing answers.
        forbidden: every call is refused, as with a credential that lost its rights.
        failing: chance that one call gets no answer, be it done or not.
        deadly: chance that the caller dies at one call.
        slow: seconds that an order takes at the most.
        late: a listing shows how all was so many seconds ago.
    """

    def __init__(self, world: "World", root: str) -> None:
        self.world = world
        self.store = Store(self, root)
        self.store.before = self._enter
        self.late_at = float("-inf")
        """When a listing last showed the past."""
        self.calm()

    def calm(self) -> None:
        """Every call is answered, soon and truly."""
        self.down = self.forbidden = False
        self.failing = self.deadly = self.late = 0.0
        self.slow = 1.0

    @contextmanager
    def used(self) -> Iterator[None]:
        """Look at what was written after each use."""
        before = len(self.store.log)
        try:
            yield
        finally:
            self.world.court.stored(self.store.log[before:])

    def doubt(self, method: str, name: str) -> None:
        """Lose the answer of a call that was done, perhaps."""
        if self.failing and self.world.chance.random() < self.failing:
            self.world.hits["answer of the bucket lost"] += 1
            raise UnreachableError(f"{method} {name}: the store does not answer")

    def _enter(self, method: str, name: str) -> None:
        chance = self.world.chance
        if self.deadly and chance.random() < self.deadly:
            self.world.hits["uploader died at work"] += 1
            raise KilledError
        if self.forbidden:
            self.world.hits["bucket forbidden"] += 1
            raise PermanentError(f"{method} {name}: 403 forbidden")
        if self.down or (self.failing and chance.random() < self.failing):
            raise UnreachableError(f"{method} {name}: the store does not answer")


class Store(MemoryBlobStore):
    """Objects, with answers that are lost and listings that are late."""

    def __init__(self, bucket: Bucket, root: str) -> None:
        super().__init__(root)
        self.bucket = bucket
        self.since: dict[str, float] = {}
        """When each object came."""

    def put_new(self, name: str, source: BinaryIO, size: int, crc32c: str) -> bool:
        made = super().put_new(name, source, size, crc32c)
        if made:
            self.since[name] = self.bucket.world.now
        self.bucket.doubt("put_new", name)
        return made

    def stat(self, name: str) -> Blob | None:
        found = super().stat(name)
        self.bucket.doubt("stat", name)
        return found

    def delete(self, name: str) -> None:
        super().delete(name)
        self.bucket.doubt("delete", name)

    def list(self, prefix: str) -> Iterator[Blob]:
        late, now = self.bucket.late, self.bucket.world.now
        for blob in super().list(prefix):
            if late and now - self.since.get(blob.name, 0.0) < late:
                self.bucket.world.hits["listing was late"] += 1
                self.bucket.late_at = now
                continue
            yield blob
