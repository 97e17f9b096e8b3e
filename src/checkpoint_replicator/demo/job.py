"""One start of the training job: a trainer process for each node, and what they say."""

import asyncio
import json
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from checkpoint_replicator.demo.content import PYTORCH
from checkpoint_replicator.errors import PermanentError, TransientError
from checkpoint_replicator.leash import leashed
from checkpoint_replicator.supervisor import send

__all__ = ["JobRun", "JobSpec", "JobTimeoutError", "Progress", "TrainerFailedError"]

LINE_LIMIT = 1 << 20


class TrainerFailedError(PermanentError):
    """A trainer said that it cannot go on, or died."""

    exit_code = 65


class JobTimeoutError(TransientError):
    """Trainers did not get so far by the deadline."""


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What is trained: the same for each start of the job.

    Attributes:
        size: bytes that a worker saves.
        peers: replicas wanted for each shard.
    """

    name: str
    workers: int = 1
    framework: str = PYTORCH
    size: int = 1 << 20
    peers: int = 1
    backup_minutes: float = 30.0


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far one trainer is; `code` is its exit code once it ended."""

    rank: int
    event: str = "started"
    has_restored: bool = False
    restored: int | None = None
    saved: int | None = None
    complaint: str = ""
    code: int | None = None


class JobRun:
    """Use as `async with JobRun(...) as run`: trainers start together, and none is left at exit.

    Args:
        spec: the job.
        ramdisks: the local directory of each rank, in order.
        steps: what to save, beyond what is restored.
        expect: `any`, `none` or the step that must be restored.
        pause: seconds of training before each save.
        stay: seconds that a trainer stays after its last save.
        timeout: seconds that a trainer waits for the replicator.
        watch: called at each change of a trainer's progress.
    """

    def __init__(
        self,
        spec: JobSpec,
        ramdisks: Sequence[Path],
        *,
        steps: Sequence[int] = (),
        expect: str = "any",
        pause: float = 0.3,
        stay: float = 0.0,
        timeout: float = 60.0,
        watch: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        self.spec = spec
        self.progress = [Progress(rank=rank) for rank in range(len(ramdisks))]
        self._commands = [
            _command(
                spec,
                rank,
                ramdisk,
                {
                    "nodes": len(ramdisks),
                    "steps": ",".join(map(str, steps)),
                    "expect": expect,
                    "pause": pause,
                    "stay": stay,
                    "timeout": timeout,
                },
            )
            for rank, ramdisk in enumerate(ramdisks)
        ]
        self._watch = watch
        self._changed = asyncio.Event()
        self._processes: list[Process] = []
        self._readers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        for rank, command in enumerate(self._commands):
            process = await asyncio.create_subprocess_exec(
                *leashed(command), stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, start_new_session=True, limit=LINE_LIMIT
            )
            self._processes.append(process)
            self._readers.append(asyncio.create_task(self._read(rank, process), name=f"trainer {rank}"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.kill(range(len(self._processes)))

    async def kill(self, ranks: Sequence[int]) -> None:
        """`kill -9` the trainers of these ranks."""
        for rank in ranks:
            send(self._processes[rank], signal.SIGKILL)
        await asyncio.gather(*(self._readers[rank] for rank in ranks))

    async def restored(self, deadline: float) -> int | None:
        """Wait until every trainer verified what it got; return the step, None for nothing.

        Raises:
            TrainerFailedError: one failed, or they got different steps.
            JobTimeoutError: not within `deadline` seconds.
        """
        await self._until("restored", lambda progress: progress.has_restored, deadline)
        steps = {progress.restored for progress in self.progress}
        if len(steps) != 1:
            found = ", ".join(f"rank {progress.rank} step {progress.restored}" for progress in self.progress)
            raise TrainerFailedError(f"expected one step everywhere, found {found}")
        return steps.pop()

    async def saved(self, step: int, deadline: float) -> None:
        """Wait until every trainer wrote this step.

        Raises:
            TrainerFailedError: one failed.
            JobTimeoutError: not within `deadline` seconds.
        """
        await self._until(f"saved step {step}", lambda found: found.saved is not None and found.saved >= step, deadline)

    async def finished(self, deadline: float) -> None:
        """Wait until every trainer ended well.

        Raises:
            TrainerFailedError: one failed.
            JobTimeoutError: not within `deadline` seconds.
        """
        await self._until("finished", lambda progress: progress.code == 0, deadline)

    async def _until(self, what: str, reached: Callable[[Progress], bool], deadline: float) -> None:
        try:
            async with asyncio.timeout(deadline):
                while True:
                    self._changed.clear()
                    for progress in self.progress:
                        if progress.code and not reached(progress):
                            text = progress.complaint or "without a word"
                            raise TrainerFailedError(f"rank {progress.rank} ended with {progress.code}: {text}")
                    if all(map(reached, self.progress)):
                        return
                    await self._changed.wait()
        except TimeoutError:
            late = ", ".join(f"rank {found.rank} ({found.event})" for found in self.progress if not reached(found))
            raise JobTimeoutError(f"waited {deadline:g} s for trainers to have {what}: {late}") from None

    async def _read(self, rank: int, process: Process) -> None:
        assert process.stdout is not None  # noqa: S101  # it was asked for
        async for line in process.stdout:
            self._take(rank, line.decode(errors="replace").strip())
        code = await process.wait()
        self._set(rank, code=code)

    def _take(self, rank: int, line: str) -> None:
        try:
            event = json.loads(line)
            name = event["event"]
        except (ValueError, TypeError, KeyError):
            self._set(rank, complaint=line)  # a traceback: its last line says most
            return
        match name:
            case "restored":
                self._set(rank, event=name, has_restored=True, restored=event["step"])
            case "saved":
                self._set(rank, event=name, saved=event["step"])
            case "failed" | "complained":
                self._set(rank, event=name, complaint=event["reason"])
            case _:
                self._set(rank, event=name)

    def _set(self, rank: int, **changes: Any) -> None:
        self.progress[rank] = msgspec.structs.replace(self.progress[rank], **changes)
        self._changed.set()
        self._watch(self.progress[rank])


def _command(spec: JobSpec, rank: int, ramdisk: Path, more: Mapping[str, object]) -> tuple[str, ...]:
    options: Mapping[str, object] = {
        "local": ramdisk,
        "job": spec.name,
        "rank": rank,
        "workers": spec.workers,
        "framework": spec.framework,
        "size": spec.size,
        "peers": spec.peers,
        "backup-minutes": spec.backup_minutes,
        **more,
    }
    words = (word for key, value in options.items() for word in (f"--{key}", str(value)))
    return (sys.executable, "-m", "checkpoint_replicator.demo.trainer", *words)
