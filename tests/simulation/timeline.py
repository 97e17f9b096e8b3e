"""The order of all that happens: a heap of moments on a clock that nobody else moves."""

import heapq
from collections.abc import Callable

Action = Callable[[], None]


class Timeline:
    """Actions by moment; those of one moment in the order in which they were put there."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Action]] = []
        self._count = 0

    def at(self, moment: float, action: Action) -> None:
        """Do it then, or now where that is past."""
        self._count += 1
        moment = moment if moment > self.now else self.now  # noqa: FURB136 - asked for everything that happens
        heapq.heappush(self._heap, (moment, self._count, action))

    def after(self, delay: float, action: Action) -> None:
        """Do it in so many seconds."""
        self.at(self.now + delay, action)

    @property
    def next(self) -> float:
        """When the next action is."""
        return self._heap[0][0] if self._heap else float("inf")

    def step(self) -> None:
        """Go on to the next action and do it."""
        self.now, _, action = heapq.heappop(self._heap)
        action()
