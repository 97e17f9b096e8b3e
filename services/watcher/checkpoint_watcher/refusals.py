"""How long the ramdisk may refuse what is to be done: what is tried again without end would show nowhere."""

from dataclasses import dataclass, field

from checkpoint_watcher.effects import Effect

__all__ = ["Refusals"]


@dataclass(slots=True)
class Refusals:
    """Effects that are tried again, by which each was refused first.

    Attributes:
        most: seconds that an unbroken row of refusals of one effect may last.
    """

    most: float
    _since: dict[int, tuple[float, str]] = field(default_factory=dict)
    """By the identity of an effect: it lives in the queue until it is done."""

    @property
    def reason(self) -> str:
        """What the ramdisk refuses for the longest time; empty where it refuses nothing."""
        return min(self._since.values(), default=(0.0, ""))[1]

    def refused(self, effect: Effect, error: OSError, now: float) -> None:
        """Note a refusal.

        Raises:
            OSError: it lasts too long; a new life of the process may find a way.
        """
        since, _ = self._since.get(id(effect), (now, ""))
        if now >= since + self.most:
            raise error
        self._since[id(effect)] = (since, f"the ramdisk refuses {type(effect).__name__}: {error}")

    def over(self, effect: Effect) -> None:
        """The effect was done, is done no more, or waits for room or for a reader."""
        self._since.pop(id(effect), None)
