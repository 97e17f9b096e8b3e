"""What Redis holds, as far as we know, and the one write in flight; pure.

What is written is the difference between what should stand there and what does, so a write whose answer was lost is
simply done again.
"""

from checkpoint_coordinator.index import BY_PEOPLE, Hashes, changes, merged
from checkpoint_coordinator.words import Write
from checkpoint_replicator.fence import ZERO, Stamp
from checkpoint_replicator.records import Lease
from checkpoint_replicator.store import AddEvent, Change, Delete, Snapshot

__all__ = ["Ledger", "known"]

KEPT_DECISIONS = 8
"""So many earlier restore decisions stay for people."""
OURS = frozenset({"epoch", "keep", "orders", "steps", "backups", "lastbackup", "alive", "wishes", *BY_PEOPLE})
INDEX = "keys"
"""Written with every change."""
DECISION = "restore:"
FAMILIES = ("step:", "backup:", "node:", "inventory:")


def known(snapshot: Snapshot) -> Hashes:
    """Return what Redis holds; a key of another type as something that nobody wants, so that it is put right."""
    return {**snapshot.hashes, **{key: {"": text} for key, text in snapshot.spoilt.items() if key != INDEX}}


class Ledger:
    """The coordinator's copy of what it wrote.

    Attributes:
        known: what Redis holds, by key.
        written: the stamp of the last write that Redis took.
    """

    def __init__(self) -> None:
        self.known: Hashes = {}
        self.written: Stamp = ZERO
        self._flight: tuple[Write, Hashes] | None = None
        self._failed: Stamp = ZERO
        self._retry = float("-inf")

    @property
    def busy(self) -> bool:
        """Whether an answer is waited for."""
        return self._flight is not None

    def reset(self, known: Hashes, written: Stamp) -> None:
        """Begin with what a snapshot showed."""
        self.known = {key: dict(fields) for key, fields in known.items()}
        self.written = written
        self._flight = None
        self._failed = ZERO
        self._retry = float("-inf")

    def forget(self) -> None:
        """Nothing is known any more: Redis may hold anything or nothing."""
        self.reset({}, ZERO)

    def write(
        self, wanted: Hashes, events: list[dict[str, str]], lease: Lease, stamp: Stamp, now: float
    ) -> Write | None:
        """Return what must be written, or None when all stands there or a write is under way."""
        if self._flight is not None or now < self._retry:
            return None
        shown = self._shown(wanted)
        ours = {
            key: fields for key, fields in self.known.items() if key in wanted or _is_ours(key) or _past(key, shown)
        }
        listed: list[Change] = changes(wanted, ours)
        if not listed and not events and stamp <= self.written:
            return None
        entries = [AddEvent({"stamp": str(stamp), **event}) for event in events]
        write = Write(lease, stamp, (*entries, *listed), self.written)
        after = merged(self.known, listed)
        # The very objects that are wanted, where they say the same: the next comparison is quick.
        after.update({key: wanted[key] for key, fields in after.items() if key in wanted and wanted[key] == fields})
        self._flight = (write, after)
        return write

    def clear(self, lease: Lease, stamp: Stamp, now: float) -> Write | None:
        """Return the write that removes every key of the job but its lease and its fence; None while it must wait."""
        if self.resting(now):
            return None
        write = Write(lease, stamp, (*map(Delete, sorted(self.known)), Delete("events")), self.written)
        self._flight = (write, {})
        return write

    def compare(self, found: Hashes, fence: Stamp) -> tuple[str, ...]:
        """Take up what was read just now; names the keys of ours that are not as we wrote them.

        Where a write is under way, or Redis took one of another, this says nothing. A write of ours that failed at a
        spoilt key may have raised the fence all the same.
        """
        if self._flight is not None or not self.written <= fence <= max(self.written, self._failed):
            return ()
        ours = {key for key in {*self.known, *found} if _is_ours(key) or key.startswith(DECISION)}
        spoilt = tuple(sorted(key for key in ours if self.known.get(key, {}) != found.get(key, {})))
        if spoilt:
            self.known = {key: dict(fields) for key, fields in found.items()}
        return spoilt

    def raise_fence(self, lease: Lease, stamp: Stamp) -> Write:
        """Return the write that changes nothing but the fence."""
        write = Write(lease, stamp, ())
        self._flight = (write, self.known)
        return write

    def awaits(self, stamp: Stamp) -> bool:
        """Tell whether this is the write that is under way; answers to earlier ones mean nothing any more."""
        return self._flight is not None and self._flight[0].stamp == stamp

    def took(self, stamp: Stamp) -> int:
        """Redis took the write; returns how many events it held."""
        if self._flight is None or self._flight[0].stamp != stamp:
            return 0
        write, self.known = self._flight
        self._flight = None
        self.written = max(self.written, stamp)
        return sum(isinstance(change, AddEvent) for change in write.changes)

    def failed(self, now: float, pause: float) -> None:
        """Redis refused or did not answer; the difference is written anew after a pause."""
        if self._flight is not None:
            self._failed = self._flight[0].stamp
        self._flight = None
        self._retry = now + pause

    def resting(self, now: float) -> bool:
        """Whether a write is under way or must not be tried yet."""
        return self._flight is not None or now < self._retry

    def next_moment(self) -> float | None:
        """Return when to try again."""
        return self._retry if self._flight is None and self._retry > float("-inf") else None

    def decisions(self) -> list[tuple[int, dict[str, str]]]:
        """Return the restore decisions that Redis shows, oldest first."""
        found = [
            (int(key.removeprefix(DECISION)), fields)
            for key, fields in self.known.items()
            if key.startswith(DECISION) and key.removeprefix(DECISION).isdigit()
        ]
        return sorted(found, key=lambda pair: pair[0])

    def _shown(self, wanted: Hashes) -> frozenset[str]:
        """Return the earlier decisions that stay; that of an abandoned epoch must not be read as the standing one's."""
        earlier = {f"{DECISION}{number}" for number, _ in self.decisions()[-KEPT_DECISIONS:]}
        return frozenset(earlier - {f"{DECISION}{wanted.get('epoch', {}).get('number')}"})


def _is_ours(key: str) -> bool:
    return key in OURS or key.startswith(FAMILIES)


def _past(key: str, shown: frozenset[str]) -> bool:
    return key.startswith(DECISION) and key not in shown
