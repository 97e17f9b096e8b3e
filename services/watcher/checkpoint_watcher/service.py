"""The watcher's shell: wires scan, machine, ramdisk, bus and Redis together, and performs what the machine decides."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Final, ParamSpec, TypeVar

from prometheus_client import Counter, Gauge

from checkpoint_replicator.bus import Received, Sender
from checkpoint_replicator.driver import drive
from checkpoint_replicator.errors import BusyError, ConfigError, ProtocolError, TransientError, UnreachableError
from checkpoint_replicator.ids import NO_JOB, Host, Job, StoreId, new_id
from checkpoint_replicator.messages import (
    Beacon,
    Envelope,
    Message,
    NodeReport,
    Party,
    Service,
    TransferReport,
    UploaderReport,
)
from checkpoint_replicator.process import Runtime
from checkpoint_replicator.ramdisk import Ramdisk
from checkpoint_replicator.records import HostRecord, Lease
from checkpoint_replicator.store.redis import RedisManifestStore
from checkpoint_watcher.config import WatcherConfig
from checkpoint_watcher.disk import Disk
from checkpoint_watcher.effects import (
    Announce,
    CleanUp,
    DropClaim,
    DropSaves,
    Effect,
    Follow,
    HashClaim,
    ReadView,
    Register,
    SendReport,
    SendTransfer,
    SendUploader,
    VerifyShard,
)
from checkpoint_watcher.events import (
    BeaconHeard,
    Event,
    Registered,
    Scanned,
    TransferReported,
    UploaderReported,
    ViewFailed,
    ViewRead,
)
from checkpoint_watcher.inotify import Watchman
from checkpoint_watcher.machine import WatcherMachine
from checkpoint_watcher.scan import Scanner

__all__ = ["run"]

E = TypeVar("E")
P = ParamSpec("P")
T = TypeVar("T")

INBOX: Final = 1024
HASHERS: Final = 3
"""Two saves and one restore at once; the machine asks for no more."""
LOCK_PAUSE: Final = 0.5
DISK_PAUSE: Final = 0.5
LATE: Final = 1.25
"""The machine reports by itself; only what is so much later than it should be is said by the heartbeat."""
SCAN_GAP: Final = 0.01
"""Shortest time between two scans; a long scan makes it longer."""


async def run(config: WatcherConfig, runtime: Runtime) -> None:
    """Watch one ramdisk until asked to stop.

    Raises:
        ConfigError: the ramdisk is no directory.
    """
    # A writer that opens a file while we hold a lease on it would end this process with SIGIO.
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    if not config.ramdisk.is_dir():
        raise ConfigError(f"ramdisk: expected a directory, found none at {config.ramdisk}")
    ramdisk = Ramdisk(config.ramdisk.absolute(), config.ramdisk_size)
    hold = await _own(ramdisk, config, runtime)
    if hold is None:
        return
    try:
        await Watcher(config, runtime, ramdisk).run()
    finally:
        hold()


async def _own(ramdisk: Ramdisk, config: WatcherConfig, runtime: Runtime) -> Callable[[], None] | None:
    """Wait for the lock of the ramdisk's one watcher, saying who has it; None: asked to stop meanwhile."""
    owner = f"watcher {runtime.incarnation} of host {config.host}, pid {os.getpid()}"
    while not runtime.stopping.is_set():
        try:
            return ramdisk.hold("watcher", owner).release
        except BusyError as error:
            runtime.set_ready(str(error))
        try:
            async with asyncio.timeout(LOCK_PAUSE):
                await runtime.stopping.wait()
        except TimeoutError:
            pass
    return None


@dataclass(slots=True)
class Line:
    """The way to one job's coordinator."""

    lease: Lease
    sender: Sender
    deafen: Callable[[], None]
    sent_at: float = 0.0
    arrived: bool = False
    """The last report found a connection and room."""


@dataclass(slots=True)
class Meters:
    """Figures for people."""

    events: Counter
    overflows: Counter
    scans: Counter
    scan_seconds: Counter
    corrupt: Counter
    held: Gauge
    on_the_way: Gauge
    foreign: Gauge
    committed: Gauge = field(repr=False)


def _meters(runtime: Runtime) -> Meters:
    registry = runtime.metrics
    prefix = "checkpoint_replicator"
    return Meters(
        events=Counter(f"{prefix}_watcher_events_total", "What the watcher announced", ["event"], registry=registry),
        overflows=Counter(f"{prefix}_inotify_overflow_total", "Times the kernel lost events", registry=registry),
        scans=Counter(f"{prefix}_scans_total", "Scans of the ramdisk", registry=registry),
        scan_seconds=Counter(f"{prefix}_scan_seconds_total", "Time that scans took", registry=registry),
        corrupt=Counter(f"{prefix}_corrupt_copies_total", "Copies found corrupt", ["tier"], registry=registry),
        held=Gauge(f"{prefix}_held_shards", "Shards that stand here", registry=registry),
        on_the_way=Gauge(f"{prefix}_saves_on_the_way", "Finished saves that are not named yet", registry=registry),
        foreign=Gauge(f"{prefix}_foreign_names", "Names in the ramdisk that are none of ours", registry=registry),
        committed=Gauge(f"{prefix}_last_committed_step", "Newest committed step", registry=registry),
    )


class Watcher:
    """One life of the process, while it holds the lock."""

    def __init__(self, config: WatcherConfig, runtime: Runtime, ramdisk: Ramdisk) -> None:
        self.config = config
        self.runtime = runtime
        self.disk = Disk(ramdisk, config.hash_threads)
        self.me = Party(host=config.host, service=Service.WATCHER, incarnation=runtime.incarnation)
        self.machine = WatcherMachine(config.host, runtime.incarnation, config.times, new_id, config.backup)
        self.store = RedisManifestStore(config.redis)
        self.inbox: asyncio.Queue[Event] = asyncio.Queue(INBOX)
        # The machine bounds what it asks of the ramdisk; a full queue here would stop the one who empties it.
        self.work: asyncio.Queue[Effect] = asyncio.Queue()
        self.lines: dict[Job, Line] = {}
        self.last: dict[Job, NodeReport] = {}
        self.meters = _meters(runtime)
        self.scanner = Scanner(ramdisk.root, ramdisk.room)
        self.awake = asyncio.Event()
        self.watchman = Watchman(ramdisk.root, self.awake.set, self._overflowed)
        self.small = ThreadPoolExecutor(1, thread_name_prefix="disk")
        self.large = ThreadPoolExecutor(HASHERS, thread_name_prefix="hash")
        self.looking = ThreadPoolExecutor(1, thread_name_prefix="scan")
        self.sweeping = ThreadPoolExecutor(1, thread_name_prefix="sweep")
        self._registering = asyncio.Lock()
        self._registration: Register | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Work until asked to stop; raises what a part of it raised."""
        bus = self.runtime.bus
        self.transfer = bus.push(self.config.endpoint("transfer"))
        self.uploader = bus.push(self.config.endpoint("uploader"))
        self.disk.ramdisk.write_host(self.config.host)
        started = await self._in(self.small, self.disk.start)
        await self.inbox.put(started)
        await bus.pull(self.config.endpoint("watcher"), self._hear)
        self.runtime.set_ready("Redis has not answered yet")
        parts = [
            self._spawn(self._drive(), "drive"),
            self._spawn(self._work(), "work"),
            self._spawn(self._scan(), "scan"),
            self._spawn(self.watchman.run(), "watch"),
            self._spawn(self._beat(), "heartbeat"),
        ]
        stop = asyncio.create_task(self.runtime.stopping.wait(), name="stop")
        try:
            await asyncio.wait((self._failed, stop), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
            for part in parts:
                part.cancel()
            await self._close()
        if self._failed.done():
            await self._failed

    async def _close(self) -> None:
        self.disk.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.watchman.close()
        try:
            async with asyncio.timeout(2):
                await self.store.unregister(self.config.host, self.runtime.incarnation)
        except (TimeoutError, UnreachableError):
            self.runtime.log.info("host_left_registered")
        await self.store.close()
        for pool in (self.looking, self.small, self.large, self.sweeping):
            await asyncio.to_thread(pool.shutdown, cancel_futures=True)

    # ---- tasks

    def _spawn(self, work: "asyncio._CoroutineLike[None]", name: str) -> "asyncio.Task[None]":
        """Own a task: what it raises ends the process."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._failed.done():
            self._failed.set_exception(error)

    async def _in(self, pool: ThreadPoolExecutor, call: Callable[P, T], *arguments: P.args, **_: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(pool, partial(call, *arguments))

    async def _drive(self) -> None:
        await drive(self.machine, self.inbox, self._perform, self.runtime.stopping)

    async def _scan(self) -> None:
        """Look at every wake-up and by a timer; the first look begins after the watch stands."""
        while True:
            self.awake.clear()
            begun = time.monotonic()
            snapshot = await self._in(self.looking, self.scanner.scan, begun, self.watchman.take())
            took = time.monotonic() - begun
            self.meters.scans.inc()
            self.meters.scan_seconds.inc(took)
            await self.inbox.put(Scanned(snapshot))
            await asyncio.sleep(SCAN_GAP + took)
            try:
                async with asyncio.timeout(self.config.times.scan):
                    await self.awake.wait()
            except TimeoutError:
                pass

    async def _work(self) -> None:
        """Perform the ramdisk's effects one after another."""
        while True:
            effect = await self.work.get()
            try:
                answer = await self._in(self.small, self.disk.perform, effect)
            except TransientError as error:
                # Room comes back by effects that stand behind this one, so it goes to the end.
                self.runtime.log.warning("ramdisk_refused", effect=type(effect).__name__, reason=str(error))
                await self._sweep()
                await asyncio.sleep(DISK_PAUSE)
                self.work.put_nowait(effect)
                continue
            if answer is not None:
                await self.inbox.put(answer)
            if isinstance(effect, DropSaves | DropClaim | CleanUp):
                self._spawn(self._sweep(), "sweep")

    async def _sweep(self) -> None:
        await self._in(self.sweeping, self.disk.sweep)

    async def _aside(self, call: Callable[[E], Event | None], effect: E) -> None:
        answer = await self._in(self.large, call, effect)
        if answer is not None:
            await self.inbox.put(answer)

    async def _beat(self) -> None:
        """Say again what was said last, however busy the rest is: silence means that a host is lost."""
        times = self.config.times
        while True:
            await asyncio.sleep(times.report_gap)
            for job, line in self.lines.items():
                wait = times.report * LATE if line.arrived else times.report_gap
                if job in self.last and time.monotonic() >= line.sent_at + wait:
                    self._report(job, self.last[job])

    # ---- effects

    async def _perform(self, effect: Effect) -> None:
        match effect:
            case HashClaim():
                self._spawn(self._aside(self.disk.hash, effect), "hash")
            case VerifyShard():
                self._spawn(self._aside(self.disk.verify, effect), "verify")
            case ReadView():
                self._spawn(self._read(effect), "read")
            case Register():
                self._registration = effect
                self._spawn(self._register(), "register")
            case Follow(job, lease):
                await self._follow(job, lease)
            case SendReport(job, report):
                self._report(job, report)
            case SendTransfer(orders):
                self._send(self.transfer, self.machine.node.job or NO_JOB, Service.TRANSFER, orders)
            case SendUploader(job, orders):
                self._send(self.uploader, job, Service.UPLOADER, orders)
            case Announce():
                self._announce(effect)
            case _:
                self.work.put_nowait(effect)

    async def _read(self, effect: ReadView) -> None:
        event: Event
        try:
            event = ViewRead(effect.job, await self.store.view(effect.job, self.config.host, effect.rank))
        except (UnreachableError, ProtocolError) as error:
            event = ViewFailed(effect.job, str(error))
        await self.inbox.put(event)

    async def _register(self) -> None:
        async with self._registering:
            wish, self._registration = self._registration, None
            if wish is None:  # a later wish was served already
                return
            reason, store = "", StoreId("")
            try:
                store = await self.store.store_id()
                for job in wish.jobs:
                    await self.store.add_job(job)
                host = HostRecord(
                    host=Host(self.config.host),
                    incarnation=self.runtime.incarnation,
                    transfer=wish.transfer,
                    jobs=tuple(wish.jobs),
                )
                await self.store.register(host)
            except UnreachableError as error:
                reason = str(error)
            self.runtime.set_ready(reason or None)
            await self.inbox.put(Registered(store, reason))

    async def _follow(self, job: Job, lease: Lease) -> None:
        old = self.lines.pop(job, None)
        if old is not None:
            old.sender.close()
            old.deafen()
        sender = self.runtime.bus.push(lease.reports)
        deafen = await self.runtime.bus.subscribe(lease.beacons, f"{job}\0".encode(), self._hear)
        self.lines[job] = Line(lease, sender, deafen)
        self.runtime.log.info("coordinator_followed", job=job, peer=lease.host, token=lease.token)

    def _report(self, job: Job, report: NodeReport) -> None:
        self.last[job] = report
        line = self.lines.get(job)
        if line is None:  # it goes out with the heartbeat once there is a coordinator
            return
        lease = line.lease
        to = Party(host=lease.host, service=Service.COORDINATOR, incarnation=lease.incarnation)
        line.sent_at = time.monotonic()
        line.arrived = line.sender.send(Envelope(sender=self.me, receiver=to, job=job, message=report))

    def _send(self, sender: Sender, job: Job, service: Service, message: Message) -> None:
        to = Party(host=Host(self.config.host), service=service)
        sender.send(Envelope(sender=self.me, receiver=to, job=job, message=message))

    def _announce(self, effect: Announce) -> None:
        self.meters.events.labels(effect.event).inc()
        if effect.event == "corrupt_copy_found":
            self.meters.corrupt.labels(str(effect.fields.get("tier", "own"))).inc()
        self.runtime.log.info(effect.event, **effect.fields)
        self._measure()

    def _measure(self) -> None:
        node = self.machine.node
        self.meters.held.set(len(node.held))
        self.meters.on_the_way.set(len(self.machine.saves.on_the_way(node.job)))
        if node.snapshot is not None:
            self.meters.foreign.set(node.snapshot.foreign)
        authority = self.machine.authorities.get(node.job) if node.job is not None else None
        if authority is not None and authority.committed is not None:
            self.meters.committed.set(authority.committed.step)

    # ---- messages

    async def _hear(self, received: Received) -> None:
        envelope = received.envelope
        sender = envelope.sender
        match envelope.message:
            case Beacon() as beacon if sender.service is Service.COORDINATOR:
                await self.inbox.put(BeaconHeard(envelope.job, sender.incarnation, beacon))
            case TransferReport() as report if sender.host == self.config.host:
                await self.inbox.put(TransferReported(sender.incarnation, report))
            case UploaderReport() as said if sender.host == self.config.host:
                await self.inbox.put(UploaderReported(envelope.job, sender.incarnation, said))
            case other:
                self.runtime.log.warning("message_ignored", kind=type(other).__name__, peer=sender.host)

    def _overflowed(self) -> None:
        self.meters.overflows.inc()
        self.runtime.log.warning("inotify_overflowed")
