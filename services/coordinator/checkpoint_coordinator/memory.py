"""Which is the later: what this coordinator remembers of its own tenure, or what Redis holds; pure.

Redis may come back empty or older at any time. The numbers in stamps grow through all tenures of a job, so a fence with
a number below that of a write that Redis once took says that Redis went back. Whether another coordinator decided
meanwhile is told by the nodes: they obeyed a token above ours then.
"""

from checkpoint_replicator.fence import ZERO, Stamp

__all__ = ["Memory"]


class Memory:
    """What the last tenure of this process left in it.

    Attributes:
        better: Redis holds less than we remember, until all of it is written again.
    """

    def __init__(self) -> None:
        self.better = False
        self._written = ZERO
        """The last write that Redis took in the tenure that the memory is of."""
        self._rewritten = 0
        """The number of our last write while Redis is behind."""

    def leave(self, written: Stamp) -> None:
        """A tenure ends; Redis took this stamp last. One in which Redis was still behind adds nothing."""
        if not self.better:
            self._written = max(self._written, written)

    def begin(self, fence: Stamp, *, empty: bool) -> bool:
        """Judge Redis at the beginning of a tenure; True: what we remember is the later.

        Args:
            fence: as it stood in Redis after the lease was taken.
            empty: Redis knows of no epoch.
        """
        if self._written == ZERO:
            return False
        back = fence.number < self._written.number or (empty and fence.number == self._written.number)
        self.better = back or (self.better and fence.number <= self._rewritten)
        return self.better

    def wrote(self, stamp: Stamp) -> None:
        """Redis took a write of ours."""
        if self.better:
            self._rewritten = max(self._rewritten, stamp.number)

    def outdone(self, obeyed: Stamp) -> bool:
        """Tell whether a node that obeyed this followed another coordinator after us: what we remember is history."""
        return self.better and obeyed.token > self._written.token

    def written(self) -> None:
        """Redis holds all that we remember."""
        self.better = False
