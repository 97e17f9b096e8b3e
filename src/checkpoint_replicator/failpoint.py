"""Failpoints: numbered places at which a test ends this process as `kill -9` would.

Every effect of every machine has a place `before` it is begun. One that is performed at once has a place `given` behind
it. One that changes names or bytes outside has a place before each change but the first, numbered from 2, and a place
`done`: all is changed, and the machine was not told. The `failpoints.py` of a service lists them.

Nothing is armed in production: a place is one comparison with None. The variable `CKPT_FAILPOINTS` names a directory in
which a test writes the file `armed` with one line, `<service> <point>`. The process that comes to that point first
renames the file to `reached`, and ends. So one point ends one process, once. Whoever comes first to what the file
`halting` names renames it to `halted` and stands still until somebody sends SIGCONT: a moment lasts as long as a test
wants. The file `census`, where there is one, takes a line for each place that is passed.
"""

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Final

__all__ = ["VARIABLE", "arm", "change", "disarm", "doing", "giving", "names", "numbered"]

VARIABLE: Final = "CKPT_FAILPOINTS"
"""The directory of the test; it must not begin as our configuration's variables do."""
_ARMED: "_Failpoints | None" = None


class _Failpoints:
    def __init__(self, folder: Path, service: str) -> None:
        self._folder = folder
        self._census = folder / "census"
        self._service = service

    def reach(self, place: str) -> None:
        """Halt or end the process if this is the place."""
        point = f"{self._service} {place}"
        if self._census.exists():
            with self._census.open("a") as census:
                census.write(f"{point}\n")
        if self._take("halting", "halted", point):
            # To this thread: sent to the process, it would reach another one first, and this one would go on meanwhile.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        if self._take("armed", "reached", point):
            os.kill(os.getpid(), signal.SIGKILL)

    def _take(self, wish: str, granted: str, point: str) -> bool:
        try:
            if (self._folder / wish).read_text() != point:
                return False
            (self._folder / wish).rename(self._folder / granted)
        except FileNotFoundError:  # nothing is wished now, or another process was first
            return False
        return True


class _Doing:
    """What is being performed, and how many changes it made; shared by all threads that perform it together."""

    def __init__(self, effects: tuple[str, ...]) -> None:
        self.effects = effects
        self.changes = 0


_DOING: ContextVar[_Doing | None] = ContextVar("doing", default=None)


def arm(environ: Mapping[str, str], service: str) -> None:
    """Watch for failpoints if the environment names a directory for them."""
    global _ARMED  # noqa: PLW0603 - one process, one switch; every place asks it
    if folder := environ.get(VARIABLE):
        _ARMED = _Failpoints(Path(folder), service)


def disarm() -> None:
    """Pass all places from now on."""
    global _ARMED  # noqa: PLW0603 - see `arm`
    _ARMED = None


def names(effect: object) -> tuple[str, ...]:
    """Name an effect by its class and, where it says so in `kinds`, by what it is about: `Begin upload`."""
    name = type(effect).__name__
    kinds: tuple[str, ...] | None = getattr(effect, "kinds", None)
    return (name,) if kinds is None else tuple(f"{name} {kind}" for kind in kinds)


@contextmanager
def giving(effect: object) -> Iterator[None]:
    """Surround the giving of an effect to whoever performs it."""
    if _ARMED is None:
        yield
        return
    effects = names(effect)
    _reach(effects, "before")
    yield
    _reach(effects, "given")


@contextmanager
def doing(effect: object) -> Iterator[None]:
    """Surround the performing of an effect that changes something outside, in whatever thread or task."""
    if _ARMED is None:
        yield
        return
    if isinstance(effect, str):  # work that no machine gave
        effects: tuple[str, ...] = (effect,)
        _reach(effects, "before")
    else:
        effects = names(effect)
    token = _DOING.set(_Doing(effects))
    try:
        yield
    finally:
        _DOING.reset(token)
    _reach(effects, "done")


def change() -> None:
    """Say that something outside is about to change: a name, bytes, an object."""
    if _ARMED is None or (now := _DOING.get()) is None:
        return
    now.changes += 1
    if now.changes > 1:  # before the first nothing differs from `before`
        _reach(now.effects, str(now.changes))


def numbered(changes: Mapping[str, int | None]) -> tuple[str, ...]:
    """List the points of a service, in a stable order: their number is their place in it.

    Args:
        changes: effect to the most changes that performing it makes; None: it is performed at once and changes nothing.
    """
    points: list[str] = []
    for effect, most in changes.items():
        places = ["before", "given"] if most is None else ["before", *map(str, range(2, most + 1)), "done"]
        points += (f"{effect} {place}" for place in places)
    return tuple(points)


def _reach(effects: tuple[str, ...], place: str) -> None:
    if _ARMED is not None:
        for effect in effects:
            _ARMED.reach(f"{effect} {place}")
