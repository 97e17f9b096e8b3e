"""The one door to PyYAML: `replicator.yaml` to a checked SessionSpec.

The file comes from a trainer that we do not trust to be careful, so the text is read event by event with `BaseLoader`
(every scalar is a string) and never composed: no tag, anchor or alias passes, and size and depth are bounded. `$VAR`
is not expanded. Unknown keys are ignored with a note.
"""

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final, TypeVar

import msgspec
import yaml
from yaml import events

from checkpoint_replicator.ids import Job, Rank, job_fault
from checkpoint_replicator.quote import quote
from checkpoint_replicator.session import SessionSpec
from checkpoint_replicator.shape import FRAMEWORKS, Shape

__all__ = ["MAX_SIZE", "Accepted", "Rejected", "read_session"]

MAX_SIZE: Final = 64 * 1024
"""Largest `replicator.yaml` in bytes; `peer-ranks` of thousands of nodes fit."""
MAX_DEPTH: Final = 8
MAX_NODES: Final = 65536
MAX_WORKERS: Final = 1024
MAX_MINUTES: Final = 525_600.0
"""A year; a longer interval is a mistake in the unit."""
MAX_STEPS: Final = 10**12
SHOWN: Final = 60
"""Longest piece of the file that an error text repeats."""

IGNORED: Final = frozenset({"master", "master-port"})
"""Known keys that we do not need: services find each other through Redis."""

Value = str | list[str] | None
"""A scalar, a list of scalars, or None for anything deeper."""
Number = TypeVar("Number", int, float)

_INTEGER: Final = re.compile(r"[0-9]{1,15}")
_DECIMAL: Final = re.compile(r"[0-9]{1,15}(\.[0-9]{1,15})?")


class Accepted(msgspec.Struct, frozen=True):
    """The yaml is good; the notes say what was ignored or adjusted."""

    spec: SessionSpec
    notes: tuple[str, ...] = ()


class Rejected(msgspec.Struct, frozen=True):
    """The yaml is bad; the reason names key, expected and found, for `replicator.failed`."""

    reason: str


class _FaultError(Exception):
    """Carries the reason of a Rejected out of the parser."""


@lru_cache(maxsize=16)
def read_session(text: bytes) -> Accepted | Rejected:
    """Parse and check the text of a `replicator.yaml`; never raises.

    The last answers are remembered: a trainer that comes again writes the same text, and one that is not finished yet
    is looked at with every scan.
    """
    try:
        return _Reader(_top_level(text)).session()
    except _FaultError as fault:
        return Rejected(f"replicator.yaml: {fault}")
    except yaml.YAMLError as error:
        return Rejected(f"replicator.yaml: is not YAML: {_where(error)}")
    except (ValueError, OverflowError, RecursionError) as error:  # the parser turns escapes into characters unlooked at
        return Rejected(f"replicator.yaml: is not YAML: {quote(str(error))}")


def _where(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{quote(error.problem or error.context or '')} at line {error.problem_mark.line + 1}"
    return quote(" ".join(str(error).split()), 200) or "something else"


def _top_level(text: bytes) -> dict[str, Value]:
    """Read the file's one mapping, without building anything below its values."""
    if len(text) > MAX_SIZE:
        raise _FaultError(f"expected at most {MAX_SIZE} bytes, found {len(text)}")
    stream = _checked(yaml.parse(text, Loader=yaml.BaseLoader))
    next(stream)  # StreamStart
    if isinstance(next(stream), events.StreamEndEvent):
        raise _FaultError("expected a mapping with job-name and more, found an empty file")
    first = next(stream)
    if not isinstance(first, events.MappingStartEvent):
        found = "a list" if isinstance(first, events.SequenceStartEvent) else f"the text {_shown(_scalar(first))}"
        raise _FaultError(f"expected a mapping with job-name and more, found {found}")
    values: dict[str, Value] = {}
    while not isinstance(event := next(stream), events.MappingEndEvent):
        if not isinstance(event, events.ScalarEvent):
            raise _FaultError(f"line {_line(event)}: expected a key, found a list or mapping")
        key = _scalar(event)
        if key in values:
            raise _FaultError(f"expected each key once, found {_shown(key)} twice")
        values[key] = _value(stream)
    next(stream)  # DocumentEnd
    if not isinstance(next(stream), events.StreamEndEvent):
        raise _FaultError("expected one document, found more")
    return values


def _checked(stream: Iterator[events.Event]) -> Iterator[events.Event]:
    """Let events pass that need no trust."""
    depth = 0
    for event in stream:
        line = _line(event)
        if isinstance(event, events.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise _FaultError(f"line {line}: expected plain values, found an anchor or alias")
        if getattr(event, "tag", None) is not None:
            raise _FaultError(f"line {line}: expected plain values, found the tag {_shown(str(getattr(event, 'tag')))}")  # noqa: B009
        if isinstance(event, events.CollectionStartEvent):
            depth += 1
        elif isinstance(event, events.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise _FaultError(f"line {line}: expected at most {MAX_DEPTH} levels, found more")
        yield event


def _line(event: events.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark is not None else 0


def _scalar(event: events.Event) -> str:
    return str(getattr(event, "value", ""))


def _value(stream: Iterator[events.Event]) -> Value:
    event = next(stream)
    if isinstance(event, events.ScalarEvent):
        return _scalar(event)
    flat = isinstance(event, events.SequenceStartEvent)
    items: list[str] = []
    depth = 1
    while depth:
        event = next(stream)
        if isinstance(event, events.CollectionStartEvent):
            depth += 1
            flat = False
        elif isinstance(event, events.CollectionEndEvent):
            depth -= 1
        else:
            items.append(_scalar(event))
    return items if flat else None


def _shown(value: Value) -> str:
    if value is None:
        return "a nested value"
    text = value if isinstance(value, str) else "[" + ", ".join(value) + "]"
    return repr(text if len(text) <= SHOWN else text[:SHOWN] + "...")


class _Reader:
    """Checks one key after another, each by its own rule."""

    def __init__(self, values: dict[str, Value]) -> None:
        self.values = values
        self.notes: list[str] = []
        self.read: set[str] = set()

    def session(self) -> Accepted:
        job = self.job()
        framework = self.framework()
        nodes = self.integer("nodes", 1, MAX_NODES)
        rank = Rank(self.integer("node-rank", 0, nodes - 1))
        spec = SessionSpec(
            job=job,
            rank=rank,
            shape=Shape(nodes, self.workers(framework), self.parallelism(nodes), framework),
            peer_ranks=self.peer_ranks(rank, nodes),
            peers_per_node=self.peers_per_node(nodes),
            backup_interval_minutes=self.optional("backup-interval-minutes", self.minutes),
            backup_interval_steps=self.optional("backup-interval-steps", lambda key: self.integer(key, 1, MAX_STEPS)),
        )
        unknown = sorted(self.values.keys() - self.read - IGNORED)
        self.notes += [f"ignored the unknown key {_shown(key)}" for key in unknown]
        return Accepted(spec, tuple(self.notes))

    def job(self) -> Job:
        name = self.text("job-name", "a name")
        if (fault := job_fault(name)) is not None:
            raise _FaultError(
                f"job-name {fault}" if len(name) <= MAX_SHOWN_JOB else f"job-name {fault[:MAX_SHOWN_JOB]}..."
            )
        return Job(name)

    def framework(self) -> str:
        expected = f"one of {', '.join(FRAMEWORKS)}"
        name = self.text("framework", expected)
        if name not in FRAMEWORKS:
            raise _FaultError(f"framework: expected {expected}, found {_shown(name)}")
        return name

    def workers(self, framework: str) -> int:
        workers = self.optional("workers-per-node", lambda key: self.integer(key, 1, MAX_WORKERS)) or 1
        if workers > 1 and framework in ONE_SHARD_A_NODE:
            self.notes.append(f"workers-per-node {workers} counts as 1: {framework} saves one directory a node")
            return 1
        return workers

    def parallelism(self, nodes: int) -> int:
        key = "assume-data-parallelism"
        d = self.optional(key, lambda key: self.integer(key, 1, MAX_NODES * MAX_WORKERS)) or 1
        if nodes % d == 0:
            return d
        if d % nodes == 0:
            self.notes.append(f"{key} {d} counts as {nodes}: every node holds the whole model")
            return nodes
        raise _FaultError(f"{key}: expected a divisor or multiple of nodes ({nodes}), found {d}")

    def peer_ranks(self, rank: Rank, nodes: int) -> tuple[Rank, ...] | None:
        key = "peer-ranks"
        value = self.values.get(key, None)
        if key not in self.values:
            return None
        self.read.add(key)
        expected = f"a list of ranks from 0 to {nodes - 1}"
        if not isinstance(value, list):
            raise _FaultError(f"{key}: expected {expected}, found {_shown(value)}")
        peers: list[Rank] = []
        for item in value:
            if _INTEGER.fullmatch(item) is None or int(item) >= nodes:
                raise _FaultError(f"{key}: expected {expected}, found {_shown(item)} in it")
            peer = Rank(int(item))
            if peer == rank or peer in peers:
                self.notes.append(f"{key}: struck {peer}, {'the own rank' if peer == rank else 'a duplicate'}")
            else:
                peers.append(peer)
        return tuple(peers)

    def peers_per_node(self, nodes: int) -> int | None:
        key = "peers-per-node"
        peers = self.optional(key, lambda key: self.integer(key, 0, MAX_NODES))
        if peers is not None and peers >= nodes:
            self.notes.append(f"{key} {peers} counts as {nodes - 1}: a job of {nodes} nodes has no more peers")
            return nodes - 1
        return peers

    def minutes(self, key: str) -> float:
        text = self.text(key, "minutes above 0")
        if _DECIMAL.fullmatch(text) is None or not 0 < float(text) <= MAX_MINUTES:
            raise _FaultError(f"{key}: expected minutes above 0 and at most {MAX_MINUTES:.0f}, found {_shown(text)}")
        return float(text)

    def optional(self, key: str, rule: Callable[[str], Number]) -> Number | None:
        return rule(key) if key in self.values else None

    def integer(self, key: str, low: int, high: int) -> int:
        expected = f"a whole number from {low} to {high}"
        text = self.text(key, expected)
        if _INTEGER.fullmatch(text) is None or not low <= int(text) <= high:
            raise _FaultError(f"{key}: expected {expected}, found {_shown(text)}")
        return int(text)

    def text(self, key: str, expected: str) -> str:
        self.read.add(key)
        if key not in self.values:
            raise _FaultError(f"{key}: expected {expected}, found no such key")
        value = self.values[key]
        if not isinstance(value, str) or not value:
            raise _FaultError(f"{key}: expected {expected}, found {'nothing' if value == '' else _shown(value)}")
        return value


MAX_SHOWN_JOB: Final = 200
ONE_SHARD_A_NODE: Final = frozenset({"pytorch.distributed"})
"""Frameworks whose save is one directory a node, whatever the number of processes."""
