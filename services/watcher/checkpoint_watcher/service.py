"""The watcher's shell: wires scan, machine, ramdisk, bus and Redis together, and performs what the machine decides."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from checkpoint_replicator import failpoint
from checkpoint_replicator.bus import Received, Sender
from checkpoint_replicator.driver import drive
from checkpoint_replicator.errors import BusyError, ConfigError, ProtocolError, TransientError, UnreachableError
from checkpoint_replicator.ids import NO_JOB, Host, Job, StoreId, new_id
from checkpoint_replicator.inputlog import InputLog
from checkpoint_replicator.messages import (
    Beacon,
    Envelope,
    Message,
    Party,
    Service,
    TransferReport,
    UploaderReport,
)
from checkpoint_replicator.process import Runtime
from checkpoint_replicator.quote import quote
from checkpoint_replicator.ramdisk import Ramdisk
from checkpoint_replicator.ramdisk.footing import explain, footing
from checkpoint_replicator.records import Help, HostRecord
from checkpoint_replicator.store.redis import RedisManifestStore
from checkpoint_watcher.config import WatcherConfig
from checkpoint_watcher.disk import Disk
from checkpoint_watcher.effects import (
    AdoptStrays,
    Announce,
    CallHelp,
    CleanUp,
    DropClaim,
    DropForeign,
    DropSaves,
    Effect,
    Follow,
    ForgetJob,
    HashClaim,
    Leave,
    NameShard,
    PublishStatus,
    Quarantine,
    ReadView,
    Register,
    SendReport,
    SendTransfer,
    SendUploader,
    TakeInventory,
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
from checkpoint_watcher.line import Lines
from checkpoint_watcher.machine import WatcherMachine
from checkpoint_watcher.meters import Meters
from checkpoint_watcher.notice import give_notice
from checkpoint_watcher.refusals import Refusals
from checkpoint_watcher.scan import Scanner
from checkpoint_watcher.strays import Strays

__all__ = ["run"]

E = TypeVar("E")
P = ParamSpec("P")
T = TypeVar("T")

INBOX: Final = 1024
HASHERS: Final = 4
"""Two saves, a restore's verification and what has no sidecar, at once."""
STRANGE_EVERY: Final = 1.0
"""Seconds between two log lines about messages that are not taken; each is counted."""
LOCK_PAUSE: Final = 0.5
DISK_PAUSE: Final = 0.5
DISCARDING: Final = (CleanUp, DropClaim, DropForeign, DropSaves, ForgetJob, NameShard, Quarantine, TakeInventory)
"""Effects after which the trash is emptied; before an inventory the transfer may have put something there."""
SCAN_GAP: Final = 0.01
"""Shortest time between two scans; a long scan makes it longer."""


async def run(config: WatcherConfig, runtime: Runtime) -> None:
    """Watch one ramdisk until asked to stop.

    Raises:
        ConfigError: the ramdisk is no directory.
        TransientError: the working files are gone or may not be written.
    """
    # A writer that opens a file while we hold a lease on it would end this process with SIGIO.
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    root = config.ramdisk.absolute()
    with footing(root):
        if not root.is_dir():
            raise ConfigError(f"ramdisk: expected a directory, found none at {config.ramdisk}")
        with _noticed(root, runtime, owned=False):
            ramdisk = Ramdisk(root, config.ramdisk_size)
            hold = await _own(ramdisk, config, runtime)
        if hold is None:
            return
        try:
            await Watcher(config, runtime, ramdisk).run()
        finally:
            hold()


@contextmanager
def _noticed(root: Path, runtime: Runtime, *, owned: bool) -> Iterator[None]:
    """Tell a trainer that waits why this watcher cannot begin."""
    try:
        yield
    except OSError as error:
        reason = explain(root, error)
        text = f"the watcher cannot begin: {reason}"
        if reason is not None and give_notice(root, text, time.time(), owned=owned):
            runtime.log.warning("waiting_trainer_failed", reason=reason)
        raise


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


class Watcher:
    """One life of the process, while it holds the lock."""

    def __init__(self, config: WatcherConfig, runtime: Runtime, ramdisk: Ramdisk) -> None:
        self.config = config
        self.runtime = runtime
        self.disk = Disk(ramdisk, config.hash_threads)
        self.strays = Strays(ramdisk, config.hash_threads, self.disk.stopping)
        self.me = Party(host=config.host, service=Service.WATCHER, incarnation=runtime.incarnation)
        self.inputs = InputLog(config.input_log)
        ids = self.inputs.drawing(new_id)
        self.machine = WatcherMachine(config.host, runtime.incarnation, config.times, ids, config.backup)
        self.decides = self.inputs.of(
            "watcher",
            self.machine,
            host=config.host,
            incarnation=runtime.incarnation,
            times=config.times,
            backup_root=config.backup,
        )
        self.store = RedisManifestStore(config.redis)
        self.inbox: asyncio.Queue[Event] = asyncio.Queue(INBOX)
        # The machine bounds what it asks of the ramdisk; a full queue here would stop the one who empties it.
        self.work: asyncio.Queue[Effect] = asyncio.Queue()
        self.lines = Lines(runtime.bus, self.me, config.times, self._hear_beacon)
        self.meters = Meters(runtime.metrics)
        self.scanner = Scanner(ramdisk.root, ramdisk.room)
        self.awake = asyncio.Event()
        self.watchman = Watchman(ramdisk.root, self.awake.set, self._overflowed)
        self.small = ThreadPoolExecutor(1, thread_name_prefix="disk")
        self.large = ThreadPoolExecutor(HASHERS, thread_name_prefix="hash")
        self.looking = ThreadPoolExecutor(1, thread_name_prefix="scan")
        self.sweeping = ThreadPoolExecutor(1, thread_name_prefix="sweep")
        self.refusals = Refusals(config.times.stuck)
        self._unregistered = "Redis has not answered yet"
        self._quiet_until = 0.0
        self._registering = asyncio.Lock()
        self._registration: Register | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Work until asked to stop; raises what a part of it raised."""
        bus = self.runtime.bus
        self.transfer = bus.push(self.config.endpoint("transfer"))
        self.uploader = bus.push(self.config.endpoint("uploader"))
        with _noticed(self.disk.ramdisk.root, self.runtime, owned=True):
            self.disk.ramdisk.write_host(self.config.host)
            started = await self._in(self.small, self.disk.start)
        await self.inbox.put(started)
        await bus.pull(self.config.endpoint("watcher"), self._hear)
        self._tell_ready()
        parts = [
            self._spawn(self._drive(), "drive"),
            self._spawn(self._work(), "work"),
            self._spawn(self._scan(), "scan"),
            self._spawn(self.watchman.run(), "watch"),
            self._spawn(self.lines.run(), "heartbeat"),
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
        except (TimeoutError, UnreachableError, ProtocolError):
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
        await drive(self.decides, self.inbox, self._perform, self.runtime.stopping)

    async def _scan(self) -> None:
        """Look at every wake-up and by a timer; the first look begins after the watch stands."""
        while True:
            self.awake.clear()
            begun = time.monotonic()
            snapshot = await self._in(self.looking, self.scanner.scan, begun, self.watchman.take())
            took = time.monotonic() - begun
            self.meters.scanned(took)
            self.meters.measure(self.machine)
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
            except (TransientError, OSError) as error:
                # Room comes back by effects that stand behind this one, so it goes to the end.
                reason = quote(str(error))
                self.runtime.log.warning("ramdisk_refused", effect=type(effect).__name__, reason=reason)
                again = isinstance(error, TransientError) or not isinstance(effect, PublishStatus)  # that is said again
                if isinstance(error, OSError) and again:
                    self.refusals.refused(effect, error, time.monotonic())
                else:
                    self.refusals.over(effect)
                self._tell_ready()
                await self._sweep()
                await asyncio.sleep(DISK_PAUSE)
                if again:
                    self.work.put_nowait(effect)
                continue
            self.refusals.over(effect)
            self._tell_ready()
            if answer is not None:
                await self.inbox.put(answer)
            if isinstance(effect, DISCARDING):
                self._spawn(self._sweep(), "sweep")

    def _tell_ready(self) -> None:
        self.runtime.set_ready(quote(self.refusals.reason) or self._unregistered or None)

    async def _sweep(self) -> None:
        await self._in(self.sweeping, self.disk.sweep)

    async def _aside(self, call: Callable[[E], Event | None], effect: E) -> None:
        def work() -> Event | None:
            with failpoint.doing(effect):  # in the thread that makes the changes, which are counted there
                return call(effect)

        answer = await self._in(self.large, work)
        if answer is not None:
            await self.inbox.put(answer)

    # ---- effects

    async def _perform(self, effect: Effect) -> None:
        match effect:
            case HashClaim():
                self._spawn(self._aside(self.disk.hash, effect), "hash")
            case AdoptStrays():
                self._spawn(self._aside(self.strays.adopt, effect), "adopt")
            case VerifyShard():
                self._spawn(self._aside(self.disk.verify, effect), "verify")
            case ReadView():
                self._spawn(self._read(effect), "read")
            case Register():
                self._registration = effect
                self._spawn(self._register(), "register")
            case Follow(job, lease):
                await self.lines.follow(job, lease)
                self.runtime.log.info("coordinator_followed", job=job, peer=lease.host, token=lease.token)
            case Leave(job):
                self.lines.leave(job)
                self.runtime.log.info("job_left", job=job)
            case CallHelp():
                self._spawn(self._call_help(effect), "help")
            case SendReport(job, report):
                self.lines.report(job, report)
            case SendTransfer(orders):
                self._send(self.transfer, self.machine.node.job or NO_JOB, Service.TRANSFER, orders)
            case SendUploader(job, orders):
                self._send(self.uploader, job, Service.UPLOADER, orders)
            case Announce():
                self.meters.announced(effect)
                self.runtime.log.info(effect.event, **effect.fields)
            case _:
                self.work.put_nowait(effect)

    async def _read(self, effect: ReadView) -> None:
        event: Event
        with failpoint.doing(effect):
            try:
                event = ViewRead(effect.job, await self.store.view(effect.job, self.config.host, effect.rank))
            except (UnreachableError, ProtocolError) as error:
                event = ViewFailed(effect.job, str(error))
        await self.inbox.put(event)

    async def _call_help(self, effect: CallHelp) -> None:
        cry = Help(host=Host(self.config.host), incarnation=self.runtime.incarnation, reason=effect.reason)
        try:
            with failpoint.doing(effect):
                await self.store.call_help(effect.job, cry, effect.seconds)
        except (UnreachableError, ProtocolError) as error:
            self.runtime.log.info("help_not_called", job=effect.job, reason=str(error))

    async def _register(self) -> None:
        async with self._registering:
            wish, self._registration = self._registration, None
            if wish is None:  # a later wish was served already
                return
            reason, store = "", StoreId("")
            with failpoint.doing(wish):
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
                except (UnreachableError, ProtocolError) as error:
                    reason = str(error)
            self._unregistered = reason
            self._tell_ready()
            await self.inbox.put(Registered(store, reason))

    def _send(self, sender: Sender, job: Job, service: Service, message: Message) -> None:
        to = Party(host=Host(self.config.host), service=service)
        sender.send(Envelope(sender=self.me, receiver=to, job=job, message=message))

    # ---- messages

    async def _hear_beacon(self, received: Received) -> None:
        envelope = received.envelope
        if isinstance(envelope.message, Beacon) and envelope.sender.service is Service.COORDINATOR:
            await self.inbox.put(BeaconHeard(envelope.job, envelope.sender.incarnation, envelope.message))
        else:
            self._ignore(envelope)

    async def _hear(self, received: Received) -> None:
        """Take what the node's own services say."""
        envelope = received.envelope
        sender = envelope.sender
        who = sender.service if sender.host == self.config.host else None
        match envelope.message:
            case TransferReport() as report if who is Service.TRANSFER:
                await self.inbox.put(TransferReported(sender.incarnation, report))
            case UploaderReport() as said if who is Service.UPLOADER:
                await self.inbox.put(UploaderReported(envelope.job, sender.incarnation, said))
            case _:
                self._ignore(envelope)

    def _ignore(self, envelope: Envelope) -> None:
        self.meters.strange.inc()
        now = asyncio.get_running_loop().time()
        if now >= self._quiet_until:  # a stranger may come a thousand times a second
            self._quiet_until = now + STRANGE_EVERY
            peer = quote(f"{envelope.sender.service} of {envelope.sender.host}")
            self.runtime.log.warning("message_ignored", kind=type(envelope.message).__name__, peer=peer)

    def _overflowed(self) -> None:
        self.meters.overflows.inc()
        self.runtime.log.warning("inotify_overflowed")
