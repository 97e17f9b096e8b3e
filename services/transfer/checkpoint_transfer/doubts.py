"""Pure: shards that stood here before this process began, hashed again one after another.

A peer may have called one of them corrupt, and the life before died before it had looked and said what it found. Nobody
repeats a complaint, and a corrupt copy that nobody looks at counts as a replica. So a new life believes none of them.
"""

from collections import deque

from checkpoint_replicator.ids import Address

__all__ = ["Doubts"]


class Doubts:
    """What is left to be hashed."""

    def __init__(self) -> None:
        """Start without any."""
        self._left: deque[Address] = deque()
        self._current: Address | None = None

    def found(self, addresses: tuple[Address, ...]) -> None:
        """Take what stood here."""
        self._left.extend(addresses)

    def checked(self, address: Address) -> None:
        """One was hashed, for whatever reason."""
        if address == self._current:
            self._current = None
        elif address in self._left:
            self._left.remove(address)

    def next(self) -> Address | None:
        """Return the next to hash; None while one is being hashed, and at the end."""
        if self._current is not None or not self._left:
            return None
        self._current = self._left.popleft()
        return self._current
