"""The shell of the uploader's machine: orders in, threads at work, reports out."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Final

from checkpoint_replicator import failpoint
from checkpoint_replicator.bus import Received, Sender
from checkpoint_replicator.errors import ReplicatorError, TransientError, UnreachableError
from checkpoint_replicator.ids import Job
from checkpoint_replicator.logs import Log
from checkpoint_replicator.messages import BackupResult, Envelope, Party, UploaderOrders, UploaderReport
from checkpoint_replicator.quote import quote
from checkpoint_uploader.archive import KINDS, Archive
from checkpoint_uploader.machine import (
    Begin,
    Cancel,
    Effect,
    Event,
    Failed,
    Finished,
    Limits,
    Moved,
    Ordered,
    Quit,
    Report,
)
from checkpoint_uploader.metrics import UploaderMetrics
from checkpoint_uploader.progress import CancelledError, Progress

__all__ = ["OrderDesk"]

_INBOX: Final = 256
_LOOK: Final = 0.5
"""Seconds between two looks at the progress of the threads."""


class OrderDesk:
    """Performs the machine's effects.

    Args:
        archive: None where no backup root is configured; then every order fails with that reason.
        me: this process, as the sender of reports.
        watcher: who gets them.
    """

    def __init__(
        self,
        archive: Archive | None,
        limits: Limits,
        *,
        me: Party,
        watcher: tuple[Party, Sender],
        log: Log,
        metrics: UploaderMetrics,
    ) -> None:
        self.inbox: asyncio.Queue[Event] = asyncio.Queue(_INBOX)
        self._archive = archive
        self._me = me
        self._watcher, self._sender = watcher
        self._log = log
        self._metrics = metrics
        self._pool = ThreadPoolExecutor(limits.heavy + limits.light, thread_name_prefix="order")
        self._progress: dict[tuple[Job, str], Progress] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def take(self, received: Received, orders: UploaderOrders) -> None:
        """Take the watcher's orders."""
        envelope = received.envelope
        await self.inbox.put(Ordered(envelope.sender.incarnation, envelope.job, orders.version, orders.orders))

    async def perform(self, effect: Effect) -> None:
        """Perform one effect of the machine.

        Raises:
            UnreachableError: the machine wants the process to end.
        """
        match effect:
            case Begin(job, order):
                self._progress[job, order.id] = progress = Progress(self._metrics.uploaded.inc)
                task = asyncio.create_task(self._carry_out(effect, progress), name="order")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case Cancel(job, ident):
                if (running := self._progress.get((job, ident))) is not None:
                    running.cancel()
            case Report(job, report):
                self._report(job, report)
            case Quit(reason):
                raise UnreachableError(reason)

    async def look(self) -> None:
        """Tell the machine, for ever, which threads moved."""
        seen: dict[Progress, int] = {}
        while True:
            await asyncio.sleep(_LOOK)
            now = dict(self._progress)
            for (job, ident), progress in now.items():
                if seen.get(progress) != progress.beats:
                    seen[progress] = progress.beats
                    await self.inbox.put(Moved(job, ident, progress.sent))
            seen = {progress: beats for progress, beats in seen.items() if progress in now.values()}

    async def close(self) -> None:
        """Cancel what is under way and wait for the threads."""
        for progress in self._progress.values():
            progress.cancel()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.to_thread(self._pool.shutdown, wait=True, cancel_futures=True)

    def _report(self, job: Job, report: UploaderReport) -> None:
        # A report that finds no watcher is lost; the next one says it all again.
        self._sender.send(Envelope(sender=self._me, receiver=self._watcher, job=job, message=report))

    async def _carry_out(self, begin: Begin, progress: Progress) -> None:
        job, order = begin.job, begin.order
        self._metrics.active.inc()
        began = monotonic()
        try:
            event = await self._answer(begin, progress)
        finally:
            self._metrics.active.dec()
            self._progress.pop((job, order.id), None)
        seconds = round(monotonic() - began, 3)
        kind = order.kind if order.kind in KINDS else "unknown"
        fields = {"job": job, "kind": kind, "backup": quote(order.name), "order": quote(order.id), "seconds": seconds}
        match event:
            case Finished(_, result):
                self._metrics.results.labels(kind, "done").inc()
                self._log.info("backup_order_finished", **fields, size=result.size)
            case Failed(_, _, reason, again):
                self._metrics.results.labels(kind, "again" if again else "failed").inc()
                self._log.warning("backup_order_failed", **fields, reason=reason, again=again)
        await self.inbox.put(event)

    async def _answer(self, begin: Begin, progress: Progress) -> Finished | Failed:
        job, order = begin.job, begin.order
        if self._archive is None:
            return Failed(job, order.id, "no backup root is configured for this uploader", again=False)
        archive, loop = self._archive, asyncio.get_running_loop()

        def work() -> BackupResult:
            with failpoint.doing(begin):
                return archive.perform(job, order, progress)

        try:
            result: BackupResult = await loop.run_in_executor(self._pool, work)
        except CancelledError as error:
            return Failed(job, order.id, str(error), again=True)
        except (ReplicatorError, FileNotFoundError) as error:
            return Failed(job, order.id, str(error), again=isinstance(error, TransientError))
        except OSError as error:  # of the ramdisk: the store's are translated
            return Failed(job, order.id, f"ramdisk: {error}", again=True)
        except Exception as error:  # noqa: BLE001 - a fault of ours ends this order, never the process
            self._log.exception("backup_order_broke", job=job, kind=order.kind, backup=order.name)
            return Failed(job, order.id, quote(f"{type(error).__name__}: {error}"), again=False)
        return Finished(job, result)
