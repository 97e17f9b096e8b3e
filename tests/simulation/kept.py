"""Seeds that once showed a fault of the product. Where the world changes they play something else, and cost nothing."""

from dataclasses import dataclass
from typing import Final

__all__ = ["KEPT", "Kept"]


@dataclass(frozen=True)
class Kept:
    """A seed, what its story left out, and what it showed."""

    seed: int
    showed: str
    without: frozenset[str] = frozenset()


KEPT: Final = (
    Kept(5, "what only nodes knew to be committed was given up after Redis was flushed"),
    Kept(188, "what was left of a shard that somebody changed was never dropped"),
    Kept(62, "a copy that landed after its save was let go stayed"),
    Kept(372, "a save that was skipped stayed as one in flight"),
    Kept(42, "an order that was given after Redis lost all was dropped when nodes told what they had obeyed"),
    Kept(308, "a watcher woke up all the time when an order to forget was taken back"),
    Kept(571, "a failed session held its save on a host that the job went on without"),
    Kept(867, "a report of an earlier life of a watcher that came late silenced the present one for good"),
    Kept(25, "a hold was lost with the data of Redis, and saves went while people looked at them"),
    Kept(1580, "a job that trained was called idle when the clock of Redis jumped ahead"),
)
