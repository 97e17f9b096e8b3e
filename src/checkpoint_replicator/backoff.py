"""The next delay before trying again; pure: chance is an argument."""

from zlib import crc32

__all__ = ["delay", "spread"]

_DOUBLINGS = 32
"""More than these change nothing and would only make huge numbers."""


def delay(attempt: int, least: float, most: float, chance: float) -> float:
    """Return seconds to wait before the next try.

    It doubles with each attempt from `least` to `most`; chance spreads it over its upper half, so that many who failed
    together do not come back together.

    Args:
        attempt: how many tries failed before this one, 0 for the first failure.
        least: longest delay after the first failure.
        most: longest delay ever.
        chance: from 0 to 1.
    """
    full = min(most, least * 2.0 ** min(max(attempt, 0), _DOUBLINGS))
    return full * (0.5 + chance / 2)


def spread(name: str, attempt: int) -> float:
    """Return a number from 0 to 1 that differs between processes and tries, and is the same when a log is replayed."""
    return crc32(f"{name} {attempt}".encode()) / 0xFFFFFFFF
