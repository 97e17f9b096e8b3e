"""The way to the coordinators: one PUSH and one SUB a job, and the heartbeat."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from checkpoint_replicator.bus import Bus, Receiver, Sender
from checkpoint_replicator.ids import Job
from checkpoint_replicator.messages import Envelope, NodeReport, Party, Service
from checkpoint_replicator.records import Lease
from checkpoint_replicator.times import Times

__all__ = ["Lines"]

LATE: Final = 1.25
"""The machine reports by itself; only what is so much later than it should be is said by the heartbeat."""


@dataclass(slots=True)
class Line:
    """The way to one job's coordinator; `arrived`: the last report found a connection and room."""

    lease: Lease
    sender: Sender
    deafen: Callable[[], None]
    sent_at: float = float("-inf")
    arrived: bool = False


class Lines:
    """All lines of one watcher.

    Args:
        bus: of the process.
        me: stands in every message.
        times: `report_gap` and `report`.
        receiver: takes what coordinators publish.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        bus: Bus,
        me: Party,
        times: Times,
        receiver: Receiver,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bus = bus
        self._me = me
        self._times = times
        self._receiver = receiver
        self._clock = clock
        self._lines: dict[Job, Line] = {}
        self._last: dict[Job, NodeReport] = {}

    async def follow(self, job: Job, lease: Lease) -> None:
        """Speak to the holder of this lease, and hear it; whom the job's line led to before is forgotten."""
        old = self._lines.pop(job, None)
        if old is not None:
            old.sender.close()
            old.deafen()
        sender = self._bus.push(lease.reports)
        # The rank's own topic begins with the job's.
        deafen = await self._bus.subscribe(lease.beacons, f"{job}\0".encode(), self._receiver)
        self._lines[job] = Line(lease, sender, deafen)

    def leave(self, job: Job) -> None:
        """Speak to and hear nobody any more for this job."""
        self._last.pop(job, None)
        old = self._lines.pop(job, None)
        if old is not None:
            old.sender.close()
            old.deafen()

    def report(self, job: Job, report: NodeReport) -> None:
        """Send a report; without a coordinator it goes out as soon as there is one."""
        self._last[job] = report
        line = self._lines.get(job)
        if line is None:
            return
        to = Party(host=line.lease.host, service=Service.COORDINATOR, incarnation=line.lease.incarnation)
        line.sent_at = self._clock()
        line.arrived = line.sender.send(Envelope(sender=self._me, receiver=to, job=job, message=report))

    def beat(self) -> None:
        """Say again what was lost, or what was said too long ago: silence means that a host is lost."""
        for job, line in self._lines.items():
            wait = self._times.report * LATE if line.arrived else self._times.report_gap
            if job in self._last and self._clock() >= line.sent_at + wait:
                self.report(job, self._last[job])

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            await asyncio.sleep(self._times.report_gap)
            self.beat()
