"""A cluster of real processes for system tests, and trainers that a test leads by the hand."""

import asyncio
import random
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from checkpoint_replicator.cluster import SERVICES, Cluster, Setting, node_services
from checkpoint_replicator.demo.content import PYTORCH
from checkpoint_replicator.demo.story import wipe
from checkpoint_replicator.demo.trainer import Plan, Trainer
from checkpoint_replicator.ids import Job
from checkpoint_replicator.status import JobStatus, Protection, read_job
from checkpoint_replicator.store.redis import RedisManifestStore
from checkpoint_replicator.supervisor import State, Supervisor

READY_WITHIN = 60.0
COMMIT_WITHIN = 40.0
SHM = Path("/dev/shm")  # noqa: S108  # mkdtemp makes a private directory in it

__all__ = ["LiveCluster", "Team", "live_cluster"]


class LiveCluster:
    """Real services under a supervisor that starts nothing again by itself: what a test kills stays dead."""

    def __init__(self, cluster: Cluster, supervisor: Supervisor, redis: str, store: RedisManifestStore) -> None:
        self.cluster = cluster
        self.supervisor = supervisor
        self.redis = redis
        self.store = store

    async def kill_node(self, node: int, services: Sequence[str] = SERVICES) -> None:
        """`kill -9` services of a node, by pid."""
        await self.supervisor.kill([name for name in node_services(node) if name.rsplit("-", 1)[1] in services])

    async def start_node(self, node: int) -> None:
        """Start a node's services again and wait until they are ready."""
        await self.start(node_services(node))

    async def start(self, names: Sequence[str]) -> None:
        """Start programs again and wait until they are ready."""
        self.supervisor.start(names)
        await self.supervisor.ready(names, deadline=READY_WITHIN)

    def wipe(self, node: int) -> None:
        """Empty a node's ramdisk, as the loss of its machine would."""
        wipe(self.cluster.ramdisk(node))

    def team(
        self,
        job: str,
        *,
        workers: int = 1,
        framework: str = PYTORCH,
        size: int = 3 << 20,
        peers: int = 1,
        backup_minutes: float = 30.0,
        timeout: float = 90.0,
    ) -> "Team":
        """Return a trainer for each node."""
        plans = (
            Plan(
                local=self.cluster.ramdisk(rank),
                job=job,
                rank=rank,
                nodes=self.cluster.nodes,
                workers=workers,
                framework=framework,
                size=size,
                peers=peers,
                backup_minutes=backup_minutes,
                timeout=timeout,
            )
            for rank in range(self.cluster.nodes)
        )
        return Team(tuple(map(Trainer, plans)))

    async def status(self, job: str) -> JobStatus:
        """Return what Redis shows of the job."""
        return await read_job(self.store, Job(job))

    async def committed(self, job: str, step: int, within: float = COMMIT_WITHIN) -> JobStatus:
        """Wait until this step, or a later one, is committed, and Redis tells how the nodes are."""
        status = JobStatus(job=job)
        try:
            async with asyncio.timeout(within):
                while True:
                    status = await self.status(job)
                    known = status.protection is not Protection.UNKNOWN  # told every few seconds
                    if known and status.committed_step is not None and status.committed_step >= step:
                        return status
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"step {step} of {job} not committed within {within:g} s: {status}") from None

    async def backed_up(self, job: str, step: int, within: float = COMMIT_WITHIN) -> JobStatus:
        """Wait until this step, or a later one, is in a verified backup."""
        status = JobStatus(job=job)
        try:
            async with asyncio.timeout(within):
                while True:
                    status = await self.status(job)
                    if status.backup is not None and int(status.backup.save.rpartition(".")[2]) >= step:
                        return status
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"step {step} of {job} not backed up within {within:g} s: {status}") from None

    def said(self, name: str) -> str:
        """Return the log of a program."""
        return self.supervisor.programs[name].log.read_text(errors="replace")


class Team:
    """The trainers of all nodes, led step by step by a test."""

    def __init__(self, trainers: tuple[Trainer, ...]) -> None:
        self.trainers = trainers

    async def restore(self) -> int | None:
        """Announce, wait and compare on all nodes together; return the one step that all got."""
        steps = await asyncio.gather(*(asyncio.to_thread(trainer.restore) for trainer in self.trainers))
        assert len(set(steps)) == 1, f"nodes restored different steps: {steps}"
        return steps[0]

    async def save(self, *steps: int) -> None:
        """Save these steps on all nodes."""
        for step in steps:
            await asyncio.gather(*(asyncio.to_thread(trainer.save, step) for trainer in self.trainers))


def _directory() -> Path:
    base = Path(tempfile.mkdtemp(prefix="ckpt-test-", dir=SHM if SHM.is_dir() else None))
    (base / "backup").mkdir()
    return base


@asynccontextmanager
async def live_cluster(
    nodes: int, *, backup: bool = False, settings: dict[str, dict[str, Setting]] | None = None
) -> AsyncIterator[LiveCluster]:
    """Run a cluster in a directory of its own; at the end everything is ended and removed."""
    base = _directory()
    cluster = Cluster(
        directory=base / "a cluster",
        nodes=nodes,
        backup=f"file://{base}/backup" if backup else None,
        settings=settings or {},
    )
    redis, programs = cluster.lay_out(random.Random())
    states: list[State] = []
    try:
        async with Supervisor(programs, restart=False, watch=states.append) as supervisor:
            supervisor.start()
            await supervisor.ready(deadline=READY_WITHIN)
            store = RedisManifestStore(redis)
            try:
                yield LiveCluster(cluster, supervisor, redis, store)
            finally:
                await store.close()
    finally:
        shutil.rmtree(cluster.run, ignore_errors=True)
        shutil.rmtree(base, ignore_errors=True)
