from checkpoint_replicator.machine import Machine, Ticked


class Doorbell:
    """Rings once for each tick: the smallest machine."""

    def handle(self, event: Ticked, now: float) -> list[str]:
        return [f"ring at {now}"] if isinstance(event, Ticked) else []

    def next_deadline(self) -> float | None:
        return None


def test_anything_that_turns_events_into_effects_is_a_machine() -> None:
    machine: Machine[Ticked, str] = Doorbell()
    assert machine.handle(Ticked(), 2.0) == ["ring at 2.0"]
