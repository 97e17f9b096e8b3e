"""How fast seeds are played, in CPU time: of all, and of the small worlds among them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import process_time

from simulation.world import is_small

__all__ = ["Pace", "Paces"]


@dataclass
class Pace:
    """Seeds that were played, and the CPU seconds that they took."""

    seeds: int = 0
    spent: float = 0.0

    @property
    def a_minute(self) -> int:
        """Seeds that one core plays in a minute; 0 while nothing was measured."""
        return round(60 * self.seeds / self.spent) if self.spent else 0

    def __str__(self) -> str:
        many = "1 seed" if self.seeds == 1 else f"{self.seeds} seeds"
        return f"{many}, {self.spent:.1f} s of CPU, {self.a_minute} seeds a minute"


@dataclass
class Paces:
    """The pace of all seeds, and that of those that make a small world."""

    all: Pace = field(default_factory=Pace)
    small: Pace = field(default_factory=Pace)

    @contextmanager
    def measured(self, seed: int) -> Iterator[None]:
        """Count what is done within for this seed."""
        begun = process_time()
        yield
        spent = process_time() - begun
        for pace in (self.all, self.small) if is_small(seed) else (self.all,):
            pace.seeds += 1
            pace.spent += spent
