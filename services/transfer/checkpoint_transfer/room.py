"""Pure: what had no room here of late, and when partials that nobody fills make room for the trainer."""

import msgspec

from checkpoint_replicator.ids import Address, Job

__all__ = ["RoomKeeper"]


class Lack(msgspec.Struct, frozen=True):
    """One shard that did not fit: whose, by how many bytes, until when that counts."""

    job: Job
    size: int
    until: float


class RoomKeeper:
    """Remembers lacks and the next look at old partials.

    Args:
        remembered: seconds for which a lack counts; the shard is offered or fetched again within them.
        gap: seconds between two looks at old partials.
    """

    def __init__(self, remembered: float, gap: float) -> None:
        self._remembered = remembered
        self._gap = gap
        self._lacks: dict[Address, Lack] = {}
        self.due = 0.0
        """When old partials are to be looked at."""

    def lacked(self, address: Address, job: Job, size: int, now: float) -> None:
        """A shard did not fit; `size` 0: nobody knows by how much."""
        if size:
            self._lacks[address] = Lack(job, size, now + self._remembered)

    def fits(self, address: Address) -> None:
        """The shard has its room."""
        self._lacks.pop(address, None)

    def lacking(self, now: float) -> dict[str, int]:
        """Return by job the bytes that the largest shard lacked."""
        self._lacks = {address: lack for address, lack in self._lacks.items() if now < lack.until}
        lacking: dict[str, int] = {}
        for lack in self._lacks.values():
            lacking[lack.job] = max(lacking.get(lack.job, 0), lack.size)
        return lacking

    def is_due(self, now: float) -> bool:
        """Tell whether to look at old partials now; the next look is a gap later."""
        if now < self.due:
            return False
        self.due = now + self._gap
        return True
