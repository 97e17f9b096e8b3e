"""One job's machine at work: its inbox, and the doing of its effects against Redis and the bus."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final

from checkpoint_coordinator.gauges import Gauges
from checkpoint_coordinator.machine import CoordinatorMachine
from checkpoint_coordinator.words import (
    AcquireLease,
    Effect,
    Event,
    HostsRead,
    JobRemoved,
    LeaseAnswered,
    LeaseRenewed,
    Note,
    Publish,
    ReadHosts,
    ReadSnapshot,
    ReleaseLease,
    RemoveJob,
    RenewLease,
    ReportReceived,
    SnapshotRead,
    StopRequested,
    StoreFailed,
    WishReceived,
    Write,
    Written,
)
from checkpoint_replicator import failpoint
from checkpoint_replicator.bus import Publisher
from checkpoint_replicator.driver import drive
from checkpoint_replicator.errors import ProtocolError, UnreachableError
from checkpoint_replicator.ids import Job
from checkpoint_replicator.logs import Log
from checkpoint_replicator.machine import Machine, Ticked
from checkpoint_replicator.messages import Beacon, Envelope, NodeReport, Party, Service, Wish
from checkpoint_replicator.store import ManifestStore

__all__ = ["Office"]

INBOX: Final = 4096
"""Events that wait at most; a report that finds no room is dropped, the next one says the same."""
GIVE_BACK: Final = 1.0
"""Seconds that an ending process takes for giving its lease back."""
ALARMS: Final = frozenset(
    {
        "backup_failed",
        "backup_overdue",
        "backups_failing",
        "forget_refused",
        "index_lost",
        "lease_lost",
        "orders_dropped",
        "report_refused",
        "restart_loop",
        "saves_failing",
        "store_failed",
    }
)

NOISY: Final = frozenset({"report_refused", "report_corrected"})
"""What whoever reaches the reports' port can cause as often as he likes."""
NOISE_EVERY: Final = 1.0
"""Seconds between two log lines about one of these."""

Request = Callable[[], Awaitable[Event | None]]


class Office:
    """Runs one machine.

    Args:
        job: whose.
        machine: the one that decides.
        decides: the same, as it is asked: perhaps recorded.
        store: Redis.
        publisher: wakes nodes.
        me: the sender of beacons.
        log: for what happens.
        gauges: for what is measured.
    """

    def __init__(
        self,
        job: Job,
        machine: CoordinatorMachine,
        *,
        decides: Machine[Event | Ticked, Effect] | None = None,
        store: ManifestStore,
        publisher: Publisher,
        me: Party,
        log: Log,
        gauges: Gauges,
    ) -> None:
        self.job = job
        self.machine = machine
        self._decides = decides or machine
        self._store = store
        self._publisher = publisher
        self._me = me
        self._log = log.bind(job=job)
        self._gauges = gauges
        self._quiet_until: dict[str, float] = {}
        self._inbox: asyncio.Queue[Event] = asyncio.Queue(INBOX)
        self._lane: asyncio.Queue[tuple[str, Request]] = asyncio.Queue()
        """Requests are few: the machine never has two of a kind under way."""
        self._renewals: asyncio.Queue[tuple[str, Request]] = asyncio.Queue()

    def hear(self, sender: Party, report: NodeReport) -> None:
        """Take a report; never waits."""
        if not self.machine.active and self.machine.lease is None:
            self._gauges.reports.labels("standby").inc()
            return
        try:
            self._inbox.put_nowait(ReportReceived(sender, report))
        except asyncio.QueueFull:
            self._gauges.reports.labels("dropped").inc()
        else:
            self._gauges.reports.labels("taken").inc()

    def wish(self, wish: Wish) -> None:
        """Take an order of people, if it is this process that decides; it is repeated until it is answered."""
        if self.machine.active:
            with suppress(asyncio.QueueFull):
                self._inbox.put_nowait(WishReceived(wish))

    async def run(self, stopping: asyncio.Event) -> None:
        """Decide until asked to stop, then give the lease back."""
        lanes = [asyncio.create_task(self._serve(queue)) for queue in (self._lane, self._renewals)]
        work = asyncio.create_task(drive(self._decides, self._inbox, self._perform, stopping))
        try:
            done, _ = await asyncio.wait((work, *lanes), return_when=asyncio.FIRST_COMPLETED)
            for task in done:  # a lane never ends by itself: what it raised ends the process, instead of all decisions
                await task
        finally:
            for task in (work, *lanes):
                task.cancel()
            await asyncio.gather(work, *lanes, return_exceptions=True)
            await self._give_back()

    async def _give_back(self) -> None:
        for effect in self.machine.handle(StopRequested(), time.monotonic()):
            if isinstance(effect, ReleaseLease):
                with suppress(UnreachableError, ProtocolError, TimeoutError), failpoint.giving(effect):
                    async with asyncio.timeout(GIVE_BACK):
                        await self._ask(effect, partial(self._release, effect))
                    self._log.info("lease_released", token=effect.lease.token)

    async def _perform(self, effect: Effect) -> None:
        match effect:
            case Publish(beacon):
                self._gauges.show(self.job, self.machine, time.monotonic())
                self._publish(beacon)
            case Note(event, fields):
                self._gauges.events.labels(event).inc()
                if event not in NOISY or self._is_news(event):
                    tell = self._log.warning if event in ALARMS else self._log.info
                    tell(event, **fields)
            case RenewLease():
                self._renewals.put_nowait(("renew", partial(self._ask, effect, lambda: self._renew(effect))))
            case _:
                name, request = self._request(effect)
                self._lane.put_nowait((name, partial(self._ask, effect, request)))

    def _is_news(self, event: str) -> bool:
        """Tell whether an event that strangers can cause is to be logged; each is counted."""
        now = time.monotonic()
        if now < self._quiet_until.get(event, 0.0):
            return False
        self._quiet_until[event] = now + NOISE_EVERY
        return True

    def _request(
        self, effect: AcquireLease | ReleaseLease | ReadSnapshot | ReadHosts | Write | RemoveJob
    ) -> tuple[str, Request]:
        match effect:
            case AcquireLease():
                return "acquire", lambda: self._acquire(effect)
            case ReleaseLease():
                return "release", lambda: self._release(effect)
            case ReadSnapshot():
                return "snapshot", lambda: self._snapshot(effect)
            case Write():
                return "write", lambda: self._write(effect)
            case RemoveJob():
                return "remove", self._remove
            case ReadHosts():
                return "hosts", lambda: self._hosts(effect)

    async def _ask(self, effect: Effect, request: Request) -> Event | None:
        with failpoint.doing(effect):
            return await request()

    async def _serve(self, queue: asyncio.Queue[tuple[str, Request]]) -> None:
        """Ask Redis one thing after another; what fails is an event too."""
        while True:
            name, request = await queue.get()
            try:
                answer = await request()
            except (UnreachableError, ProtocolError) as error:
                self._gauges.store_failures.inc()
                answer = StoreFailed(name, str(error)) if name != "release" else None
            if answer is not None:
                await self._inbox.put(answer)

    def _publish(self, beacon: Beacon) -> None:
        receiver = Party(host=self._me.host, service=Service.WATCHER)
        self._publisher.publish(
            f"{self.job}\0".encode(), Envelope(sender=self._me, receiver=receiver, job=self.job, message=beacon)
        )

    async def _acquire(self, effect: AcquireLease) -> Event:
        ttl = self.machine.times.lease_ttl
        lease = await self._store.acquire(self.job, self.machine.me, ttl, patient=effect.patient)
        return LeaseAnswered(effect.began, lease)

    async def _renew(self, effect: RenewLease) -> Event:
        renewal = await self._store.renew(self.job, effect.lease, self.machine.times.lease_ttl)
        return LeaseRenewed(effect.began, renewal, await self._store.time())

    async def _release(self, effect: ReleaseLease) -> None:
        await self._store.release(self.job, effect.lease)

    async def _snapshot(self, effect: ReadSnapshot) -> Event:
        snapshot = await self._store.snapshot(self.job)
        return SnapshotRead(effect.token, snapshot, await self._store.time())

    async def _hosts(self, effect: ReadHosts) -> Event:
        calls = await self._store.helps(self.job, effect.silent) if effect.silent else {}
        return HostsRead(await self._store.hosts(), calls)

    async def _remove(self) -> Event:
        await self._store.remove_job(self.job)
        return JobRemoved()

    async def _write(self, effect: Write) -> Event:
        seen = await self._store.apply(self.job, effect.lease, effect.stamp, effect.changes, effect.after)
        return Written(effect.stamp, seen)
