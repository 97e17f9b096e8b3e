"""The plot of the demonstration: four nodes train and save, one is lost, the job starts again, all bytes come back."""

import asyncio
import random
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from checkpoint_replicator.cluster import Cluster, host_name, node_services
from checkpoint_replicator.demo.job import JobRun, JobSpec, Progress
from checkpoint_replicator.demo.stage import Board, Row, Stage
from checkpoint_replicator.errors import PermanentError, ReplicatorError, TransientError
from checkpoint_replicator.ids import Job
from checkpoint_replicator.status import JobStatus, read_job
from checkpoint_replicator.store import ManifestStore
from checkpoint_replicator.supervisor import Condition, State, Supervisor

__all__ = [
    "LeftoverError",
    "NotCommittedError",
    "Story",
    "headline",
    "holds_text",
    "services_text",
    "trainer_text",
    "wipe",
]

NODES: Final = 4
LOST: Final = 2
STEPS: Final = (1, 2, 3)
AFTER: Final = 4
POLL: Final = 0.2
READY_WITHIN: Final = 40.0
RESTORE_WITHIN: Final = 60.0
COMMIT_WITHIN: Final = 40.0


class NotCommittedError(TransientError):
    """A save was not committed by the deadline."""


class LeftoverError(PermanentError):
    """A process did not end as it should."""


class Story:
    """Plays once.

    Args:
        cluster: where; of `NODES` nodes.
        open_store: opens the manifest store at a URL.
        stage: where it is told.
        spec: what is trained.
    """

    def __init__(
        self, cluster: Cluster, open_store: Callable[[str], ManifestStore], stage: Stage, spec: JobSpec
    ) -> None:
        self.cluster = cluster
        self._open_store = open_store
        self._stage = stage
        self._spec = spec
        self._states: dict[str, State] = {}
        self._progress: dict[int, Progress] = {}
        self._status = JobStatus(job=spec.name)

    async def play(self) -> str:
        """Play to the end; return the verdict of a success.

        Raises:
            ReplicatorError: something went otherwise than it must.
        """
        began = time.monotonic()
        redis, programs = self.cluster.lay_out(random.Random())  # noqa: S311  # which port is no secret
        self._tell(f"{NODES} nodes of 3 processes, 2 coordinators, Redis at {redis}")
        self._tell(f"local directories {self.cluster.ramdisk(0)} to {host_name(NODES - 1)}")
        async with Supervisor(programs, watch=self._saw_program) as supervisor:
            supervisor.start()
            await supervisor.ready(deadline=READY_WITHIN)
            store = self._open_store(redis)
            follower = asyncio.create_task(self._follow(store), name="follow")
            try:
                await self._train(store)
                await self._lose(supervisor)
                await self._train_again(store)
            finally:
                follower.cancel()
                await asyncio.gather(follower, return_exceptions=True)
                await store.close()
            self._tell("SIGTERM to everything")
            codes = await supervisor.stop()
        bad = [f"{name} with {code}" for name, code in codes.items() if code]
        if bad:
            raise LeftoverError(f"expected exit code 0 of every process, found {', '.join(bad)}")
        size = NODES * self._spec.workers * self._spec.size / (1 << 20)
        return (
            f"step {STEPS[-1]} ({size:g} MiB) came back bit-exactly on all {NODES} nodes, "
            f"that of {host_name(LOST)} from its peers, and training went on to step {AFTER}; "
            f"{time.monotonic() - began:.0f} s"
        )

    async def _train(self, store: ManifestStore) -> None:
        self._tell(f"the job starts: a trainer on each node writes replicator.yaml (job {self._spec.name})")
        async with self._job(STEPS, expect="none") as run:
            await run.restored(RESTORE_WITHIN)
            self._tell("nothing to restore: training starts at the beginning")
            await run.finished(RESTORE_WITHIN)
            await self._committed(store, STEPS[-1])

    async def _lose(self, supervisor: Supervisor) -> None:
        host = host_name(LOST)
        self._tell(f"kill -9 of the three processes of {host}, and its ramdisk is wiped")
        await supervisor.kill(node_services(LOST))
        wipe(self.cluster.ramdisk(LOST))
        self._tell(f"an empty replacement of {host} starts")
        supervisor.start(node_services(LOST))
        await supervisor.ready(deadline=READY_WITHIN)

    async def _train_again(self, store: ManifestStore) -> None:
        self._tell("the job starts again: every trainer must get the last committed step, and compares all bytes")
        async with self._job((AFTER,), expect=str(STEPS[-1])) as run:
            step = await run.restored(RESTORE_WITHIN)
            self._tell(f"step {step} is back on all nodes, bit-exactly")
            await run.finished(RESTORE_WITHIN)
            await self._committed(store, AFTER)

    def _job(self, steps: tuple[int, ...], expect: str) -> JobRun:
        ramdisks = [self.cluster.ramdisk(node) for node in range(NODES)]
        self._progress.clear()
        return JobRun(self._spec, ramdisks, steps=steps, expect=expect, watch=self._saw_trainer)

    async def _committed(self, store: ManifestStore, step: int) -> None:
        ends = time.monotonic() + COMMIT_WITHIN
        while True:
            await self._look(store)
            found = self._status.committed_step
            if found is not None and found >= step:
                self._tell(f"step {step} is committed: every shard has its copy on another node")
                return
            if time.monotonic() > ends:
                raise NotCommittedError(f"expected step {step} to be committed, found {self._status.committed}")
            await asyncio.sleep(POLL)

    async def _follow(self, store: ManifestStore) -> None:
        while True:
            await self._look(store)
            await asyncio.sleep(POLL)

    async def _look(self, store: ManifestStore) -> None:
        try:
            self._status = await read_job(store, Job(self._spec.name))
        except ReplicatorError as error:
            self._tell(f"Redis: {error}")
        self._show()

    def _saw_program(self, state: State) -> None:
        self._states[state.name] = state
        if state.condition in {Condition.WAITING, Condition.GIVEN_UP}:
            self._tell(f"{state.name} {state.reason}")
        self._show()

    def _saw_trainer(self, progress: Progress) -> None:
        self._progress[progress.rank] = progress
        if progress.complaint:
            self._tell(f"trainer {progress.rank}: {progress.complaint}")
        self._show()

    def _tell(self, text: str) -> None:
        self._stage.tell(text)

    def _show(self) -> None:
        rows = tuple(self._row(node) for node in range(NODES))
        self._stage.show(Board(headline=headline(self._status), rows=rows))

    def _row(self, node: int) -> Row:
        return Row(
            node=host_name(node),
            services=services_text([self._states.get(name) for name in node_services(node)]),
            trainer=trainer_text(self._progress.get(node)),
            holds=holds_text(self.cluster.ramdisk(node)),
        )


def headline(status: JobStatus) -> str:
    """Say in a line how the job stands."""
    if status.epoch == 0:
        return f"job {status.job}: {'waits for all its trainers' if status.state == 'gathering' else 'not known yet'}"
    committed = "nothing committed yet"
    if status.committed is not None:
        committed = f"step {status.committed_step} committed, {status.protection}"
    return f"job {status.job}: epoch {status.epoch} {status.state}, {committed}"


def services_text(states: list[State | None]) -> str:
    """Say how a node's services are."""
    conditions = [Condition.STOPPED if state is None else state.condition for state in states]
    if len(set(conditions)) == 1:
        return "killed" if conditions[0] is Condition.STOPPED else f"3 {conditions[0]}"
    return ", ".join(conditions)


def trainer_text(progress: Progress | None) -> str:
    """Say how a trainer is."""
    if progress is None:
        return ""
    if progress.event == "restored":
        return "nothing to restore" if progress.restored is None else f"restored step {progress.restored}, equal"
    return f"saved step {progress.saved}" if progress.event == "saved" else progress.event


def holds_text(ramdisk: Path) -> str:
    """Say which shards stand in a node's directory: `<step>:<ranks>`."""
    steps: dict[int, list[int]] = {}
    for meta in sorted(ramdisk.glob("*.meta")):
        step, rank, _ = meta.stem.rsplit("-", 3)[1:]
        steps.setdefault(int(step[1:]), []).append(int(rank[1:]))
    ordered: Mapping[int, list[int]] = dict(sorted(steps.items()))
    return "  ".join(f"step {step}: ranks {', '.join(map(str, sorted(set(ranks))))}" for step, ranks in ordered.items())


def wipe(ramdisk: Path) -> None:
    """Empty a directory, as the loss of the machine would."""
    for path in list(ramdisk.iterdir()):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
