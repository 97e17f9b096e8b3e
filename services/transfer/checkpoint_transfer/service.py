"""Wiring: sockets, threads and the machine of one node's transfer."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar, cast, get_args

from checkpoint_replicator import failpoint
from checkpoint_replicator.bus import Received
from checkpoint_replicator.driver import drive
from checkpoint_replicator.errors import BusyError, CorruptError
from checkpoint_replicator.ids import Address, Job
from checkpoint_replicator.inputlog import InputLog
from checkpoint_replicator.messages import (
    FEATURES,
    Envelope,
    FetchState,
    Leaves,
    Message,
    Offer,
    Party,
    Refused,
    Service,
    Stored,
    TransferReport,
)
from checkpoint_replicator.process import Runtime
from checkpoint_replicator.quote import quote
from checkpoint_replicator.ramdisk import Hold, Ramdisk
from checkpoint_replicator.ramdisk.footing import footing
from checkpoint_replicator.records import Peer
from checkpoint_transfer import effects as do
from checkpoint_transfer.buffers import Buffers
from checkpoint_transfer.config import TransferConfig
from checkpoint_transfer.disk import Disk
from checkpoint_transfer.leaves import CHUNK_BYTES
from checkpoint_transfer.line import Line
from checkpoint_transfer.machine import Limits, TransferMachine
from checkpoint_transfer.meters import Meters
from checkpoint_transfer.patience import patience_of
from checkpoint_transfer.receiving import LeavesStored, ReceiverEvent, StoreFailed
from checkpoint_transfer.source import Source, source_of

__all__ = ["run"]

INBOX: Final = 256
"""Events that wait for the machine; more make the sockets wait."""
_PAUSE: Final = 0.001
WATCHED: Final = 0.1
"""Seconds between two looks whether peers are still connected."""
IDLE: Final = 60.0
"""Seconds after which an unused line is closed."""
TREE_FRAME: Final = 16 << 20
"""Bytes of one frame of a tree; larger trees are sent in several."""

STRANGE_EVERY: Final = 1.0
"""Seconds between two log lines about messages that are not taken; each is counted."""
MOST_LINES: Final = 1024
"""Lines to peers that are open at once; a peer names the endpoints that it wants to be answered at."""
MOST_ENDPOINTS: Final = 64
MOST_SOURCES: Final = 64
"""Hosts that a metric tells apart."""

_WIRE: Final = get_args(do.Wire)
_REMOTE: Final = get_args(do.Addressed)

Answer = TypeVar("Answer")


async def run(config: TransferConfig, runtime: Runtime) -> None:
    """Run the transfer of a node until it is asked to stop.

    Raises:
        TransientError: the working files are gone or may not be written.
    """
    with footing(config.ramdisk):
        await _run(config, runtime)


async def _run(config: TransferConfig, runtime: Runtime) -> None:
    ramdisk = await asyncio.to_thread(Ramdisk, config.ramdisk, config.ramdisk_size)
    with await _hold(ramdisk, config, runtime):
        await asyncio.to_thread(ramdisk.clear_partials)
        buffers = Buffers(CHUNK_BYTES, config.serve_window // CHUNK_BYTES)
        service = TransferService(config, runtime, Disk(ramdisk, buffers))
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
        self._inbox: asyncio.Queue[do.TransferEvent] = (
            asyncio.Queue()
        )  # messages wait in `_take`, budgets bound the rest
        self._loop = asyncio.get_running_loop()
        self._lines: dict[str, tuple[Line, Source | None]] = {}
        self._turn = 0
        self._strange_until = 0.0
        self._corrupting: set[str] = set()
        self._states: dict[Address, FetchState] = {}
        self._spoiled: set[tuple[Address, Source]] = set()
        self._stores = ThreadPoolExecutor(config.hash_threads, thread_name_prefix="store")
        self._reads = ThreadPoolExecutor(config.read_threads, thread_name_prefix="read")
        self._names = ThreadPoolExecutor(2, thread_name_prefix="name")
        self._checks = ThreadPoolExecutor(1, thread_name_prefix="check")  # whole shards: nobody waits behind them
        self._machine: TransferMachine
        self._peer: Peer

    async def open(self) -> None:
        """Bind the sockets."""
        config = self._config
        local = config.endpoint("transfer")
        await self._bus.pull(local, self._take_local)
        control = await self._bus.pull(f"tcp://{config.bind}:0", self._take_remote)
        leaves = [await self._bus.pull(f"tcp://{config.bind}:0", self._take_remote) for _ in range(config.leaf_sockets)]
        host, incarnation = config.host, self._runtime.incarnation
        self._peer = Peer(
            host=host,
            incarnation=incarnation,
            control=self._advertised(control),
            leaves=tuple(self._advertised(endpoint) for endpoint in leaves),
        )
        uploader = Peer(host=host, incarnation=incarnation, control=local, leaves=(local,))
        limits = Limits(
            window=int(config.window),
            incoming=int(config.window),
            outgoing=int(config.serve_window),
            serve=max(config.serve_window // 2, 4 << 20),
            report_gap=config.times.report_gap,
            report=config.times.orders,
        )
        self._machine = TransferMachine(self._peer, uploader, limits, patience_of(config.times))
        self._inputs = InputLog(config.input_log)
        self._decides = self._inputs.of(
            "transfer", self._machine, me=self._peer, local=uploader, limits=limits, patience=patience_of(config.times)
        )

    async def work(self) -> None:
        """Work until the process is asked to stop."""
        self._inbox.put_nowait(do.ShardsFound(await asyncio.to_thread(self._disk.found)))
        watch = asyncio.create_task(self._watch_lines(), name="watch-lines")
        self._runtime.set_ready(None)
        try:
            await drive(self._decides, self._inbox, self._perform, self._runtime.stopping)
        finally:
            watch.cancel()

    async def close(self) -> None:
        """Let threads end what they began; partials stay as they are."""
        for line, _ in self._lines.values():
            line.close()
        self._disk.end()
        for pool in (self._stores, self._reads, self._names, self._checks):
            await asyncio.to_thread(pool.shutdown, cancel_futures=True)

    def _advertised(self, endpoint: str) -> str:
        host, port = self._config.reachable, endpoint.rpartition(":")[2]
        return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"

    # ---- in

    async def _take_local(self, received: Received) -> None:
        """Take a message of this node's own services."""
        await self._take(received, _WIRE, "")

    async def _take_remote(self, received: Received) -> None:
        """Take a message of another node: never orders, and nothing that makes us speak to our own sockets."""
        await self._take(received, _REMOTE, _answer_fault(received))

    async def _take(self, received: Received, kinds: tuple[type, ...], fault: str) -> None:
        envelope = received.envelope
        receiver, message = envelope.receiver, envelope.message
        mine = receiver.host == self._me.host and receiver.service is Service.TRANSFER
        if not isinstance(message, kinds):
            fault = f"a {type(message).__name__}, expected what a transfer takes there"
        elif not mine or receiver.incarnation not in {"", self._me.incarnation}:
            fault = f"is for {receiver.service} {receiver.incarnation or 'any'} of {receiver.host}"
        if fault:
            self._meters.strange.inc()
            if self._loop.time() >= self._strange_until:
                self._strange_until = self._loop.time() + STRANGE_EVERY
                self._log.warning("message_refused", peer=quote(envelope.sender.host), reason=quote(fault))
            return
        self._inbox.put_nowait(do.MessageCame(envelope.sender, envelope.job, cast("do.Wire", message), received.body))
        while self._inbox.qsize() >= INBOX:  # noqa: ASYNC110 - rare; the socket waits, and so does the peer
            await asyncio.sleep(_PAUSE)

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
                    self._inbox.put_nowait(do.PeerLost(source, "its connection ended"))

    # ---- out

    async def _perform(self, effect: do.TransferEffect) -> None:
        match effect:
            case do.Tell(peer, job, message):
                self._tell(peer, job, message)
            case do.TellUploader(job, message):
                self._send_local(Service.UPLOADER, job, message)
            case do.Report(report):
                self._note(report)
                self._send_local(Service.WATCHER, do.NO_JOB, report)
            case do.StoreLeaves(address, number, source, runs, body, size):
                store = partial(self._disk.store, address, source, runs, body, size)
                self._start(effect, self._stores, store, partial(self._stored, address, number))
            case do.ServeLeaves():
                self._start(effect, self._reads, partial(self._read, effect), partial(self._serve, effect))
            case do.SendOffer(address=address):
                self._start(effect, self._reads, partial(self._tree, address), partial(self._offer, effect))
            case do.OpenPartial(address, number, source, tree, reserve):
                opening = partial(self._disk.open_partial, address, source, tree, reserve)
                self._start(effect, self._names, opening, partial(self._moved, address, number))
            case do.NameShard(address, number, namings):
                naming = partial(self._disk.name, address, namings)
                self._start(effect, self._names, naming, partial(self._moved, address, number))
            case do.OpenShard(address):
                self._start(effect, self._names, partial(self._disk.open_shard, address), self._inbox.put_nowait)
            case do.CheckShard(address):
                self._start(effect, self._checks, partial(self._disk.check, address), self._checked)
            case do.Close(address):
                self._start(effect, self._names, partial(self._disk.close, address), lambda _: None)
            case do.TrimPartials(reserve, busy):
                self._start(effect, self._names, partial(self._disk.trim, reserve, busy), self._trimmed)
            case do.ForgetPeer(peer):
                for endpoint in peer.leaves:
                    if (known := self._lines.pop(endpoint, None)) is not None:
                        known[0].close()

    def _start(
        self,
        effect: do.TransferEffect,
        pool: ThreadPoolExecutor,
        work: Callable[[], Answer],
        done: Callable[[Answer], None],
    ) -> None:
        """Work in a thread, then call `done` in the event loop; without a task or a future, which cost more."""

        def run() -> None:
            try:
                with failpoint.doing(effect):
                    answer = work()
            except BaseException as error:  # noqa: BLE001 - a bug: the process ends with it, and is started anew
                self._tell_loop(self._fail, error)
            else:
                self._tell_loop(done, answer)

        pool.submit(run)

    def _tell_loop(self, call: Callable[[Answer], None], what: Answer) -> None:
        with suppress(RuntimeError):  # the loop has ended meanwhile
            self._loop.call_soon_threadsafe(call, what)

    def _fail(self, error: BaseException) -> None:
        if not self._runtime.bus.failed.done():
            self._runtime.bus.failed.set_exception(error)

    def _moved(self, address: Address, number: int, event: ReceiverEvent) -> None:
        self._inbox.put_nowait(do.FetchMoved(address, number, event))

    def _note(self, report: TransferReport) -> None:
        """Log and count what changed since the last report."""
        self._meters.open_fetches.set(len(report.fetches))
        states = {fetch.address: fetch.state for fetch in report.fetches}
        for fetch in report.fetches:
            if self._states.get(fetch.address) is fetch.state:
                continue
            if fetch.state is FetchState.FAILED:
                self._meters.failed.inc()
                self._log.warning("fetch_failed", address=fetch.address, have=fetch.have, reason=fetch.reason)
            elif fetch.state is FetchState.DONE:
                self._log.info("fetch_done", address=fetch.address, size=fetch.size, by_source=fetch.by_source)
        self._states = states
        self._spoiled = {copy for copy in self._spoiled if copy[0] in states}

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

    def _stored(self, address: Address, number: int, event: LeavesStored | StoreFailed) -> None:
        if isinstance(event, LeavesStored):
            self._meters.taken.labels(event.source.kind).inc(event.size)
            if event.bad:
                if len(self._corrupting) < MOST_SOURCES:
                    self._corrupting.add(str(event.source))
                known = str(event.source) in self._corrupting
                self._meters.corrupt.labels(str(event.source) if known else "others").inc(len(event.bad))
                if (address, event.source) not in self._spoiled:
                    self._spoiled.add((address, event.source))
                    self._meters.corrupt_copies.labels(event.source.kind).inc()
                self._log.warning("leaves_corrupt", peer=str(event.source), address=address, leaves=event.bad[:10])
        self._moved(address, number, event)

    def _read(self, effect: do.ServeLeaves) -> list[memoryview] | do.LeavesUnsent:
        try:
            return self._disk.read(effect.address, effect.runs)
        except CorruptError as error:
            return _unsent(effect, str(error), gone=True)

    def _serve(self, effect: do.ServeLeaves, body: list[memoryview] | do.LeavesUnsent) -> None:
        if isinstance(body, do.LeavesUnsent):
            self._inbox.put_nowait(body)
            return
        endpoints = effect.peer.leaves or (effect.peer.control,)
        self._turn += 1
        line = self._line(endpoints[self._turn % len(endpoints)], source_of(effect.peer))
        message = Leaves(address=effect.address, runs=effect.runs)
        late = partial(self._inbox.put_nowait, _unsent(effect, "the peer is not connected"))
        line.send(self._envelope(_transfer_of(effect.peer), effect.job, message), body, late)
        self._meters.sent.inc(effect.size)
        self._meters.leaves_sent.inc(sum(run.count for run in effect.runs))

    def _tree(self, address: Address) -> bytes | do.OfferUnsent:
        try:
            return self._disk.tree(address)
        except CorruptError as error:
            return do.OfferUnsent(address, str(error))

    def _offer(self, effect: do.SendOffer, text: bytes | do.OfferUnsent) -> None:
        if isinstance(text, do.OfferUnsent):
            self._inbox.put_nowait(text)
            return
        view = memoryview(text)
        frames = [view[start : start + TREE_FRAME] for start in range(0, len(view), TREE_FRAME)]
        message = Offer(tags=effect.tags, answer_to=self._peer, address=effect.address)
        line = self._line(effect.peer.control, source_of(effect.peer))
        line.send(self._envelope(_transfer_of(effect.peer), effect.job, message), frames)

    def _trimmed(self, count: int) -> None:
        if count:
            self._log.info("partials_removed", count=count)

    def _checked(self, event: do.ShardChecked) -> None:
        if event.fault:
            self._meters.corrupt_shards.inc()
            self._log.error("shard_corrupt", address=event.address, reason=event.fault)
        self._inbox.put_nowait(event)

    def _line(self, endpoint: str, source: Source | None) -> Line:
        known = self._lines.get(endpoint)
        if known is None or known[1] != source:
            if known is not None:
                known[0].close()
            elif len(self._lines) >= MOST_LINES:
                oldest = min(self._lines, key=lambda open_: self._lines[open_][0].used)
                self._lines.pop(oldest)[0].close()
            known = (Line(self._bus, endpoint, self._config.times.acknowledged), source)
            self._lines[endpoint] = known
        return known[0]

    def _envelope(self, receiver: Party, job: Job, message: Message) -> Envelope:
        return Envelope(sender=self._me, receiver=receiver, job=job, message=message, features=FEATURES)


def _answer_fault(received: Received) -> str:
    """Say why a peer may not be answered as it wishes; empty where it may, or wants no answer."""
    peer, sender = getattr(received.envelope.message, "answer_to", None), received.envelope.sender
    if not isinstance(peer, Peer):
        return ""
    if (peer.host, peer.incarnation) != (sender.host, sender.incarnation):
        return f"wants an answer for {peer.host}, expected for its sender"
    if len(peer.leaves) > MOST_ENDPOINTS or not all(end.startswith("tcp://") for end in (peer.control, *peer.leaves)):
        return f"wants an answer at {peer.control[:100]} and {len(peer.leaves)} more, expected a few tcp endpoints"
    return ""


def _transfer_of(peer: Peer) -> Party:
    return Party(host=peer.host, service=Service.TRANSFER, incarnation=peer.incarnation)


def _unsent(effect: do.ServeLeaves, reason: str, *, gone: bool = False) -> do.LeavesUnsent:
    return do.LeavesUnsent(effect.address, effect.peer, effect.runs, effect.size, reason, gone)
