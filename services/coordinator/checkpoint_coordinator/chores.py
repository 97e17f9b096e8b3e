"""Orders to uploaders, one after another until one did it; pure.

Any uploader of the job can do a chore. The next is asked when one failed or did not answer in its turn; what an
earlier one then still finishes counts as well, since all writes are create-only and hold the same.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Final

import msgspec

from checkpoint_replicator.ids import Host
from checkpoint_replicator.messages import BackupResult
from checkpoint_replicator.records import BackupOrder
from checkpoint_replicator.save import Tag

__all__ = ["Chore", "Results"]

Results = Mapping[str, tuple[Host, BackupResult]]
"""Order id to who answered and what."""

MOST_TRIES: Final = 64


class Try(msgspec.Struct):
    """One host's turn."""

    host: Host
    order: BackupOrder
    at: float
    have: int = 0
    failed: str | None = None


class Chore(msgspec.Struct):
    """One thing to be done by some uploader.

    Attributes:
        kind: of the BackupOrder.
        name: of the backup.
        tags: for upload and seal.
        document: for reserve and manifest.
        tries: who was asked.
        result: the answer that counts.
        reason: why the last try failed, for people.
        exhausted: every host failed; the caller decides.
    """

    kind: str
    name: str = ""
    tags: tuple[Tag, ...] = ()
    document: str = ""
    tries: list[Try] = msgspec.field(default_factory=list)
    result: BackupResult | None = None
    host: Host | None = None
    reason: str = ""
    exhausted: bool = False

    def advance(
        self,
        now: float,
        turn: float,
        hosts: Collection[Host],
        results: Results,
        new_id: Callable[[], str],
    ) -> None:
        """Look at answers, and give the next host its turn where it is time.

        Args:
            now: monotonic seconds.
            turn: how long a host that does not move may keep the chore to itself.
            hosts: who can do it, best first.
            results: all answers that hosts report.
            new_id: makes random ids.
        """
        if self.result is not None or self.exhausted:
            return
        for one in self.tries:
            self._read(one, now, results)
        if self.result is not None:
            return
        working = [one for one in self.tries if one.failed is None and one.host in hosts and now - one.at < turn]
        if working:
            return
        asked = {one.host for one in self.tries}
        for host in hosts:
            if host not in asked and len(self.tries) < MOST_TRIES:
                order = BackupOrder(id=new_id(), kind=self.kind, name=self.name, tags=self.tags, document=self.document)
                self.tries.append(Try(host, order, now))
                return
        waiting = [one for one in self.tries if one.failed is None and one.host in hosts]
        if not waiting and self.tries:
            self.exhausted = True
        elif not hosts:
            self.reason = "no uploader answers"

    def orders(self) -> list[tuple[Host, BackupOrder]]:
        """Return what stands as ordered now."""
        if self.result is not None or self.exhausted:
            return []
        return [(one.host, one.order) for one in self.tries if one.failed is None]

    def _read(self, one: Try, now: float, results: Results) -> None:
        host, result = results.get(one.order.id, (one.host, None))
        if result is None or host != one.host or result.kind != self.kind:
            return
        if result.done:
            self.result, self.host = result, host
        elif result.reason and one.failed is None:
            one.failed = result.reason
            self.reason = f"{host}: {result.reason}"
        elif result.size != one.have:
            one.have, one.at = result.size, now
