"""A cluster of two nodes that is kept alive over many crashes, its trainers, and the hand that does things to it."""

import asyncio
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import psutil

from checkpoint_replicator import failpoint
from checkpoint_replicator.bus.zeromq import ZeroMQBus
from checkpoint_replicator.cli.order import order
from checkpoint_replicator.cluster import Cluster, host_name, node_services
from checkpoint_replicator.demo.contract import announce, wait_for_markers
from checkpoint_replicator.demo.trainer import Plan
from checkpoint_replicator.messages import Wish
from checkpoint_replicator.store.redis import RedisManifestStore
from checkpoint_replicator.supervisor import Condition, Supervisor
from checkpoint_replicator.wishes import WishKind
from crash.auditor import RANKS, Auditor, Evidence
from crash.content import Ledger, Saved, write_step
from crash.evidence import Index, Line, read_backups, read_disk, read_index, read_jobs

__all__ = ["QUOTA", "NotReachedError", "Scene", "open_scene"]

T = TypeVar("T")

JOB: Final = "job"
QUOTA: Final = 256 << 20
"""Bytes that a ramdisk may hold."""
FRAMEWORK: Final = "pytorch.distributed"
PATIENCE: Final = 30.0
"""Seconds for anything to come; what takes as long is stuck."""
POLL: Final = 0.02
SEEN: Final = 5.0
"""Seconds within which the death of a process is seen, unless it was started again."""
ATTEMPTS: Final = 4
"""So often something is done until it comes to a point that not every time lies on its way."""
SHM: Final = Path("/dev/shm")  # noqa: S108  # mkdtemp makes a private directory in it
TIMES: Final = {
    "report-gap": "50ms",
    "report": "500ms",
    "orders": "300ms",
    "suspect": "3s",
    "lost": "8s",
    "stuck": "5s",
    "lease-renewed": "600ms",
    "lease-ttl": "2500ms",
    "lease-margin": "500ms",
    "beacon": "250ms",
    "beacon-silent": "1s",
    "scan": "300ms",
    "consumed": "20s",
    "abandoned-quiet": "500ms",
    "abandoned-most": "4s",
    "bucket-silent": "8s",
    "acknowledged": "1500ms",
    "want-parked": "500ms",
    "uploader-turn": "2s",
    "retry-least": "50ms",
    "retry-most": "500ms",
    "idle": "24h",
}
"""So short that a crash costs seconds, so long that a busy machine is no fault."""


class NotReachedError(AssertionError):
    """All went well, and nobody came to the point."""


class Scene:
    """Two nodes, two coordinators, one job that is started again and again.

    Attributes:
        step: the last that was saved.
        life: how manyth start of the job this is.
        saved: whether this life of the job saved anything.
        spoiled: something failed; nobody knows in which state all is.
    """

    def __init__(self, cluster: Cluster, supervisor: Supervisor, redis: str, hooks: Path) -> None:
        self.cluster = cluster
        self.supervisor = supervisor
        self.redis = redis
        self.auditor = Auditor()
        self.ledger = Ledger()
        self.step = 0
        self.life = 0
        self.saved = False
        self.spoiled = False
        self._hooks = hooks
        self._census: Counter[str] = Counter()
        self._counted = 0
        (hooks / "census").touch()

    async def begin(self) -> None:
        """Start the job for the first time and have one save committed."""
        assert await self.restore() is None
        self.save()
        await self.committed()

    def census(self) -> Counter[str]:
        """Every place that was passed, and how often."""
        with (self._hooks / "census").open("rb") as file:
            file.seek(self._counted)  # it grows long in a night
            whole, end, _ = file.read().rpartition(b"\n")
        self._counted += len(whole + end)
        self._census.update(whole.decode().splitlines())
        return self._census

    # ---- what trainers do

    def local(self, node: int) -> Path:
        """A node's ramdisk."""
        return self.cluster.ramdisk(node)

    async def restore(self, *, apart: bool = False) -> Line | None:
        """Start all trainers anew, or one of them later than the other; returns which (life, step) they were handed."""
        self.life += 1
        self.saved = False
        restored = await self.hand_out(RANKS, apart=apart)
        self.step = restored[1] if restored is not None else 0
        return restored

    async def hand_out(self, ranks: Iterable[int], *, apart: bool = False) -> Line | None:
        """Let trainers announce themselves, wait for their markers, and compare every byte.

        Apart: rank 0 is seen to wait for the others before they come.
        """

        async def one(rank: int) -> Saved | None:
            if apart and rank:
                await self.until("a rank to wait", lambda: self.index().epoch.get("state") == "gathering" or None)
            return await asyncio.to_thread(self._restore, rank)

        found = await asyncio.gather(*map(one, ranks))
        saves = {None if saved is None else (saved.life, saved.step) for saved in found}
        assert len(saves) == 1, f"law 2: ranks were handed different saves: {found}"
        return next(iter(saves))

    def announce(self, rank: int) -> Path:
        """Let one trainer write its yaml, and not wait for anything; returns where it stands."""
        local = self.local(rank)
        plan = Plan(local=local, job=JOB, rank=rank, nodes=len(RANKS), framework=FRAMEWORK)
        draft = local / "replicator.yaml.tmp"
        draft.write_text("".join(f"{key}: {value}\n" for key, value in plan.yaml.items()))
        return draft.rename(local / "replicator.yaml")

    async def begin_other(self, node: int, job: str) -> None:
        """Start a job of one trainer in a node's place."""
        plan = Plan(local=self.local(node), job=job, rank=0, nodes=1, peers=0, framework=FRAMEWORK)
        await asyncio.to_thread(announce, plan.local, plan.yaml, PATIENCE)
        markers = await asyncio.to_thread(wait_for_markers, plan.local, job, 0, 1, PATIENCE)
        assert markers.step is None
        for marker in markers.by_worker.values():
            marker.unlink()

    def _restore(self, rank: int) -> Saved | None:
        local = self.local(rank)
        plan = Plan(local=local, job=JOB, rank=rank, nodes=len(RANKS), framework=FRAMEWORK)
        announce(local, plan.yaml, PATIENCE)
        markers = wait_for_markers(local, JOB, rank, 1, PATIENCE)
        [marker] = markers.by_worker.values()
        if markers.step is None:
            marker.unlink()
            return None
        taken = marker.rename(local / f"step={markers.step}")
        saved = self.ledger.whose(taken.resolve())
        assert saved is not None, f"law 1: rank {rank} was handed bytes that nobody saved: {taken.name}"
        assert (saved.rank, saved.step) == (rank, markers.step), f"law 1: rank {rank} was handed the bytes of {saved}"
        return saved

    def save(self, *, wish: bool = False, again: bool = False) -> int:
        """Let all trainers save the next step, or the last one once more with other bytes; does not wait."""
        self.step += not again
        for rank in RANKS:
            self.save_one(rank, wish=wish, again=again)
        return self.step

    def save_one(self, rank: int, *, wish: bool = False, again: bool = False) -> None:
        """Let one trainer save the present step."""
        self.saved = True
        saved = Saved(self.life, self.step, rank, draft=int(again))
        write_step(self.local(rank), self.step, self.ledger.enter(saved, wish=wish))

    # ---- what people do

    async def order(self, kind: WishKind, *, job: str = JOB, **what: object) -> str:
        """Order something as a command does; returns what became of it."""
        store, bus = RedisManifestStore(self.redis), ZeroMQBus(linger=0.2)
        try:
            wish = msgspec.structs.replace(Wish(id="", kind=kind, until=0), **what)
            return await order(store, bus, job, wish, seconds=PATIENCE, tell=lambda _: None)
        finally:
            await bus.close()
            await store.close()

    # ---- what befalls services

    async def kill(self, names: Sequence[str]) -> None:
        """`kill -9` programs, by pid."""
        await self.supervisor.kill(names)

    async def start(self, names: Sequence[str]) -> None:
        """Start programs and wait until they are ready."""
        self.supervisor.start(names)
        # One that dies meanwhile, at a failpoint, is started again by whoever armed it.
        try:
            await self.until(
                f"{', '.join(names)} to be ready",
                lambda: all(self.supervisor.state(name).condition is Condition.READY for name in names) or None,
            )
        except AssertionError as error:
            states = "; ".join(
                f"{one.name}: {one.condition} {one.reason} (pid {one.pid})" for one in self.supervisor.states
            )
            raise AssertionError(f"{error}; {states}") from error

    async def terminate(self, name: str) -> None:
        """SIGTERM; it ends in its own time. One that dies meanwhile at a failpoint may be started again already."""
        life = self.supervisor.state(name).pid
        self.signal(name, signal.SIGTERM)

        def ended() -> bool | None:
            state = self.supervisor.state(name)
            return state.condition is Condition.GIVEN_UP or state.pid != life or None

        await self.until(f"{name} to end", ended)

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a program, if it lives."""
        pid = self.supervisor.state(name).pid
        if pid is not None:
            _signal(pid, number)

    async def lose(self, node: int) -> None:
        """The machine of a node is lost with its ramdisk, and an empty one comes in its place."""
        names = node_services(node)
        await self.kill(names)
        self.judge()
        self.auditor.wiped(node)
        for path in self.local(node).iterdir():
            path.unlink() if path.is_symlink() or path.is_file() else shutil.rmtree(path)
        await self.start(names)

    async def reset_times(self, names: Sequence[str], before: str, after: str) -> None:
        """Give programs another table of times: they are killed and started."""
        for name in names:
            config = self.cluster.directory / "config" / f"{name}.toml"
            text = config.read_text()
            assert before in text, f"{config} does not say {before}"
            config.write_text(text.replace(before, after))
        await self.kill(names)
        await self.start(names)

    @property
    def active(self) -> str:
        """The coordinator that holds the lease."""
        return str(self.index().lease.get("host", "coordinator-0"))

    # ---- failpoints

    async def passes(self, place: str) -> None:
        """Wait until a place is passed once more."""
        before = self.census()[place]
        await self.until(f"{place} to be passed", lambda: self.census()[place] > before or None)

    async def halted(self, point: str, act: Callable[[], object]) -> str:
        """Do something in which a process comes to this point, and stands still there; returns its name."""
        halting = self._hooks / "halting"
        (self._hooks / "halted").unlink(missing_ok=True)
        halting.with_suffix(".new").write_text(point)
        halting.with_suffix(".new").rename(halting)
        act()
        await self.until(f"a process to stand still at {point}", lambda: (self._hooks / "halted").exists() or None)
        return await self.until("a process to stand still", self._still)

    def go_on(self, name: str) -> None:
        """Let a process that stands still go on."""
        self.signal(name, signal.SIGCONT)

    def _still(self) -> str | None:
        return next((one.name for one in self.supervisor.states if one.pid is not None and _stands(one.pid)), None)

    def arm(self, point: str) -> None:
        """Let the process that comes to this point first die there."""
        armed = self._hooks / "armed"
        (self._hooks / "reached").unlink(missing_ok=True)
        armed.with_suffix(".new").write_text(point)
        armed.with_suffix(".new").rename(armed)

    def disarm(self) -> None:
        """Let all processes live."""
        (self._hooks / "armed").unlink(missing_ok=True)

    @property
    def reached(self) -> bool:
        """Whether the armed point was come to."""
        return (self._hooks / "reached").exists()

    async def death(self) -> list[str]:
        """Wait until a process died at the armed point; returns the names of all that died."""
        await self.until("the point to be reached", lambda: self.reached or None)
        return await self.until("a process to die", self._dead)

    async def crash_at(self, point: str, act: Callable[[], Coroutine[object, object, None]]) -> list[str]:
        """Do something in which the process that reaches this point dies there, and which succeeds all the same.

        Returns what the auditor finds at the very moment; then the process is started again at once.
        """
        self.arm(point)
        revived = asyncio.create_task(self._revive())
        try:
            for _ in range(ATTEMPTS):
                await act()
                if not self.reached:
                    await asyncio.sleep(5 * POLL)  # it may be on its way from what it changed to the point
                if self.reached:
                    return await revived
            raise NotReachedError(f"{point} was not reached")
        finally:
            self.disarm()
            revived.cancel()
            await asyncio.gather(revived, return_exceptions=True)

    async def _revive(self) -> list[str]:
        while not self.reached:
            await asyncio.sleep(POLL / 2)
        seen = time.monotonic()
        # Who ends a process on purpose may have started it again before its death was seen here.
        died = await self.until(
            "a process to die", lambda: self._dead() or ([] if time.monotonic() > seen + SEEN else None)
        )
        found = self.look()
        await self.start(died)
        return found

    def _dead(self) -> list[str] | None:
        states = self.supervisor.states
        return [state.name for state in states if state.condition is Condition.GIVEN_UP] or None

    # ---- what is there

    def index(self) -> Index:
        """What Redis says now."""
        return read_index(self.redis)

    def evidence(self) -> Evidence:
        """All there is, read while every service stands still."""
        with self._frozen():
            return Evidence(
                disks=[read_disk(self.local(node), self.ledger) for node in RANKS],
                backups=read_backups(self.backups, self.ledger),
                index=self.index(),
                undone=self.auditor.undone,
                forgotten=self.auditor.forgotten,
            )

    def jobs(self, node: int) -> frozenset[str]:
        """Which jobs a node says that it has to do with."""
        return read_jobs(self.redis, host_name(node))

    @property
    def backups(self) -> Path:
        """The root of the backup store."""
        return self.cluster.directory / "backup"

    def look(self) -> list[str]:
        """Let the auditor look; returns the breaches."""
        return self.auditor.look(self.evidence())

    def judge(self) -> None:
        """Fail where the auditor finds a breach."""
        breaches = self.look()
        assert not breaches, "; ".join(breaches)

    @contextmanager
    def _frozen(self) -> Iterator[None]:
        pids = [state.pid for state in self.supervisor.states if state.pid is not None and state.name != "redis"]
        living = [pid for pid in pids if not _stands(pid) and _signal(pid, signal.SIGSTOP)]
        try:
            yield
        finally:
            for pid in living:
                _signal(pid, signal.SIGCONT)

    # ---- waiting

    async def until(self, what: str, look: Callable[[], T | None], within: float = PATIENCE) -> T:
        """Ask again and again until there is an answer."""
        ends = time.monotonic() + within
        while (answer := look()) is None:
            assert time.monotonic() < ends, f"law 6: waited {within:g} s for {what}"
            await asyncio.sleep(POLL)
        return answer

    async def committed(self) -> None:
        """Wait until the last step is committed and all is at rest."""
        await self.until(f"step {self.step} to be committed", lambda: self.index().upto == self.last or None)
        await self.rest()

    @property
    def last(self) -> Line:
        """The last save, in the epoch that Redis tells."""
        return int(self.index().epoch.get("number", 0)), self.step

    async def backed_up(self) -> None:
        """Wait until the last step is in a verified backup."""
        await self.until(
            f"step {self.step} to be backed up",
            lambda: self.index().last_backup == "{}.{}".format(*self.last) or None,
        )

    async def rest(self) -> None:
        """Wait until the auditor finds nothing left to be done, then have him look at the laws too."""
        ends = time.monotonic() + PATIENCE
        while self.index().epoch.get("released") != "true" or (missing := self.auditor.quiet(self.evidence())):
            assert time.monotonic() < ends, f"not at rest within {PATIENCE:g} s: {missing}"
            await asyncio.sleep(5 * POLL)
        self.judge()


def _stands(pid: int) -> bool:
    """Tell whether a process was made to stand still."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False


def _signal(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


@asynccontextmanager
async def open_scene() -> AsyncIterator[Scene]:
    """Run a cluster in a directory of its own; at the end everything is ended and removed."""
    base = Path(tempfile.mkdtemp(prefix="ckpt-crash-", dir=SHM if SHM.is_dir() else None))
    for folder in ("backup", "hooks"):
        (base / folder).mkdir()
    times = {"times": TIMES}
    cluster = Cluster(
        directory=base,
        nodes=len(RANKS),
        backup=f"file://{base}/backup",
        ramdisk_size=f"{QUOTA}B",
        settings=dict.fromkeys(("coordinator", "watcher", "transfer", "uploader"), times),
    )
    redis, programs = cluster.lay_out(random.Random())
    os.environ[failpoint.VARIABLE] = str(base / "hooks")
    try:
        async with Supervisor(programs, restart=False) as supervisor:
            supervisor.start()
            await supervisor.ready(deadline=2 * PATIENCE)
            yield Scene(cluster, supervisor, redis, base / "hooks")
    finally:
        del os.environ[failpoint.VARIABLE]
        shutil.rmtree(cluster.run, ignore_errors=True)
        shutil.rmtree(base, ignore_errors=True)
