"""A process that may crash, be paused and be started again at any moment; what it keeps in memory dies with it."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from checkpoint_replicator.ids import Host, Incarnation
from checkpoint_replicator.machine import Ticked

if TYPE_CHECKING:
    from simulation.world import World

__all__ = ["Engine", "KilledError", "Process"]

Event = TypeVar("Event")
Effect = TypeVar("Effect")
Event_contra = TypeVar("Event_contra", contravariant=True)
Effect_co = TypeVar("Effect_co", covariant=True)
SUPERVISED = (0.2, 4.0)
"""Seconds after which a process that ended by itself is started again, least and most."""
LEAST_NAP = 0.001
"""Seconds that a loop takes at least, so that a machine that is always due does not stop the clock."""


class KilledError(BaseException):
    """The process dies in the middle of what it does."""


class Deciding(Protocol[Event_contra, Effect_co]):
    """A machine."""

    def handle(self, event: Event_contra, now: float) -> Sequence[Effect_co]: ...

    def next_deadline(self) -> float | None: ...


class Process:
    """One process; a `life` is the time from a start to a crash.

    Args:
        world: where it lives.
        name: for logs.
        host: its machine, whose monotonic clock it reads.
    """

    def __init__(self, world: "World", name: str, host: Host, skew: float) -> None:
        self.world = world
        self._timeline = world.timeline
        self.name = name
        self.host = host
        self.skew = skew
        self.life = 0
        self.running = False
        self.paused_until = 0.0
        self._backlog: list[Callable[[], None]] = []
        self.incarnation = Incarnation("")

    @property
    def now(self) -> float:
        """Its own monotonic clock, whose zero is its own."""
        return self._timeline.now + self.skew

    @property
    def paused(self) -> bool:
        return self._timeline.now < self.paused_until

    def start(self) -> None:
        """Begin a life."""
        if self.running:
            return
        self.life += 1
        self.running = True
        self.paused_until = 0.0
        self.incarnation = Incarnation(f"{self.name}/{self.life}")
        self.world.log(self.name, "started")
        self.boot()

    def crash(self) -> None:
        """End the life; nothing of it happens any more."""
        if not self.running:
            return
        self.running = False
        self._backlog.clear()
        self.world.log(self.name, "crashed")
        self.bury()

    def pause(self, seconds: float) -> None:
        """Stand still, as under SIGSTOP; what comes meanwhile is done afterwards."""
        if not self.running:
            return
        self.paused_until = max(self.paused_until, self.world.now + seconds)
        life = self.life
        self.world.log(self.name, "paused", seconds)
        self.world.timeline.at(self.paused_until, lambda: self._resume(life))

    def soon(self, delay: float, action: Callable[[], None]) -> None:
        """Do something in this life, later; not while it is paused."""
        timeline = self._timeline
        timeline.at(timeline.now + delay, partial(self._act, self.life, action))

    def _act(self, life: int, action: Callable[[], None]) -> None:
        if not self.running or self.life != life:
            return
        if self._timeline.now < self.paused_until:
            self._backlog.append(partial(self._act, life, action))
            return
        try:
            action()
        except KilledError:
            self.crash()
            life = self.life
            pause = self.world.chance.uniform(*SUPERVISED)
            self.world.timeline.after(pause, lambda: self.start() if self.life == life else None)

    def boot(self) -> None:
        """Begin a life with nothing but the disk."""

    def bury(self) -> None:
        """Let go of what a dead process cannot hold."""

    def _resume(self, life: int) -> None:
        if self.running and self.life == life and not self.paused:
            backlog, self._backlog = self._backlog, []
            for action in backlog:
                action()


class Engine(Generic[Event, Effect]):
    """One machine of a process, asked whenever it wants to be."""

    def __init__(
        self, process: Process, machine: Deciding[Event | Ticked, Effect], perform: Callable[[Effect], None]
    ) -> None:
        self.process = process
        self.machine = machine
        self._perform = perform
        self._woken_at = float("inf")

    def take(self, event: Event | Ticked) -> None:
        """Decide and do; a fault may end the process between two effects."""
        process = self.process
        process.world.happened(process, event)
        effects = self.machine.handle(event, process.now)
        if effects:
            doomed = process.world.doom(len(effects))
            for number, effect in enumerate(effects):
                if number == doomed:
                    raise KilledError
                self._perform(effect)
        self.sleep()

    def sleep(self) -> None:
        """Be woken at the machine's deadline."""
        deadline = self.machine.next_deadline()
        if deadline is None or deadline >= self._woken_at:
            return
        now = self.process.now
        moment = max(deadline, now + LEAST_NAP)
        if moment < self._woken_at:
            self._woken_at = moment
            self.process.soon(moment - now, partial(self._wake, moment))

    def _wake(self, moment: float) -> None:
        if moment != self._woken_at:
            return
        self._woken_at = float("inf")
        deadline = self.machine.next_deadline()
        if deadline is not None and deadline <= self.process.now + 1e-9:
            self.take(Ticked())
        else:
            self.sleep()
