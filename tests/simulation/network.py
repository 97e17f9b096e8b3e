"""Messages between processes: lost, late, repeated, in another order; and Redis behind the same kind of network."""

import copy
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from checkpoint_replicator.ids import Host
from simulation.process import Process
from support.memory_store import StoreModel

if TYPE_CHECKING:
    from simulation.world import World

__all__ = ["REDIS", "Cut", "Lane", "Network", "Path", "Redis", "Request", "Then"]

Then = Callable[[], None]
"""What the asking process does with an answer."""
Request = Callable[[], Then]
"""Done at Redis, which answers."""
REDIS: Final = Host("redis")
PARTS: Final = ("_strings", "_hashes", "_scores", "_sets", "_streams", "_expires")


class Path(StrEnum):
    """What a message travels on; each may break alone."""

    LOCAL = "local"
    REPORTS = "reports"
    BEACONS = "beacons"
    BYTES = "bytes"
    REDIS = "redis"


@dataclass(frozen=True)
class Cut:
    """What does not get through: on one path or all, from some hosts or all, to some hosts or all."""

    path: Path | None = None
    senders: frozenset[Host] | None = None
    receivers: frozenset[Host] | None = None

    def stops(self, path: Path, sender: Host, receiver: Host) -> bool:
        """Tell whether it stops a message."""
        return (
            self.path in {None, path}
            and (self.senders is None or sender in self.senders)
            and (self.receivers is None or receiver in self.receivers)
        )


class Network:
    """What is between processes.

    Attributes:
        loss, repeats, late: chance of each, for one message.
        garbled: chance that a Leaves message has a flipped bit.
        cuts: what is broken now.
    """

    def __init__(self, world: "World") -> None:
        self.world = world
        self.loss = self.repeats = self.late = self.garbled = 0.0
        self.cuts: list[Cut] = []

    def calm(self) -> None:
        """Nothing is lost any more."""
        self.loss = self.repeats = self.late = self.garbled = 0.0
        self.cuts.clear()

    def reaches(self, path: Path, sender: Host, receiver: Host) -> bool:
        """Tell whether a path between two hosts is whole; what stays on one host always gets through."""
        return sender == receiver or not any(cut.stops(path, sender, receiver) for cut in self.cuts)

    def send(self, path: Path, sender: Process, receiver: Process | None, deliver: Callable[[], None]) -> None:
        """Carry a message to this life of the receiver, perhaps."""
        chance = self.world.chance
        if receiver is None or not receiver.running:
            return
        if self.cuts and not self.reaches(path, sender.host, receiver.host):
            self.world.hits[f"path cut: {path}"] += 1
            return
        if chance.random() < self.loss:
            self.world.hits["message lost"] += 1
            return
        for _ in range(2 if chance.random() < self.repeats else 1):
            delay = chance.uniform(0.001, 0.02)
            if chance.random() < self.late:
                delay += chance.expovariate(0.7)
            receiver.soon(delay, deliver)


class Redis:
    """The model of Redis, which may be away, forget, or come back with what it held a while ago."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.model = StoreModel(lambda: world.now + 1_700_000_000 + self.shift)
        self.shift = 0.0
        """How far its clock is off."""
        self.down = False
        self.read_only = ""
        """Why writes are refused; empty while they are not."""
        self.doubt = 0.0
        """Chance that a call fails, done or not."""
        self._saved: dict[str, object] | None = None

    def save(self) -> None:
        """Write what there is to its disk."""
        self._saved = copy.deepcopy({part: getattr(self.model, part) for part in PARTS})

    def go_back(self) -> None:
        """Restart with what was written last."""
        for part, value in copy.deepcopy(self._saved or {part: {} for part in PARTS}).items():
            setattr(self.model, part, value)

    def jump(self, seconds: float) -> None:
        """Go on with a clock that is off: what has a time to live keeps what it has left."""
        self.shift += seconds
        for key in self.model._expires:
            self.model._expires[key] += seconds

    def ask(self, process: Process, call: Request, failed: Callable[[str], None], *, writes: bool = True) -> None:
        """Have a request travel there, be done, and its answer come back to this life of the process."""
        chance = self.world.chance

        def arrive() -> None:
            slow = chance.uniform(0.2, 1.5)
            if self.down or not self.world.network.reaches(Path.REDIS, process.host, REDIS):
                process.soon(slow, lambda: failed("Redis is away"))
                return
            if writes and self.read_only:
                self.world.hits["write to a read-only Redis"] += 1
                process.soon(chance.uniform(0.0005, 0.005), lambda: failed(self.read_only))
                return
            doubt = chance.random() < self.doubt
            if doubt and chance.random() < 0.5:  # it never came there
                process.soon(slow, lambda: failed("no answer"))
                return
            answer = call()
            doubt = doubt or not self.world.network.reaches(Path.REDIS, REDIS, process.host)
            if doubt:
                self.world.hits["answer of Redis lost"] += 1
                process.soon(slow, lambda: failed("no answer"))
            else:
                process.soon(chance.uniform(0.0005, 0.005), answer)

        process.soon(chance.uniform(0.0005, 0.005), arrive)


class Lane:
    """Requests of a process to Redis, one after another; an answer or a failure lets the next begin."""

    def __init__(self, process: Process, redis: Redis) -> None:
        self._process = process
        self._redis = redis
        self._queue: deque[tuple[Request, Callable[[str], None], bool]] = deque()
        self._busy = False

    def put(self, call: Request, failed: Callable[[str], None], *, writes: bool = True) -> None:
        """Ask, when those before are answered."""
        self._queue.append((call, failed, writes))
        self._next()

    def _next(self) -> None:
        if self._busy or not self._queue:
            return
        self._busy = True
        call, failed, writes = self._queue.popleft()

        def over(then: Then) -> None:
            self._busy = False
            then()
            self._next()

        def there() -> Then:
            answer = call()
            return lambda: over(answer)

        self._redis.ask(self._process, there, lambda reason: over(lambda: failed(reason)), writes=writes)
