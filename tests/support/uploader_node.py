"""A real uploader process on a node whose watcher and transfer are played by the test, over real ZeroMQ."""

import asyncio
import shutil
import signal
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from checkpoint_replicator import leaf
from checkpoint_replicator.bus import Received
from checkpoint_replicator.bus.zeromq import ZeroMQBus
from checkpoint_replicator.ids import Address, Host, Incarnation, Job, new_id
from checkpoint_replicator.messages import (
    BackupResult,
    Envelope,
    Leaves,
    Message,
    NotYet,
    Offer,
    Party,
    Run,
    Service,
    UploaderOrders,
    UploaderReport,
    Want,
)
from checkpoint_replicator.records import BackupOrder, Peer
from checkpoint_replicator.tree import Tree

__all__ = ["HOST", "Fetched", "UploaderNode"]

HOST = Host("node-0")
PATIENCE = 30.0
"""Seconds after which a test gives up waiting."""
_REPEAT = 0.1


class Fetched:
    """What a fetch brought: the tree, the leaves that are as it says, those that are not, and the refusals."""

    def __init__(self) -> None:
        self.tree: Tree | None = None
        self.good: dict[int, bytes] = {}
        self.bad: list[int] = []
        self.refusals: list[NotYet] = []

    @property
    def reason(self) -> str:
        """The last refusal's."""
        return self.refusals[-1].reason if self.refusals else ""

    def file(self, path: bytes) -> bytes:
        """The bytes of one file."""
        assert self.tree is not None
        return b"".join(self.good[number] for number in self.tree.leaves_of(path))


class UploaderNode:
    """Use as an async context; the process ends with it.

    Args:
        ramdisk: the node's ramdisk.
        backup: root URL, or None.
        program: what is run in place of `-m checkpoint_uploader`.
        options: more configuration keys.
    """

    def __init__(
        self,
        ramdisk: Path,
        backup: str | None,
        job: Job,
        *,
        program: tuple[str, ...] = ("-m", "checkpoint_uploader"),
        options: Mapping[str, str] | None = None,
        prefix: tuple[str, ...] = (),
    ) -> None:
        self.job = job
        self.report: UploaderReport | None = None
        self.lives: list[Incarnation] = []
        self.process: asyncio.subprocess.Process | None = None
        self._run = Path(tempfile.mkdtemp(prefix="ckpt-"))
        self._prefix = prefix
        self._program = program
        flags = {"host": HOST, "ramdisk": str(ramdisk), "run": str(self._run), **(options or {})}
        if backup is not None:
            flags["backup"] = backup
        self._flags = [part for key, value in flags.items() for part in (f"--{key}", value)]
        self._watcher = Incarnation(new_id())
        self._transfer = Incarnation(new_id())
        self._version = 0
        self._orders: tuple[BackupOrder, ...] = ()
        self._fetched: dict[Address, Fetched] = {}
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> Self:
        self._bus = ZeroMQBus()
        await self._bus.pull(self.endpoint("watcher"), self._take)
        await self._bus.pull(self.endpoint("transfer"), self._take)
        self._sender = self._bus.push(self.endpoint("uploader"))
        self._repeating = asyncio.create_task(self._repeat())
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._repeating.cancel()
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
        if self.process is not None:
            await self.process.wait()
        await self._bus.close()
        shutil.rmtree(self._run, ignore_errors=True)

    async def start(self) -> None:
        """Start the process (again)."""
        self.process = await asyncio.create_subprocess_exec(
            *self._prefix,
            sys.executable,
            *self._program,
            *self._flags,
            stdin=asyncio.subprocess.DEVNULL,
        )

    async def ended(self) -> int:
        """Wait for the end of the process and return its code."""
        assert self.process is not None
        return await asyncio.wait_for(self.process.wait(), PATIENCE)

    def kill(self) -> None:
        """Send SIGKILL."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process is not None and self.process.returncode is None

    def order(self, *orders: BackupOrder) -> None:
        """Want these orders from now on, and no others."""
        self._orders = orders
        self._version += 1
        self.report = None

    async def one(self, order: BackupOrder) -> BackupResult:
        """Order anew, under an id of its own, and wait for the answer; a process that ends meanwhile is an error."""
        ident = new_id()
        self.order(msgspec.structs.replace(order, id=ident))
        await self.until(lambda: ident in self.results)
        return self.results[ident]

    @property
    def results(self) -> dict[str, BackupResult]:
        """The answers in the last report; what is still in hand is none."""
        results = () if self.report is None else self.report.results
        return {result.id: result for result in results if result.done or result.reason}

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until it is true; looked at whenever a message came, and when the process ended."""
        assert self.process is not None
        ended = asyncio.create_task(self.process.wait())

        async def wait() -> None:
            async with self._changed:
                await self._changed.wait_for(true)

        waiting = asyncio.create_task(wait())
        try:
            await asyncio.wait((ended, waiting), timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                code = self.process.returncode
                raise TimeoutError(f"not in {PATIENCE} s; last report {self.report}, exit code {code}")
        finally:
            ended.cancel()
            waiting.cancel()

    async def fetch(self, backup: str, address: Address) -> Fetched:
        """Play the transfer: ask for the tree, then for all leaves, and check each against the tree."""
        fetched = self._fetched[address] = Fetched()
        want = Want(address=address, answer_to=self._peer, tree=True, backup=backup)
        asking = asyncio.create_task(self._ask(want, lambda: fetched.tree is None))
        try:
            await self.until(lambda: fetched.tree is not None or self._is_gone(fetched))
        finally:
            asking.cancel()
        if fetched.tree is None:
            return fetched
        total = fetched.tree.leaves
        if total:
            runs = (Run(first=0, count=total),)
            credit = 64 << 20
            self._send(
                Service.TRANSFER, Want(address=address, answer_to=self._peer, runs=runs, credit=credit, backup=backup)
            )
            await self.until(lambda: len(fetched.good) + len(fetched.bad) == total or self._is_gone(fetched))
        return fetched

    @staticmethod
    def _is_gone(fetched: Fetched) -> bool:
        return any(refusal.gone for refusal in fetched.refusals)

    @property
    def _peer(self) -> Peer:
        return Peer(host=HOST, incarnation=self._transfer, control=self.endpoint("transfer"), leaves=())

    def endpoint(self, service: str) -> str:
        """Where a service of the node listens."""
        return f"ipc://{self._run}/{service}.sock"

    @property
    def health(self) -> str:
        """Where its HTTP thread is."""
        return (self._run / "uploader.health").read_text().strip()

    def metrics(self) -> str:
        """What it counts."""
        with urllib.request.urlopen(f"{self.health}/metrics", timeout=10) as answer:  # noqa: S310 - our own loopback URL
            return str(answer.read().decode())

    async def _repeat(self) -> None:
        while True:
            self._send(Service.WATCHER, UploaderOrders(version=self._version, orders=self._orders))
            await asyncio.sleep(_REPEAT)

    async def _ask(self, want: Want, wanted: Callable[[], bool]) -> None:
        while wanted():
            self._send(Service.TRANSFER, want)
            await asyncio.sleep(1)

    def _send(self, service: Service, message: Message) -> None:
        incarnation = self._watcher if service is Service.WATCHER else self._transfer
        sender = Party(host=HOST, service=service, incarnation=incarnation)
        receiver = Party(host=HOST, service=Service.UPLOADER)
        self._sender.send(Envelope(sender=sender, receiver=receiver, job=self.job, message=message))

    async def _take(self, received: Received) -> None:
        life = received.envelope.sender.incarnation
        if life not in self.lives:
            self.lives.append(life)
        match received.envelope.message:
            case UploaderReport() as report if report.version == self._version:
                self.report = report
            case Offer(address=address):
                tree = Tree.parse(b"".join(received.body))
                assert tree.address == address
                self._fetched.setdefault(address, Fetched()).tree = tree
            case Leaves(address=address, runs=runs):
                self._keep(self._fetched[address], runs, received.body)
            case NotYet(address=address) as refusal:
                self._fetched.setdefault(address, Fetched()).refusals.append(refusal)
        async with self._changed:
            self._changed.notify_all()

    @staticmethod
    def _keep(fetched: Fetched, runs: tuple[Run, ...], body: tuple[memoryview, ...]) -> None:
        assert fetched.tree is not None
        for run, frame in zip(runs, body, strict=True):
            start = 0
            for number in range(run.first, run.first + run.count):
                expected = fetched.tree.leaf(number)
                data = bytes(frame[start : start + expected.size])
                start += expected.size
                if leaf.digest(data) == expected.digest:
                    fetched.good[number] = data
                else:
                    fetched.bad.append(number)
            assert start == len(frame)
