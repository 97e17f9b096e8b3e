"""What a machine was told, in a file, so that a fault in the field can be decided again at a desk.

A line of JSON each: `machine` with what it was made of, `event` with the moment, `draw` for each id or chance that it
took while it decided, and `did` with the names of its effects. Machines are pure, so these lines are all they knew.
"""

import itertools
from collections.abc import Callable, Container, Sequence, Sized
from pathlib import Path
from typing import IO, Any, Final, Generic, TypeVar

import msgspec

from checkpoint_replicator.machine import Machine

__all__ = ["MOST_BYTES", "InputLog", "Recorded"]

Event = TypeVar("Event")
Effect = TypeVar("Effect")
Drawn = TypeVar("Drawn", str, float)

MOST_BYTES: Final = 256 << 20
"""At this size the log ends: what decides a machine's state is its beginning."""
MOST_FRAME: Final = 4096
"""Body frames above this many bytes stay empty in the log: machines pass them on and never look into them."""


class InputLog:
    """The log of one life of a process; without a path nothing is written.

    Args:
        path: the file; what an earlier life wrote goes to `<path>.1`.
        most: bytes at which it ends.
    """

    def __init__(self, path: Path | None, most: int = MOST_BYTES) -> None:
        self._file: IO[bytes] | None = None
        self._left = most
        self._numbers = itertools.count(1)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                path.replace(path.with_name(path.name + ".1"))
            self._file = path.open("xb", buffering=0)

    @property
    def wanted(self) -> bool:
        """Whether anything is still written."""
        return self._file is not None

    def of(self, kind: str, machine: Machine[Event, Effect], **made_of: Any) -> Machine[Event, Effect]:
        """Return the machine, recorded; the machine itself where no log is wanted.

        Args:
            kind: `watcher`, `coordinator`, `transfer`, `uploader` or `holder`.
            machine: the one that decides.
            made_of: what it was made of, but its sources of ids and chance.
        """
        if self._file is None:
            return machine
        number = next(self._numbers)
        self.write({"log": number, "machine": kind, "of": made_of})
        return Recorded(machine, self, number)

    def drawing(self, draw: Callable[[], Drawn]) -> Callable[[], Drawn]:
        """Return a source of ids or chance whose answers are written."""
        if self._file is None:
            return draw

        def drawn() -> Drawn:
            answer = draw()
            self.write({"draw": answer})
            return answer

        return drawn

    def write(self, line: dict[str, Any]) -> None:
        """Write a line, or end the log where it would grow too long; a full disk ends it too."""
        if self._file is None:
            return
        try:
            data = msgspec.json.encode(line, enc_hook=_plain) + b"\n"
        except UnicodeEncodeError:  # of a name that is no UTF-8: what comes after could not be decided again
            self.close()
            return
        self._left -= len(data)
        try:
            if self._left >= 0:
                self._file.write(data)
                return
            self._file.write(b'{"full":true}\n')
        except OSError:
            pass
        self.close()

    def close(self) -> None:
        """Write nothing any more."""
        if self._file is not None:
            self._file.close()
            self._file = None


class Recorded(Generic[Event, Effect]):
    """A machine whose inputs are written before it decides, and the names of its effects after."""

    def __init__(self, machine: Machine[Event, Effect], log: InputLog, number: int) -> None:
        self._machine = machine
        self._log = log
        self._number = number

    def handle(self, event: Event, now: float) -> Sequence[Effect]:
        """Decide."""
        line = {"log": self._number, "at": now, "event": type(event).__name__, "is": _short(event)}
        self._log.write(line)
        effects = self._machine.handle(event, now)
        self._log.write({"log": self._number, "did": [type(effect).__name__ for effect in effects]})
        return effects

    def next_deadline(self) -> float | None:
        """When the machine wants to be asked."""
        return self._machine.next_deadline()


def _short(event: Any) -> Any:
    """Leave out long body frames, of the event or of the one that it carries."""
    body = getattr(event, "body", None)
    if body:
        frames = tuple(bytes(frame) if len(frame) <= MOST_FRAME else b"" for frame in body)
        return msgspec.structs.replace(event, body=frames)
    inner = getattr(event, "event", None)
    if isinstance(inner, msgspec.Struct):
        return msgspec.structs.replace(event, event=_short(inner))
    return event


def _plain(value: Any) -> Any:
    """Write what JSON has no word for: a sequence that is made as it is read, and a set of leaves by its marks."""
    if isinstance(value, Sequence):
        return list(value)
    if isinstance(value, Sized) and isinstance(value, Container):
        return bytes(number in value for number in range(len(value)))
    raise NotImplementedError(f"expected something that JSON can hold, found {type(value).__name__}")
