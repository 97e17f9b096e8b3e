"""A real watcher process, and a coordinator played by the test over real ZeroMQ and real Redis."""

import asyncio
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from checkpoint_replicator.bus import Received
from checkpoint_replicator.bus.zeromq import ZeroMQBus
from checkpoint_replicator.fence import ZERO, Stamp
from checkpoint_replicator.ids import Epoch, Host, Incarnation, Job, Rank, StoreId
from checkpoint_replicator.messages import Beacon, Envelope, NodeReport, Party, Service
from checkpoint_replicator.records import (
    EpochRecord,
    EpochState,
    FetchPlan,
    KeepList,
    Lease,
    Member,
    Outcome,
    RestoreRecord,
    ShardPlan,
)
from checkpoint_replicator.save import Save
from checkpoint_replicator.store import Change, SetHash
from checkpoint_replicator.store.fields import to_fields, to_json
from checkpoint_replicator.store.redis import RedisManifestStore
from support.eventually import eventually

__all__ = ["JOB", "Conductor", "WatcherProcess", "conducting", "until", "write_yaml"]

JOB = Job("llama")
SHORT = "consumed=3s,shape-quarrel=1s,empty-yaml=1s,rendezvous=5s,failed=6s,bucket-silent=500ms,abandoned-most=1s"
SHORT += ",abandoned-quiet=500ms,scan=300ms"


def until(true: Callable[[], object], seconds: float = 15) -> None:
    """Wait, blocking, for the directory to come so far."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"not true within {seconds} s"
        time.sleep(0.005)


def write_yaml(root: Path, rank: int = 0, nodes: int = 1, framework: str = "pytorch", **keys: object) -> None:
    """Write a yaml as a careful trainer does."""
    values = {"job-name": JOB, "framework": framework, "node-rank": rank, "nodes": nodes}
    values |= {key.replace("_", "-"): value for key, value in keys.items()}
    aside = root / "replicator.yaml.tmp"
    aside.write_text("".join(f"{key}: {value}\n" for key, value in values.items()))
    aside.rename(root / "replicator.yaml")


class WatcherProcess:
    """One life of `checkpoint-watcher` on a directory.

    Args:
        base: gets `ramdisk/`, `run/` and `watcher.log`.
        redis: URL.
        times: overrides of the table of times.
    """

    def __init__(self, base: Path, redis: str, times: str = SHORT, host: str = "node-0") -> None:
        self.base = base
        self.root = base / "ramdisk"
        self.root.mkdir(exist_ok=True)
        self.run = base / "run"
        self.redis = redis
        self.times = times
        self.host = host
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *, wait: bool = True) -> Self:
        """Start it, and wait until it watches."""
        (self.run / "watcher.health").unlink(missing_ok=True)
        command = [sys.executable, "-m", "checkpoint_watcher", "--ramdisk", str(self.root), "--run", str(self.run)]
        command += ["--redis", self.redis, "--host", self.host, "--times", self.times]
        with (self.base / "watcher.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        if wait:
            until(lambda: self.metric("checkpoint_replicator_scans_total") >= 1, 60)  # a busy machine is no defect
        return self

    def get(self, path: str) -> str:
        """Ask its HTTP thread; empty while there is none."""
        try:
            url = (self.run / "watcher.health").read_text().strip()
            with urllib.request.urlopen(f"{url}/{path}", timeout=5) as answer:  # noqa: S310 - our own loopback URL
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            return str(error.read().decode())
        except OSError:
            return ""

    def metric(self, name: str) -> float:
        """One of its figures; 0 while there is none."""
        for line in self.get("metrics").splitlines():
            if line.startswith(f"{name} "):
                return float(line.rpartition(" ")[2])
        return 0.0

    def signal(self, number: int) -> None:
        """Send it a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it as a crash does."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)
        self.process = None

    def stop(self) -> int:
        """Ask it to end; returns its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        code = self.process.wait(20)
        self.process = None
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None:
            self.kill()
        if error is not None:
            sys.stderr.write((self.base / "watcher.log").read_text()[-4000:])

    @property
    def names(self) -> set[str]:
        """What the trainer sees."""
        return {name for name in os.listdir(self.root) if name != ".replicator"}  # noqa: PTH208 - names, not paths

    def text(self, name: str) -> str:
        """A small file of the trainer's directory."""
        return (self.root / name).read_text()


class Conductor:
    """Plays the coordinator: holds the lease, hears reports, writes decisions and beacons."""

    def __init__(self, bus: ZeroMQBus, store: RedisManifestStore) -> None:
        self.bus = bus
        self.store = store
        self.reports: list[NodeReport] = []
        self.counter = 0
        self.epoch = Epoch(1)

    async def begin(self) -> None:
        """Take the lease."""
        incarnation = Incarnation("conductor")
        reports = await self.bus.pull("tcp://127.0.0.1:*", self._hear)
        self.publisher = await self.bus.publisher("tcp://127.0.0.1:*")
        wish = Lease(
            incarnation=incarnation,
            token=0,
            host=Host("conductor"),
            reports=reports,
            beacons=self.publisher.endpoint,
        )
        lease = await self.store.acquire(JOB, wish, 60)
        assert isinstance(lease, Lease)
        self.lease = lease
        self.store_id = await self.store.store_id()

    async def _hear(self, received: Received) -> None:
        if isinstance(received.envelope.message, NodeReport):
            self.reports.append(received.envelope.message)

    @property
    def report(self) -> NodeReport:
        """The last one."""
        return self.reports[-1]

    async def hears(self, true: Callable[[NodeReport], object], seconds: float = 20) -> NodeReport:
        """Wait for a report that says so."""
        await eventually(lambda: self.reports and true(self.reports[-1]), seconds)
        return self.report

    def stamp(self) -> Stamp:
        """The next one."""
        self.counter += 1
        return Stamp(self.lease.token, self.epoch, self.counter)

    async def decide(self, changes: list[Change], stamp: Stamp) -> None:
        """Write, and wake the nodes."""
        seen = await self.store.apply(JOB, self.lease, stamp, changes)
        assert seen is None, seen
        self.beacon(stamp)

    def shout(self, frames: list[bytes]) -> None:
        """Publish what is no beacon."""
        self.publisher._socket.send_multipart(frames)  # type: ignore[attr-defined]

    def beacon(self, stamp: Stamp = ZERO) -> None:
        """Publish one."""
        party = Party(host=Host("conductor"), service=Service.COORDINATOR, incarnation=self.lease.incarnation)
        nobody = Party(host=Host(""), service=Service.WATCHER)
        beacon = Beacon(stamp=stamp, token=self.lease.token, store=StoreId(self.store_id))
        envelope = Envelope(sender=party, receiver=nobody, job=JOB, message=beacon)
        self.publisher.publish(f"{JOB}\0".encode(), envelope)

    async def gather(self, *, released: bool = False, refused: Mapping[str, str] | None = None) -> None:
        """Write the epoch with the session that was reported last as its member."""
        session = self.report.session
        assert session is not None
        stamp = self.stamp()
        member = Member(rank=Rank(session.spec.rank), host=Host("node-0"), session=session.id)
        record = EpochRecord(
            number=self.epoch,
            stamp=stamp,
            state=EpochState.RUNNING if released else EpochState.RESTORING,
            shape=session.spec.shape,
            members=() if refused else (member,),
            refused=dict(refused or {}),
            released=released,
        )
        await self.decide([SetHash("epoch", to_fields(record), replace=True)], stamp)

    async def restore(self, outcome: Outcome, save: Save | None = None, shards: tuple[ShardPlan, ...] = ()) -> None:
        """Write the restore decision of the epoch."""
        stamp = self.stamp()
        decision = RestoreRecord(stamp=stamp, outcome=outcome, save=save, reason="the test says so")
        fields = {"decision": to_json(decision), "n0": to_json(FetchPlan(stamp=stamp, shards=shards))}
        await self.decide([SetHash(f"restore:{self.epoch}", fields, replace=True)], stamp)

    async def keep(self, upto: Save, *keep: Save) -> None:
        """Write a keep list."""
        stamp = self.stamp()
        fields = to_fields(KeepList(stamp=stamp, upto=upto, keep=keep))
        await self.decide([SetHash("keep", fields, replace=True)], stamp)

    async def run_fresh(self, watcher: WatcherProcess, **keys: object) -> None:
        """Bring a session to its empty markers."""
        self.reports.clear()
        write_yaml(watcher.root, **keys)  # type: ignore[arg-type]
        await self.hears(lambda report: report.session is not None and report.session.state == "open")
        await self.gather()
        await self.restore(Outcome.NONE)
        await self.gather(released=True)
        await eventually(lambda: f"{JOB}-s0-n0-w0.restore" in watcher.names)


@asynccontextmanager
async def conducting(redis: str) -> AsyncIterator[Conductor]:
    """A conductor with the lease of the job."""
    bus = ZeroMQBus()
    store = RedisManifestStore(redis)
    conductor = Conductor(bus, store)
    try:
        await conductor.begin()
        yield conductor
    finally:
        await bus.close()
        await store.close()
        await asyncio.sleep(0)
