"""Who lives, who lags and why; pure: the moments of reports and of progress, and now.

A host is *ok*, *suspect* or *lost* by the age of its last report. Who is waited for at a deadline is *dead* (no
heartbeat), *stuck* (heartbeat, no progress) or *slow* (progress); only the first two are worth replacing.
"""

from collections.abc import Collection
from enum import StrEnum
from typing import Final

import msgspec

from checkpoint_replicator.times import Times

__all__ = ["Life", "Pace", "Progress", "Verdict", "is_common_fault", "life", "moved", "pace"]

COMMON_WINDOW: Final = 10.0
"""Hosts that fell silent within so many seconds of each other fell silent together."""


class Life(StrEnum):
    """How a host lives."""

    OK = "ok"
    SUSPECT = "suspect"
    LOST = "lost"


class Pace(StrEnum):
    """How somebody who is waited for does."""

    OK = "ok"
    DEAD = "dead"
    STUCK = "stuck"
    SLOW = "slow"


class Verdict(msgspec.Struct, frozen=True):
    """A pace and its reason, for people."""

    pace: Pace
    reason: str


class Progress(msgspec.Struct, frozen=True):
    """How far somebody is, and since when.

    Attributes:
        have: bytes (or parts) done.
        size: bytes (or parts) in all; 0 when unknown.
        at: when `have` last changed, in monotonic seconds.
    """

    have: int
    size: int
    at: float


def life(silence: float, times: Times) -> Life:
    """Judge a host by the seconds since its last report."""
    if silence >= times.lost:
        return Life.LOST
    return Life.SUSPECT if silence >= times.suspect else Life.OK


def moved(before: Progress | None, have: int, size: int, now: float) -> Progress:
    """Take up a new reading; the moment changes only with the reading."""
    if before is not None and before.have == have and before.size == size:
        return before
    return Progress(have, size, now)


def pace(silence: float, progress: Progress | None, now: float, times: Times) -> Verdict:
    """Say what is the matter with somebody who is waited for.

    Args:
        silence: seconds since its last report.
        progress: its last reading; None before it began.
        now: monotonic seconds.
        times: the table of times.
    """
    if silence >= times.suspect:
        return Verdict(Pace.DEAD, f"dead: no report for {silence:.0f} s")
    if progress is None:
        return Verdict(Pace.STUCK, "stuck: has not begun")
    done = f"{progress.have} of {progress.size} bytes" if progress.size else f"{progress.have} bytes"
    still = now - progress.at
    if still >= times.stuck:
        return Verdict(Pace.STUCK, f"stuck: {done}, no progress for {still:.0f} s")
    return Verdict(Pace.SLOW, f"slow: {done}")


def is_common_fault(silences: Collection[float], times: Times) -> bool:
    """Tell whether silence looks like a fault of store or network and not of hosts.

    True when more than a third of the hosts, two at the least, are silent and fell silent within 10 s. Nothing is then
    deleted or copied anew.

    Args:
        silences: seconds since the last report, of every host.
        times: the table of times.
    """
    silent = sorted(silence for silence in silences if silence >= times.suspect)
    most = 0
    first = 0
    for last, silence in enumerate(silent):
        while silence - silent[first] > COMMON_WINDOW:
            first += 1
        most = max(most, last - first + 1)
    return most > 1 and most * 3 > len(silences)
