"""Messages between processes: lost, late, repeated, in another order; and Redis behind the same kind of network."""

import copy
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from checkpoint_replicator.ids import Host
from simulation.process import Process
from support.memory_store import StoreModel

if TYPE_CHECKING:
    from simulation.world import World

__all__ = ["Lane", "Network", "Redis"]

Request = Callable[[], Callable[[], None]]
"""Done at Redis; returns what the asking process does with the answer."""
PARTS: Final = ("_strings", "_hashes", "_scores", "_sets", "_streams", "_expires")


class Network:
    """What is between processes.

    Attributes:
        loss, repeats, late: chance of each, for one message.
        garbled: chance that a Leaves message has a flipped bit.
        cut_off: hosts that nobody on another host reaches.
    """

    def __init__(self, world: "World") -> None:
        self.world = world
        self.loss = self.repeats = self.late = self.garbled = 0.0
        self.cut_off: set[Host] = set()

    def calm(self) -> None:
        """Nothing is lost any more."""
        self.loss = self.repeats = self.late = self.garbled = 0.0
        self.cut_off.clear()

    def send(self, sender: Process, receiver: Process | None, deliver: Callable[[], None]) -> None:
        """Carry a message to this life of the receiver, perhaps."""
        chance = self.world.chance
        if receiver is None or not receiver.running:
            return
        far = sender.host != receiver.host
        if far and (sender.host in self.cut_off or receiver.host in self.cut_off):
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
        self.model = StoreModel(lambda: world.now + 1_700_000_000)
        self.down = False
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

    def ask(self, process: Process, call: Request, failed: Callable[[str], None]) -> None:
        """Have a request travel there, be done, and its answer come back to this life of the process."""
        chance = self.world.chance

        def arrive() -> None:
            slow = chance.uniform(0.2, 1.5)
            if self.down or process.host in self.world.network.cut_off:
                process.soon(slow, lambda: failed("Redis is away"))
                return
            doubt = chance.random() < self.doubt
            if doubt and chance.random() < 0.5:  # it never came there
                process.soon(slow, lambda: failed("no answer"))
                return
            answer = call()
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
        self._queue: deque[tuple[Request, Callable[[str], None]]] = deque()
        self._busy = False

    def put(self, call: Request, failed: Callable[[str], None]) -> None:
        """Ask, when those before are answered."""
        self._queue.append((call, failed))
        self._next()

    def _next(self) -> None:
        if self._busy or not self._queue:
            return
        self._busy = True
        call, failed = self._queue.popleft()

        def over(then: Callable[[], None]) -> None:
            self._busy = False
            then()
            self._next()

        def there() -> Callable[[], None]:
            answer = call()
            return lambda: over(answer)

        self._redis.ask(self._process, there, lambda reason: over(lambda: failed(reason)))
