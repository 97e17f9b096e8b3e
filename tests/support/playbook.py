"""Tests of machines that read like a script: an event, then what it must cause."""

from typing import Generic, TypeVar

from checkpoint_replicator.machine import Machine, Ticked

Event = TypeVar("Event")
Effect = TypeVar("Effect")


class Playbook(Generic[Event, Effect]):
    """Plays events to a machine at a time that moves only when told."""

    def __init__(self, machine: Machine[Event | Ticked, Effect], now: float = 1000.0) -> None:
        self.machine = machine
        self.now = now

    def says(self, event: Event | Ticked) -> list[Effect]:
        """Play an event and return what it caused."""
        return list(self.machine.handle(event, self.now))

    def on(self, event: Event | Ticked, *effects: Effect) -> None:
        """Play an event that must cause exactly these effects."""
        assert self.says(event) == list(effects)

    def wait(self, seconds: float) -> list[Effect]:
        """Let time pass, ticking at every deadline on the way as the driver does."""
        end = self.now + seconds
        caused: list[Effect] = []
        for _ in range(10_000):
            deadline = self.machine.next_deadline()
            if deadline is None or deadline > end:
                self.now = end
                return caused
            self.now = max(self.now, deadline)
            caused += self.machine.handle(Ticked(), self.now)
        raise AssertionError(f"the machine wants to be asked for ever at {self.now}")
