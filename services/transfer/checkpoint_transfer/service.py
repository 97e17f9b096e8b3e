"""Wiring: sockets, threads and the machine of one node's transfer."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar, get_args

from checkpoint_replicator.bus import Received
from checkpoint_replicator.driver import drive
from checkpoint_replicator.errors import BusyError, CorruptError
from checkpoint_replicator.ids import Address, Job
from checkpoint_replicator.messages import (
    FEATURES,
    Envelope,
    Leaves,
    Message,
    Offer,
    Party,
    Refused,
    Service,
    Stored,
)
from checkpoint_replicator.process import Runtime
from checkpoint_replicator.ramdisk import Hold, Ramdisk
from checkpoint_replicator.records import Peer
from checkpoint_transfer import effects as do
from checkpoint_transfer.config import TransferConfig
from checkpoint_transfer.disk import Disk
from checkpoint_transfer.line import Line
from checkpoint_transfer.machine import Limits, TransferMachine
from checkpoint_transfer.meters import Meters
from checkpoint_transfer.patience import patience_of
from checkpoint_transfer.receiver import LeavesStored, ReceiverEvent
from checkpoint_transfer.source import Source, source_of

__all__ = ["run"]

INBOX: Final = 256
"""Events that wait for the machine; more make the sockets wait."""
WATCHED: Final = 0.1
"""Seconds between two looks whether peers are still connected."""
IDLE: Final = 60.0
"""Seconds after which an unused line is closed."""
TREE_FRAME: Final = 16 << 20
"""Bytes of one frame of a tree; larger trees are sent in several."""

_WIRE: Final = get_args(do.Wire)

Answer = TypeVar("Answer")


async def run(config: TransferConfig, runtime: Runtime) -> None:
    """Run the transfer of a node until it is asked to stop."""
    ramdisk = await asyncio.to_thread(Ramdisk, config.ramdisk, config.ramdisk_size)
    with await _hold(ramdisk, config, runtime):
        service = TransferService(config, runtime, Disk(ramdisk))
        await service.open()
        try:
            await service.work()
        finally:
            await service.close()


async def _hold(ramdisk: Ramdisk, config: TransferConfig, runtime: Runtime) -> Hold:
    """Wait until no other transfer works on this ramdisk."""
    while True:
        try:
            return ramdisk.hold("transfer", f"transfer {runtime.incarnation} of {config.host}")
        except BusyError as error:
            runtime.set_ready(str(error))
        try:
            await asyncio.wait_for(runtime.stopping.wait(), config.times.orders)
        except TimeoutError:
            continue
        raise BusyError("stopped while another transfer held the ramdisk")


class TransferService:
    """Receives messages and answers of threads, asks the machine, performs its effects."""

    def __init__(self, config: TransferConfig, runtime: Runtime, disk: Disk) -> None:
        self._config = config
        self._bus = runtime.bus
        self._runtime = runtime
        self._log = runtime.log
        self._disk = disk
        self._meters = Meters(runtime.metrics)
        self._me = Party(host=config.host, service=Service.TRANSFER, incarnation=runtime.incarnation)
        self._inbox: asyncio.Queue[do.TransferEvent] = asyncio.Queue(INBOX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._lines: dict[str, tuple[Line, Source | None]] = {}
        self._turn = 0
        self._stores = ThreadPoolExecutor(config.hash_threads, thread_name_prefix="store")
        self._reads = ThreadPoolExecutor(config.read_threads, thread_name_prefix="read")
        self._names = ThreadPoolExecutor(2, thread_name_prefix="name")
        self._machine: TransferMachine

    async def open(self) -> None:
        """Bind the sockets."""
        config = self._config
        local = config.endpoint("transfer")
        await self._bus.pull(local, self._take)
        control = await self._bus.pull(f"tcp://{config.bind}:0", self._take)
        leaves = [await self._bus.pull(f"tcp://{config.bind}:0", self._take) for _ in range(config.leaf_sockets)]
        host, incarnation = config.host, self._runtime.incarnation
        me = Peer(
            host=host,
            incarnation=incarnation,
            control=self._advertised(control),
            leaves=tuple(self._advertised(endpoint) for endpoint in leaves),
        )
        uploader = Peer(host=host, incarnation=incarnation, control=local, leaves=(local,))
        limits = Limits(
            window=config.window,
            incoming=config.window,
            outgoing=config.serve_window,
            serve=max(config.serve_window // 2, 4 << 20),
            report_gap=config.times.report_gap,
            report=config.times.orders,
        )
        self._machine = TransferMachine(me, uploader, limits, patience_of(config.times))

    async def work(self) -> None:
        """Work until the process is asked to stop."""
        watch = asyncio.create_task(self._watch_lines(), name="watch-lines")
        self._runtime.set_ready(None)
        try:
            await drive(self._machine, self._inbox, self._perform, self._runtime.stopping)
        finally:
            watch.cancel()

    async def close(self) -> None:
        """Let threads end what they began; partials stay as they are."""
        for line, _ in self._lines.values():
            line.close()
        for task in self._tasks:
            task.cancel()
        for pool in (self._stores, self._reads, self._names):
            await asyncio.to_thread(pool.shutdown, cancel_futures=True)

    def _advertised(self, endpoint: str) -> str:
        host, port = self._config.reachable, endpoint.rpartition(":")[2]
        return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"

    # ---- in

    async def _take(self, received: Received) -> None:
        envelope = received.envelope
        receiver = envelope.receiver
        mine = receiver.host == self._me.host and receiver.service is Service.TRANSFER
        if not mine or receiver.incarnation not in {"", self._me.incarnation}:
            self._meters.strange.inc()
            return
        message = envelope.message
        if not isinstance(message, _WIRE):
            self._meters.strange.inc()
            return
        await self._inbox.put(do.MessageCame(envelope.sender, envelope.job, message, received.body))

    async def _watch_lines(self) -> None:
        """Notice peers that went away, and close what nobody used for long."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(WATCHED)
            for endpoint, (line, source) in list(self._lines.items()):
                lost = line.is_lost()
                if lost or loop.time() >= line.used + IDLE:
                    line.close()
                    del self._lines[endpoint]
                if lost and source is not None:
                    self._log.info("peer_lost", peer=source.host, endpoint=endpoint)
                    await self._inbox.put(do.PeerLost(source, "its connection ended"))

    # ---- out

    async def _perform(self, effect: do.TransferEffect) -> None:
        match effect:
            case do.Tell(peer, job, message):
                self._tell(peer, job, message)
            case do.TellUploader(job, message):
                self._send_local(Service.UPLOADER, job, message)
            case do.Report(report):
                self._send_local(Service.WATCHER, do.NO_JOB, report)
            case do.StoreLeaves(address, number, source, runs, body, size):
                store = partial(self._disk.store, address, source, runs, body, size)
                self._start(self._store(address, number, store))
            case do.ServeLeaves():
                self._start(self._serve(effect))
            case do.SendOffer():
                self._start(self._offer(effect))
            case do.OpenPartial(address, number, source, tree, reserve):
                opening = partial(self._disk.open_partial, address, source, tree, reserve)
                self._start(self._answer(self._names, lambda: do.FetchMoved(address, number, opening())))
            case do.NameShard(address, number, namings):
                naming = partial(self._disk.name, address, namings)
                self._start(self._answer(self._names, lambda: do.FetchMoved(address, number, naming())))
            case do.OpenShard(address):
                self._start(self._answer(self._names, partial(self._disk.open_shard, address)))
            case do.CheckShard(address):
                self._start(self._check(partial(self._disk.check, address)))
            case do.Close(address):
                await asyncio.get_running_loop().run_in_executor(self._names, self._disk.close, address)
            case do.ForgetPeer(peer):
                for endpoint in peer.leaves:
                    if (known := self._lines.pop(endpoint, None)) is not None:
                        known[0].close()

    def _tell(self, peer: Peer, job: Job, message: Message) -> None:
        match message:
            case Refused(kind=kind, reason=reason, address=address):
                self._meters.refused.labels(kind).inc()
                self._log.warning("offer_refused", peer=peer.host, address=address, kind=kind, reason=reason)
            case Stored(address=address, tags=tags):
                self._meters.stored.inc()
                self._log.info("copy_stored", peer=peer.host, address=address, names=[tag.name for tag in tags])
        self._line(peer.control, source_of(peer)).send(self._envelope(_transfer_of(peer), job, message))

    def _send_local(self, service: Service, job: Job, message: Message) -> None:
        party = Party(host=self._me.host, service=service)
        self._line(self._config.endpoint(service), None).send(self._envelope(party, job, message))

    async def _store(self, address: Address, number: int, work: Callable[[], ReceiverEvent]) -> None:
        event = await self._thread(self._stores, work)
        if isinstance(event, LeavesStored):
            self._meters.taken.labels(event.source.kind).inc(event.size)
            if event.bad:
                self._meters.corrupt.labels(str(event.source)).inc(len(event.bad))
                self._log.warning("leaves_corrupt", peer=str(event.source), address=address, leaves=event.bad[:10])
        await self._inbox.put(do.FetchMoved(address, number, event))

    async def _serve(self, effect: do.ServeLeaves) -> None:
        unsent = partial(do.LeavesUnsent, effect.address, effect.peer, effect.runs, effect.size)
        try:
            body = await self._thread(self._reads, partial(self._disk.read, effect.address, effect.runs))
        except CorruptError as error:
            await self._inbox.put(unsent(str(error), gone=True))
            return
        endpoints = effect.peer.leaves or (effect.peer.control,)
        self._turn += 1
        line = self._line(endpoints[self._turn % len(endpoints)], source_of(effect.peer))
        message = Leaves(address=effect.address, runs=effect.runs)
        late = partial(self._put_later, unsent("the peer is not connected"))
        line.send(self._envelope(_transfer_of(effect.peer), effect.job, message), body, late)
        self._meters.sent.inc(effect.size)
        self._meters.leaves_sent.inc(sum(run.count for run in effect.runs))

    async def _offer(self, effect: do.SendOffer) -> None:
        try:
            text = memoryview(await self._thread(self._reads, partial(self._disk.tree, effect.address)))
        except CorruptError as error:
            await self._inbox.put(do.OfferUnsent(effect.address, str(error)))
            return
        frames = [text[start : start + TREE_FRAME] for start in range(0, len(text), TREE_FRAME)]
        message = Offer(tags=effect.tags, answer_to=self._machine.report.peer, address=effect.address)
        line = self._line(effect.peer.control, source_of(effect.peer))
        line.send(self._envelope(_transfer_of(effect.peer), effect.job, message), frames)

    async def _check(self, work: Callable[[], do.ShardChecked]) -> None:
        event = await self._thread(self._names, work)
        if event.fault:
            self._meters.corrupt_shards.inc()
            self._log.error("shard_corrupt", address=event.address, reason=event.fault)
        await self._inbox.put(event)

    async def _answer(self, pool: ThreadPoolExecutor, work: Callable[[], do.TransferEvent]) -> None:
        await self._inbox.put(await self._thread(pool, work))

    async def _thread(self, pool: ThreadPoolExecutor, work: Callable[[], Answer]) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(pool, work)

    def _start(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._runtime.bus.failed.done():
            self._runtime.bus.failed.set_exception(error)  # a bug: end, and be started anew

    def _put_later(self, event: do.TransferEvent) -> None:
        self._start(self._inbox.put(event))

    def _line(self, endpoint: str, source: Source | None) -> Line:
        known = self._lines.get(endpoint)
        if known is None or known[1] != source:
            if known is not None:
                known[0].close()
            known = (Line(self._bus, endpoint, self._config.times.acknowledged), source)
            self._lines[endpoint] = known
        return known[0]

    def _envelope(self, receiver: Party, job: Job, message: Message) -> Envelope:
        return Envelope(sender=self._me, receiver=receiver, job=job, message=message, features=FEATURES)


def _transfer_of(peer: Peer) -> Party:
    return Party(host=peer.host, service=Service.TRANSFER, incarnation=peer.incarnation)
