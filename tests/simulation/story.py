"""A failing seed told short: with the fewest troubles that still break the law, and only what touches one thing."""

import re
import time
from collections.abc import Callable, Collection, Iterable
from typing import Final

from simulation.laws import LawBrokenError
from simulation.run import Played, play

__all__ = ["fewest", "keys_of", "retell", "story"]

SECONDS: Final = 20.0
"""So long is looked for a shorter way to the same breach."""
LINES: Final = 80
"""So many lines a story has at most, the last ones."""
_SAVE: Final = re.compile(r"Save\(epoch=(\d+), step=(\d+)\)")
_KEY: Final = re.compile(r"\b(?:h\d+|\d+\.\d+)\b(?! s)")
_MEANS: Final = " < "
"""Stands in lines that tell of an event, not of what somebody noted."""


def story(lines: Iterable[str], *keys: str) -> list[str]:
    """Return what touches one of these saves (`1.3`) or hosts (`h1`), and all that went wrong."""
    wanted = re.compile(r"\b(?:" + "|".join(map(re.escape, keys)) + r")\b") if keys else None
    told = []
    for line in lines:
        plain = _SAVE.sub(r"\1.\2", line)
        trouble = plain[10:].startswith(("faults", "network", "redis", "job"))
        if trouble or wanted is None or wanted.search(plain[10:]):
            told.append(plain)
    return told


def keys_of(error: BaseException) -> tuple[str, ...]:
    """Return the saves and hosts that an error names."""
    text = str(error).partition(" s: ")[2] or str(error)
    return tuple(dict.fromkeys(_KEY.findall(text)))


def fewest(seed: int, failed: Played, clock: Callable[[], float] = time.process_time) -> Played:
    """Leave out troubles, first many, then one by one, as long as the same law breaks."""
    end = clock() + SECONDS
    best = failed
    size = max(1, len(best.troubles) // 2)
    while size and clock() < end:
        at = 0
        while at < len(best.troubles) and clock() < end:
            tried = play(seed, without=best.without | set(best.troubles[at : at + size]))
            if law_of(tried.error) == law_of(failed.error):
                best = tried
            else:
                at += size
        size //= 2
    return best


def law_of(error: BaseException | None) -> object:
    """Return what a breach is recognized by."""
    if isinstance(error, LawBrokenError):
        return error.law
    return type(error)


def retell(seed: int, without: Collection[str] = ()) -> str:
    """Play a failing seed, make it short, and tell it."""
    failed = play(seed, without=frozenset(without))
    if failed.error is None:
        return f"seed {seed}: all laws hold"
    best = fewest(seed, failed)
    lines: list[str] = []
    again = play(seed, lines.append, without=best.without)
    error = again.error or failed.error
    short = [line for line in story(lines, *keys_of(error)) if _MEANS not in line[:30]]
    spared = ",".join(sorted(best.without))
    head = [
        f"{error}",
        f"troubles: {', '.join(best.troubles) or 'none'} ({len(best.without)} were left out)",
        f"again: make sim SEED={seed}" + (f" WITHOUT={spared}" if spared else ""),
    ]
    return "\n".join([*head, *short[-LINES:]])
