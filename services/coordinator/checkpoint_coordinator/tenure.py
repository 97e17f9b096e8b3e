"""The lease: when to ask for it, when to renew it, and whether it still permits to act; pure.

A coordinator whose last successful renewal *began* more than TTL - margin ago by its own monotonic clock does nothing:
another may have the lease already. Writes are refused at Redis besides, and messages at the nodes.

A stand-by that finds Redis empty leaves the lease for as long as one lives to who had it: that one remembers what
people ordered and what it decided, which is nowhere else.
"""

from enum import StrEnum

from checkpoint_coordinator.words import AcquireLease, Effect, LeaseAnswered, LeaseRenewed, ReleaseLease, RenewLease
from checkpoint_replicator.records import Lease
from checkpoint_replicator.store import Denial
from checkpoint_replicator.times import Times

__all__ = ["Change", "Tenure"]

POLL = 0.5
"""Seconds between two tries of a stand-by."""


class Change(StrEnum):
    """What an answer changed."""

    NOTHING = "nothing"
    TAKEN = "taken"
    DENIED = "denied"
    LOST = "lost"


class Tenure:
    """One coordinator's hold on one job's lease.

    Attributes:
        lease: ours; None while another has it or nobody.
    """

    def __init__(self, times: Times) -> None:
        self.lease: Lease | None = None
        self._times = times
        self._began = float("-inf")
        self._asked: float | None = None
        self._next = float("-inf")
        self._stopped = False
        self._stands_by = False
        """Another had the lease when we last asked and Redis was not empty."""
        self._empty_since: float | None = None

    @property
    def stopped(self) -> bool:
        """Whether the lease was given back for good."""
        return self._stopped

    def may_act(self, now: float) -> bool:
        """Tell whether the lease is ours beyond doubt."""
        return self.lease is not None and now - self._began < self._times.lease_ttl - self._times.lease_margin

    def wanted(self, now: float) -> list[Effect]:
        """Return what is to be asked of Redis now."""
        if self._stopped or self._asked is not None or now < self._next:
            return []
        self._asked = now
        if self.lease is None:
            since = self._empty_since
            patient = self._stands_by and (since is None or now < since + self._times.lease_ttl)
            return [AcquireLease(now, patient)]
        return [RenewLease(now, self.lease)]

    def answered(self, event: LeaseAnswered, now: float) -> Change:
        """Take up the answer to a request for the lease."""
        if self._asked != event.began or self._stopped:
            return Change.NOTHING
        self._asked = None
        if isinstance(event.lease, Denial):
            self._next = now + POLL
            held = event.lease is Denial.HELD
            self._stands_by = self._stands_by or held
            self._empty_since = None if held else self._empty_since or event.began
            return Change.DENIED
        self.lease, self._began = event.lease, event.began
        self._stands_by, self._empty_since = False, None
        self._next = event.began + self._times.lease_renewed
        return Change.TAKEN

    def awaits(self, began: float) -> bool:
        """Tell whether this is the request that is under way; answers to earlier ones mean nothing any more."""
        return self._asked == began

    def renewed(self, event: LeaseRenewed) -> Change:
        """Take up the answer to a renewal."""
        if self._asked != event.began:
            return Change.NOTHING
        self._asked = None
        if not event.renewal.held:
            self.drop(event.began)
            return Change.LOST
        self._began = event.began
        self._next = event.began + self._times.lease_renewed
        return Change.NOTHING

    def failed(self, now: float, pause: float) -> None:
        """Redis did not answer: ask again after a pause. The lease may still be ours, so it is not forgotten."""
        self._asked = None
        self._next = now + pause

    def drop(self, now: float) -> None:
        """The lease is not ours any more; ask for it anew at once."""
        self.lease = None
        self._asked = None
        self._began = float("-inf")
        self._next = now

    def give_back(self, now: float) -> list[Effect]:
        """Return the lease, to take it with a higher token."""
        effects: list[Effect] = [] if self.lease is None else [ReleaseLease(self.lease)]
        self.drop(now)
        return effects

    def stop(self, now: float) -> list[Effect]:
        """Return the lease for good."""
        effects = self.give_back(now)
        self._stopped = True
        return effects

    def next_moment(self, now: float) -> float | None:
        """Return when `wanted` or `may_act` says something else."""
        if self._stopped:
            return None
        if self._asked is None:
            return max(self._next, now)
        return None
