"""The shell of the holder: Want in, reads of the store in threads, leaves out."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Final, TypeVar

from checkpoint_replicator import failpoint
from checkpoint_replicator.blobs import BlobStore
from checkpoint_replicator.bus import Body, Received, Sender
from checkpoint_replicator.errors import ReplicatorError, TransientError, UnreachableError
from checkpoint_replicator.logs import Log
from checkpoint_replicator.messages import Envelope, Leaves, Message, NotYet, Offer, Party, Want
from checkpoint_replicator.records import Peer
from checkpoint_uploader.holder import (
    Absent,
    CloseShard,
    HolderEffect,
    HolderEvent,
    LeavesFailed,
    LeavesSent,
    Opened,
    OpenShard,
    ReadLeaves,
    SayNotYet,
    SendTree,
    ShardId,
    Wanted,
)
from checkpoint_uploader.metrics import UploaderMetrics
from checkpoint_uploader.progress import Progress
from checkpoint_uploader.source import BackupShard, open_backup_shard

__all__ = ["Patience", "ReadWindow"]

Answer = TypeVar("Answer")

_INBOX: Final = 256
_LOOK: Final = 0.5
"""Seconds between two looks whether reads hang."""
_AGAIN: Final = 0.05
"""Seconds before leaves that found the socket full are tried again."""
_FRAME: Final = 4 << 20
"""Bytes of one frame of a tree."""


class Patience:
    """How long is waited, in seconds: for the store without a byte, and for room in the transfer's socket."""

    def __init__(self, silent: float, room: float) -> None:
        self.silent = silent
        self.room = room


class ReadWindow:
    """Performs the holder's effects.

    Args:
        store: None where no backup root is configured; then nothing can be opened.
        me: this process as the sender, `here` as the one that a Want may be answered to.
        transfer: how to reach the local transfer.
    """

    def __init__(
        self,
        store: BlobStore | None,
        reads: int,
        *,
        me: Party,
        here: Peer,
        transfer: Sender,
        patience: Patience,
        log: Log,
        metrics: UploaderMetrics,
    ) -> None:
        self.inbox: asyncio.Queue[HolderEvent] = asyncio.Queue(_INBOX)
        self._store = store
        self._me = me
        self._here = here
        self._sender = transfer
        self._patience = patience
        self._log = log
        self._metrics = metrics
        self._pool = ThreadPoolExecutor(reads + 1, thread_name_prefix="read")
        self._shards: dict[ShardId, BackupShard] = {}
        self._calls: set[Progress] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def take(self, received: Received, want: Want) -> None:
        """Take a Want of the local transfer."""
        envelope = received.envelope
        await self.inbox.put(Wanted(envelope.job, envelope.sender, want))

    async def perform(self, effect: HolderEffect) -> None:
        """Perform one effect of the holder."""
        match effect:
            case OpenShard(shard):
                self._spawn(self._open(effect))
            case CloseShard(shard):
                self._shards.pop(shard, None)
            case SendTree(shard, to):
                text = self._shards[shard].tree.encode()
                frames = [memoryview(text)[start : start + _FRAME] for start in range(0, len(text), _FRAME)]
                self._send(shard, to, Offer(tags=(), answer_to=self._here, address=shard.address), frames)
            case ReadLeaves():
                self._spawn(self._read(effect))
            case SayNotYet(shard, to, runs, gone, reason):
                if gone:
                    self._metrics.absent.inc()
                self._send(shard, to, NotYet(address=shard.address, runs=runs, gone=gone, reason=reason))

    async def look(self) -> None:
        """Watch for ever that no read hangs.

        Raises:
            UnreachableError: one does, and could not be ended in another way; the process must end.
        """
        seen: dict[Progress, tuple[int, float]] = {}
        while True:
            await asyncio.sleep(min(_LOOK, self._patience.silent / 4))
            now = monotonic()
            seen = {call: seen.get(call, (-1, now)) for call in self._calls}
            for call, (beats, since) in seen.items():
                if call.beats != beats:
                    seen[call] = (call.beats, now)
                elif now - since >= 2 * self._patience.silent:
                    raise UnreachableError(f"a read of the backup store gave no bytes for {now - since:.0f} s")
                elif now - since >= self._patience.silent:
                    call.cancel()

    async def close(self) -> None:
        """Cancel what is under way and wait for the threads."""
        for call in self._calls:
            call.cancel()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.to_thread(self._pool.shutdown, wait=True, cancel_futures=True)

    def _spawn(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open(self, effect: OpenShard) -> None:
        shard, store = effect.shard, self._store
        if store is None:
            await self.inbox.put(Absent(shard, "no backup root is configured for this uploader", gone=True))
            return
        with failpoint.doing(effect):
            found = await self._call(
                lambda progress: open_backup_shard(store, shard.job, shard.backup, shard.address, progress)
            )
        if isinstance(found, BackupShard):
            self._shards[shard] = found
            self._log.info("backup_shard_opened", job=shard.job, backup=shard.backup, size=found.tree.size)
            await self.inbox.put(Opened(shard, found.sizes))
            return
        reason, gone = found
        self._log.warning("backup_shard_absent", job=shard.job, backup=shard.backup, reason=reason, gone=gone)
        await self.inbox.put(Absent(shard, reason, gone))

    async def _read(self, effect: ReadLeaves) -> None:
        shard, runs = effect.shard, effect.runs
        source = self._shards[shard]
        with failpoint.doing(effect):
            found = await self._call(lambda progress: source.read(runs, progress))
        if not isinstance(found, list):
            reason, gone = found
            await self.inbox.put(LeavesFailed(shard, runs, reason, gone))
            return
        self._metrics.downloaded.inc(sum(map(len, found)))
        deadline = monotonic() + self._patience.room
        while not self._send(shard, effect.to, Leaves(address=shard.address, runs=runs), found):
            if monotonic() > deadline:
                reason = f"the transfer took nothing for {self._patience.room:g} s"
                await self.inbox.put(LeavesFailed(shard, runs, reason, gone=False))
                return
            await asyncio.sleep(_AGAIN)
        await self.inbox.put(LeavesSent(shard, runs))

    async def _call(self, work: Callable[[Progress], Answer]) -> Answer | tuple[str, bool]:
        """Do it in a thread; a failure comes back as its reason and whether it is for good."""
        progress = Progress()
        self._calls.add(progress)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work, progress)
        except TransientError as error:
            return str(error), False
        except (ReplicatorError, FileNotFoundError) as error:
            return str(error) or type(error).__name__, True
        except Exception as error:  # noqa: BLE001 - a fault of ours ends this read, never the process
            self._log.exception("backup_read_broke")
            return f"{type(error).__name__}: {error}", True
        finally:
            self._calls.discard(progress)

    def _send(self, shard: ShardId, to: Party, message: Message, body: Body = ()) -> bool:
        return self._sender.send(Envelope(sender=self._me, receiver=to, job=shard.job, message=message), body)
