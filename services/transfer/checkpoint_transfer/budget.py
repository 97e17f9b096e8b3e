"""A bound on bytes in memory, shared by all fetches or by all serves of a process."""

__all__ = ["Budget"]


class Budget:
    """So many bytes may be in memory at once; who wants more waits until somebody gives back."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        """Take the limit in bytes."""
        self.limit = limit
        self.used = 0

    @property
    def free(self) -> int:
        """Bytes that can still be taken."""
        return self.limit - self.used

    def take(self, size: int) -> bool:
        """Take bytes if so many are free."""
        if size > self.free:
            return False
        self.used += size
        return True

    def give(self, size: int) -> None:
        """Give bytes back."""
        self.used -= size
