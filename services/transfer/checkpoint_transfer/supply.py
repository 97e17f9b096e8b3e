"""Pure: what a fetch remembers of one source: what it was asked for, and its failures."""

from typing import Final

from checkpoint_transfer.patience import Patience
from checkpoint_transfer.source import Source

__all__ = ["SPOILED_TWICE", "Supply"]

SPOILED_TWICE: Final = 2
"""A leaf that came corrupt so often from one source is not asked of it again."""
SPOILED_MOST: Final = 16
"""A source that gave so many corrupt leaves is given up."""


class Supply:
    """One source of a fetch."""

    def __init__(self, source: Source, patience: Patience) -> None:
        """Start without memory."""
        self.source = source
        self.asked: dict[int, int] = {}
        """Leaves asked and not arrived, with their sizes."""
        self.asked_bytes = 0
        self.storing_bytes = 0
        """Bytes that arrived and are being verified and written."""
        self.spoiled: dict[int, int] = {}
        """Leaves that came corrupt, and how often."""
        self.corrupt = 0
        self.taken = 0
        """Verified bytes."""
        self.given_up = ""
        """Why this source is not asked any more; empty: it is."""
        self.waiting = False
        """Asked for the tree."""
        self._patience = patience
        self._failures = 0
        self._fault = ""
        self._rest_until = 0.0
        self._heard = 0.0
        self._dry_since: float | None = None

    @property
    def is_usable(self) -> bool:
        """Whether it may still be asked, now or later."""
        return not self.given_up

    @property
    def is_busy(self) -> bool:
        """Whether an answer is awaited."""
        return self.waiting or bool(self.asked)

    @property
    def verdict(self) -> str:
        """What went wrong with this source, for people; empty where nothing did."""
        bad = [leaf for leaf, times in self.spoiled.items() if times >= SPOILED_TWICE]
        faults = [f"gave leaf {leaf} corrupt {self.spoiled[leaf]} times" for leaf in bad]
        return "; ".join(part for part in (self.given_up, *faults[:3]) if part) or self._fault

    def is_ready(self, now: float) -> bool:
        """Tell whether it may be asked now."""
        return self.is_usable and now >= self._rest_until

    def is_healthy(self, now: float) -> bool:
        """Tell whether it is worth waiting for before the backup is asked."""
        dry = self._dry_since is not None and now >= self._dry_since + self._patience.dry
        return self.is_usable and not self._failures and not dry

    def may_give(self, leaf: int) -> bool:
        """Tell whether this leaf may be asked of it."""
        return self.is_usable and self.spoiled.get(leaf, 0) < SPOILED_TWICE

    def ask(self, leaves: dict[int, int], now: float) -> None:
        """Note leaves, with sizes, that it is being asked for."""
        if not self.is_busy:
            self._heard = now
        self.asked.update(leaves)
        self.asked_bytes += sum(leaves.values())

    def ask_tree(self, now: float) -> None:
        """Note that it is being asked for the tree."""
        if not self.is_busy:
            self._heard = now
        self.waiting = True

    def arrived(self, leaves: list[int]) -> int:
        """Strike arrived leaves from what it was asked for; returns their bytes, which are being stored now."""
        size = sum(self.asked.pop(leaf, 0) for leaf in leaves)
        self.asked_bytes -= size
        self.storing_bytes += size
        return size

    def spoke(self, now: float) -> None:
        """Note that something came, not yet whether it is good."""
        self._heard = now

    def heard(self, now: float) -> None:
        """Note progress: its memory of failures goes."""
        self._heard = now
        self._failures = 0
        self._fault = ""
        self._dry_since = None
        self.waiting = False

    def spoil(self, leaf: int) -> str:
        """Note a corrupt leaf; returns what its holder must hear: that one came so twice, or too many once."""
        self.corrupt += 1
        self.spoiled[leaf] = self.spoiled.get(leaf, 0) + 1
        if self.corrupt >= SPOILED_MOST:
            self.given_up = f"gave {self.corrupt} corrupt leaves"
        if self.spoiled[leaf] >= SPOILED_TWICE:
            return f"leaf {leaf} came corrupt {self.spoiled[leaf]} times"
        return f"{self.corrupt} leaves came corrupt" if self.given_up else ""

    def forget(self, leaves: list[int] | None = None) -> tuple[list[int], int]:
        """Do not await these leaves (None: any) any more; returns which were awaited, and their bytes."""
        dropped = list(self.asked) if leaves is None else [leaf for leaf in leaves if leaf in self.asked]
        size = sum(self.asked.pop(leaf) for leaf in dropped)
        self.asked_bytes -= size
        if leaves is None:
            self.waiting = False
        return dropped, size

    def missed(self, now: float, reason: str) -> None:
        """Note that it did not answer, or is away; rest, and give it up after too many."""
        self._failures += 1
        self._fault = reason
        self._rest_until = now + self._patience.backoff(self._failures)
        if self._failures >= self._patience.tries:
            self.given_up = f"{reason} ({self._failures} times)"

    def dried(self, now: float, reason: str) -> None:
        """Note that it has nothing new yet; give it up when that lasts."""
        if self._dry_since is None:
            self._dry_since = now
        self._heard = now
        self._fault = reason
        self.waiting = False
        self._rest_until = now + self._patience.retry_least
        if now >= self._dry_since + self._patience.stuck:
            self.given_up = f"{reason} for {self._patience.stuck:g} s"

    def deadline(self) -> float | None:
        """When its answer is overdue, or its rest ends; None: nothing is awaited."""
        if self.is_busy:
            return self._heard + self._patience.answer
        return None

    def rest_ends(self) -> float | None:
        """When it may be asked again; None: it does not rest."""
        return self._rest_until or None

    def wake(self, now: float) -> None:
        """End a rest whose time has passed."""
        if now >= self._rest_until:
            self._rest_until = 0.0

    def is_overdue(self, now: float) -> bool:
        """Tell whether it was asked and kept silent too long."""
        return self.is_busy and now >= self._heard + self._patience.answer
