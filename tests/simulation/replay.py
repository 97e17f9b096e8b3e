"""`make replay LOG=file`: give a machine again what it was given in the field, and see that it decides the same."""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import msgspec

from checkpoint_coordinator import words
from checkpoint_coordinator.desk import Options
from checkpoint_coordinator.machine import CoordinatorMachine
from checkpoint_replicator import machine as ticking
from checkpoint_replicator.ids import Host, Incarnation, Job
from checkpoint_replicator.records import Lease, Peer
from checkpoint_replicator.times import Times
from checkpoint_transfer import effects as transfer_words
from checkpoint_transfer.leaves import LeafSet
from checkpoint_transfer.machine import Limits as TransferLimits
from checkpoint_transfer.machine import TransferMachine
from checkpoint_transfer.patience import Patience
from checkpoint_uploader import holder as holder_words
from checkpoint_uploader import machine as uploader_words
from checkpoint_watcher import events as watcher_words
from checkpoint_watcher.machine import WatcherMachine

__all__ = ["Replayed", "replay"]

MOST_SHOWN: Final = 300


@dataclass
class Draws:
    """Ids and chance as they were drawn; a machine that decides otherwise may draw more."""

    answers: list[Any] = field(default_factory=list)

    def new_id(self) -> str:
        return str(self._take(str, "new"))

    def chance(self) -> float:
        return float(self._take(float, 0.5))

    def _take(self, kind: type, otherwise: Any) -> Any:
        for place, answer in enumerate(self.answers):
            if isinstance(answer, kind):
                return self.answers.pop(place)
        return otherwise


@dataclass(frozen=True)
class Kind:
    """How a machine is made, and whose words its events are."""

    made_of: Mapping[str, Any]
    make: Callable[..., Any]
    words: Sequence[ModuleType]


KINDS: Final[Mapping[str, Kind]] = {
    "watcher": Kind(
        {"host": Host, "incarnation": Incarnation, "times": Times, "backup_root": str | None},
        lambda draws, host, incarnation, times, backup_root: WatcherMachine(
            host, incarnation, times, draws.new_id, backup_root
        ),
        (watcher_words,),
    ),
    "coordinator": Kind(
        {"job": Job, "me": Lease, "times": Times, "options": Options},
        lambda draws, job, me, times, options: CoordinatorMachine(
            job, me, times=times, options=options, new_id=draws.new_id, chance=draws.chance
        ),
        (words,),
    ),
    "transfer": Kind(
        {"me": Peer, "local": Peer, "limits": TransferLimits, "patience": Patience},
        lambda _draws, me, local, limits, patience: TransferMachine(me, local, limits, patience),
        (transfer_words,),
    ),
    "uploader": Kind(
        {"root": str | None, "limits": uploader_words.Limits},
        lambda _draws, root, limits: uploader_words.Uploader(root, limits),
        (uploader_words,),
    ),
    "holder": Kind(
        {"bounds": holder_words.Bounds},
        lambda _draws, bounds: holder_words.Holder(bounds),
        (holder_words,),
    ),
}


class Line(msgspec.Struct):
    """One line of a log."""

    log: int = 0
    machine: str | None = None
    of: dict[str, msgspec.Raw] = {}
    at: float = 0.0
    event: str | None = None
    is_: msgspec.Raw = msgspec.field(name="is", default=msgspec.Raw(b"{}"))
    draw: str | float | None = None
    did: list[str] | None = None
    full: bool = False


@dataclass(frozen=True)
class Replayed:
    """One event, decided again."""

    machine: str
    at: float
    event: object
    effects: tuple[object, ...]
    did: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether the same was decided."""
        return tuple(type(effect).__name__ for effect in self.effects) == self.did


def replay(data: bytes) -> Iterator[Replayed]:
    """Decide again, event by event.

    Raises:
        ValueError: a line that is none of a log; names its number.
    """
    machines: dict[int, tuple[str, Kind, Any, Draws]] = {}
    pending: tuple[int, float, object] | None = None
    for number, text in enumerate(data.splitlines(), 1):
        try:
            line = msgspec.json.decode(text, type=Line)
            if line.machine is not None:
                kind, draws = KINDS[line.machine], Draws()
                parts = {name: _read(line.of[name], type_) for name, type_ in kind.made_of.items()}
                machines[line.log] = (f"{line.machine} {line.log}", kind, kind.make(draws, **parts), draws)
            elif line.event is not None:
                machines[line.log][3].answers.clear()
                pending = (line.log, line.at, _event(machines[line.log][1], line.event, line.is_))
            elif line.draw is not None and pending is not None:
                machines[pending[0]][3].answers.append(line.draw)
            elif line.did is not None and pending is not None:
                log, at, event = pending
                name, _, machine, _ = machines[log]
                yield Replayed(name, at, event, tuple(machine.handle(event, at)), tuple(line.did))
                pending = None
        except (msgspec.MsgspecError, KeyError, StopIteration) as error:
            raise ValueError(f"line {number}: expected one of an input log, found {text[:80]!r} ({error})") from error


def _event(kind: Kind, name: str, text: msgspec.Raw) -> object:
    place = next(module for module in (*kind.words, ticking) if hasattr(module, name))
    return _read(text, getattr(place, name))


def _read(text: msgspec.Raw, kind: Any) -> Any:
    return msgspec.json.decode(text, type=kind, dec_hook=_leaves)


def _leaves(kind: type, value: Any) -> object:
    """Read what JSON has no word for."""
    if kind is LeafSet:
        return LeafSet(msgspec.convert(value, bytes))
    raise NotImplementedError(kind.__name__)


def _tell(one: Replayed, *, quiet: bool) -> None:
    if not one.same or not quiet:
        print(f"{one.at:12.3f} {one.machine:14} < {repr(one.event)[:MOST_SHOWN]}")
        for effect in one.effects:
            print(f"{'':28} > {repr(effect)[:MOST_SHOWN]}")
    if not one.same:
        print(f"{'':28} ! decided then: {', '.join(one.did) or 'nothing'}")


def main(arguments: list[str] | None = None) -> int:
    """Tell what was decided; 1 where it is not what was decided in the field."""
    parser = argparse.ArgumentParser(prog="replay", description=__doc__)
    parser.add_argument("log", type=Path, help="the file that a service's input-log named")
    parser.add_argument("--quiet", action="store_true", help="tell only what differs")
    options = parser.parse_args(arguments)
    events = different = 0
    try:
        for one in replay(options.log.read_bytes()):
            events += 1
            different += not one.same
            _tell(one, quiet=options.quiet)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(f"{events} events, {different} decided otherwise")
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
