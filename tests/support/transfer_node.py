"""Real transfer processes, each with a watcher that a test plays."""

import asyncio
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from checkpoint_replicator.bus import Received, Sender
from checkpoint_replicator.bus.zeromq import ZeroMQBus
from checkpoint_replicator.hashing import hash_shard
from checkpoint_replicator.ids import Address, Epoch, Host, Incarnation, Job, Rank, Step, Worker, new_id
from checkpoint_replicator.messages import (
    Copy,
    CopyState,
    Envelope,
    Fetch,
    FetchOrder,
    FetchState,
    OfferOrder,
    Party,
    Service,
    TransferOrders,
    TransferReport,
)
from checkpoint_replicator.ramdisk import Ramdisk
from checkpoint_replicator.records import Peer
from checkpoint_replicator.save import Save, ShardKey, Tag
from checkpoint_replicator.shape import Shape

JOB = Job("job")
SHAPE = Shape(2, 1, 1, "pytorch")
DEADLINE = 20.0
"""Seconds after which a test that waits for something says what it saw last."""


class TransferNode:
    """One node: a ramdisk, a transfer process, and the watcher's end of their sockets."""

    def __init__(self, bus: ZeroMQBus, root: Path, name: str, *options: str) -> None:
        self.host = Host(name)
        self.root = root / name
        self.root.mkdir(exist_ok=True)
        self.run = root / f"{name}.run"
        self.ramdisk = Ramdisk(self.root)
        self.options = options
        self.before: tuple[str, ...] = ()
        """Words before the command, such as those that give it mounts of its own."""
        self.report: TransferReport | None = None
        self._bus = bus
        self._me = Party(host=self.host, service=Service.WATCHER, incarnation=Incarnation(new_id()))
        self._sender: Sender | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._arrived = asyncio.Event()
        self._version = 0
        self._orders = TransferOrders(version=0)

    async def start(self) -> None:
        """Start the process and wait for its first report."""
        if self._sender is None:
            await self._bus.pull(f"ipc://{self.run}/watcher.sock", self._take)
        self.report = None
        log = (self.run / "transfer.log").open("ab")
        self._process = subprocess.Popen(  # noqa: ASYNC220 - it only forks
            [
                *self.before,
                sys.executable,
                "-m",
                "checkpoint_transfer",
                f"--host={self.host}",
                f"--ramdisk={self.root}",
                f"--run={self.run}",
                *self.options,
            ],
            stderr=log,
            stdout=log,
            env={**os.environ, "CHECKPOINT_LOG_LEVEL": "info"},
        )
        log.close()
        if self._sender is None:
            self._sender = self._bus.push(f"ipc://{self.run}/transfer.sock")
        await self.wait(lambda _: True)

    @property
    def process(self) -> psutil.Process:
        """The running transfer."""
        assert self._process is not None
        return psutil.Process(self._process.pid)

    @property
    def peer(self) -> Peer:
        """How others reach this transfer."""
        assert self.report is not None, self.log
        return self.report.peer

    @property
    def log(self) -> str:
        """What the process said."""
        path = self.run / "transfer.log"
        return path.read_text() if path.exists() else ""

    def kill(self) -> None:
        """End it without a chance to tidy up."""
        self._end(signal.SIGKILL)

    def kill_all(self) -> None:
        """End it together with what its `before` started."""
        children = self.process.children(recursive=True) if self._process is not None else []
        for child in children:
            child.kill()
        self.kill()

    def stop(self) -> int:
        """Ask it to stop; returns its exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        if self._process is None:
            return 0
        process, self._process = self._process, None
        process.send_signal(number)
        return process.wait(DEADLINE)

    def add(self, source: Path, step: int = 1, rank: int = 0) -> Tag:
        """Name a file or directory as a shard of this node; the source is moved."""
        tree = hash_shard(source)
        tag = self.tag(tree.address, tree.size, step, rank)
        self.ramdisk.name_shard(source, tree, [tag], own=True)
        return tag

    def tag(self, address: Address, size: int, step: int = 1, rank: int = 0) -> Tag:
        """Return the tag of a shard."""
        save = Save(Epoch(1), Step(step))
        return Tag(JOB, save, SHAPE, ShardKey(Rank(rank), Worker(0)), address, size)

    def data(self, tag: Tag) -> Path:
        """Where a shard stands."""
        return self.root / f"{tag.address}.data"

    def order(
        self, *, offers: tuple[OfferOrder, ...] = (), fetches: tuple[FetchOrder, ...] = (), reserve: int = 0
    ) -> None:
        """Say what is wanted now; it is repeated with every wait."""
        self._version += 1
        self._orders = TransferOrders(version=self._version, offers=offers, fetches=fetches, reserve=reserve)
        self._send()

    def _send(self) -> None:
        assert self._sender is not None
        receiver = Party(host=self.host, service=Service.TRANSFER)
        self._sender.send(Envelope(sender=self._me, receiver=receiver, job=JOB, message=self._orders))

    async def _take(self, received: Received) -> None:
        if isinstance(received.envelope.message, TransferReport):
            self.report = received.envelope.message
            self._arrived.set()

    async def wait(self, wish: Callable[[TransferReport], bool], seconds: float = DEADLINE) -> TransferReport:
        """Wait for a report that fulfils the wish, repeating the orders meanwhile as a watcher does."""
        try:
            async with asyncio.timeout(seconds):
                while self.report is None or not wish(self.report):
                    self._arrived.clear()
                    self._send()
                    try:
                        async with asyncio.timeout(0.5):
                            await self._arrived.wait()
                    except TimeoutError:
                        continue
        except TimeoutError:
            raise AssertionError(f"{self.host}: last report {self.report}; log:\n{self.log[-4000:]}") from None
        return self.report

    async def copied(
        self, tag: Tag, host: Host, state: CopyState = CopyState.STORED, seconds: float = DEADLINE
    ) -> Copy:
        """Wait until the offer of a shard to a host stands so."""

        def find(report: TransferReport) -> Copy | None:
            copies = (copy for copy in report.copies if (copy.address, copy.host) == (tag.address, host))
            return next((copy for copy in copies if copy.state is state), None)

        found = find(await self.wait(lambda report: find(report) is not None, seconds))
        assert found is not None
        return found

    async def fetched(self, tag: Tag, state: FetchState = FetchState.DONE, seconds: float = DEADLINE) -> Fetch:
        """Wait until a fetch stands so."""

        def find(report: TransferReport) -> Fetch | None:
            fetches = (fetch for fetch in report.fetches if fetch.address == tag.address)
            return next((fetch for fetch in fetches if fetch.state is state), None)

        found = find(await self.wait(lambda report: find(report) is not None, seconds))
        assert found is not None
        return found

    async def metric(self, name: str) -> float:
        """Sum the samples of a metric; `name` may hold labels as Prometheus prints them."""
        url = (self.run / "transfer.health").read_text().strip()
        text = await asyncio.to_thread(_get, f"{url}/metrics")
        lines = [line.split(" ") for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
        return sum(float(line[-1]) for line in lines)


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - our own HTTP thread
        text: str = answer.read().decode()
        return text


@asynccontextmanager
async def nodes(root: Path, *names: str, options: tuple[str, ...] = ()) -> AsyncIterator[list[TransferNode]]:
    """Start transfers; ends them all."""
    bus = ZeroMQBus()
    started = [TransferNode(bus, root, name, *options) for name in names]
    try:
        for node in started:
            await node.start()
        yield started
    finally:
        for node in started:
            node.kill()
        await bus.close()
