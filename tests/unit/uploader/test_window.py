import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog
from prometheus_client import CollectorRegistry

from checkpoint_replicator.bus import Received
from checkpoint_replicator.errors import UnreachableError
from checkpoint_replicator.ids import Address, Host, Incarnation
from checkpoint_replicator.messages import Envelope, Leaves, NotYet, Offer, Party, Run, Service, Want
from checkpoint_replicator.records import Peer
from checkpoint_replicator.tree import Tree
from checkpoint_uploader.archive import Archive
from checkpoint_uploader.holder import (
    Absent,
    CloseShard,
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
from checkpoint_uploader.window import Patience, ReadWindow
from support.backup_scene import JOB, NAME, Scene
from support.memory_blobs import MemoryBlobStore
from support.recording_sender import RecordingSender

ME = Party(host=Host("h"), service=Service.UPLOADER, incarnation=Incarnation("u"))
HERE = Peer(host=Host("h"), incarnation=Incarnation("u"), control="ipc:///u", leaves=())
ASKER = Party(host=Host("h"), service=Service.TRANSFER, incarnation=Incarnation("t"))


class Stage:
    """A window over a backup in memory."""

    def __init__(self, folder: Path) -> None:
        self.scene = Scene(folder)
        self.store = MemoryBlobStore()
        archive = Archive(self.store, self.scene.shards)
        for order in (self.scene.reserve(), self.scene.upload(0), self.scene.upload(1)):
            archive.perform(JOB, order, Progress())
        self.sender = RecordingSender()
        self.window = self.make(self.store)

    def make(self, store: MemoryBlobStore | None, silent: float = 60.0, room: float = 60.0) -> ReadWindow:
        self.registry = CollectorRegistry()
        return ReadWindow(
            store,
            2,
            me=ME,
            here=HERE,
            transfer=self.sender,
            patience=Patience(silent, room),
            log=structlog.get_logger(),
            metrics=UploaderMetrics(
                CollectorRegistry() if store is None or silent < 60 or room < 60 else self.registry
            ),
        )

    def shard(self, rank: int = 0) -> ShardId:
        return ShardId(JOB, NAME, self.scene.trees[rank].address)

    async def open(self, rank: int = 0) -> HolderEvent:
        await self.window.perform(OpenShard(self.shard(rank)))
        return await self.window.inbox.get()


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    await stage.window.close()


async def test_a_want_reaches_the_holder_with_its_asker(stage: Stage) -> None:
    want = Want(address=stage.shard().address, answer_to=HERE, tree=True, backup=NAME)
    await stage.window.take(Received(Envelope(sender=ASKER, receiver=ME, job=JOB, message=want)), want)
    assert await stage.window.inbox.get() == Wanted(JOB, ASKER, want)


async def test_a_shard_is_opened_and_its_tree_sent_as_an_offer_without_tags(stage: Stage) -> None:
    event = await stage.open(1)
    assert isinstance(event, Opened)
    assert sum(event.sizes) == stage.scene.trees[1].size
    await stage.window.perform(SendTree(stage.shard(1), ASKER))
    ((message, body),) = stage.sender.sent
    assert message == Offer(tags=(), answer_to=HERE, address=stage.shard(1).address)
    assert Tree.parse(b"".join(body)) == stage.scene.trees[1]
    assert (stage.sender.envelopes[0].receiver, stage.sender.envelopes[0].job) == (ASKER, JOB)


async def test_leaves_are_read_and_sent_a_frame_a_run_and_counted(stage: Stage) -> None:
    await stage.open()
    runs = (Run(first=2, count=1), Run(first=0, count=2))
    await stage.window.perform(ReadLeaves(stage.shard(), ASKER, runs))
    assert await stage.window.inbox.get() == LeavesSent(stage.shard(), runs)
    data = stage.scene.file.read_bytes()
    assert stage.sender.sent == [(Leaves(address=stage.shard().address, runs=runs), (data[2 << 20 :], data[: 2 << 20]))]
    assert stage.registry.get_sample_value("checkpoint_replicator_backup_downloaded_bytes_total") == len(data)


async def test_what_is_not_there_is_absent_for_good_and_a_silent_store_is_not(stage: Stage) -> None:
    missing = ShardId(JOB, NAME, Address("0" * 64))
    await stage.window.perform(OpenShard(missing))
    event = await stage.window.inbox.get()
    assert isinstance(event, Absent)
    assert event.gone

    def silent(_method: str, _name: str) -> None:
        raise UnreachableError("no answer")

    stage.store.before = silent
    assert await stage.open() == Absent(stage.shard(), "no answer", gone=False)


async def test_leaves_that_cannot_be_read_fail_with_the_reason(stage: Stage) -> None:
    await stage.open()
    runs = (Run(first=0, count=1),)
    errors = iter([UnreachableError("no answer"), FileNotFoundError("gone"), ZeroDivisionError("ours")])

    def fail(_method: str, _name: str) -> None:
        raise next(errors)

    stage.store.before = fail
    found = []
    for _ in range(3):
        await stage.window.perform(ReadLeaves(stage.shard(), ASKER, runs))
        found.append(await stage.window.inbox.get())
    assert found == [
        LeavesFailed(stage.shard(), runs, "no answer", gone=False),
        LeavesFailed(stage.shard(), runs, "gone", gone=True),
        LeavesFailed(stage.shard(), runs, "ZeroDivisionError: ours", gone=True),
    ]


async def test_leaves_that_the_transfer_does_not_take_fail_in_time(stage: Stage) -> None:
    stage.window = stage.make(stage.store, room=0.0)
    await stage.open()
    stage.sender.full = True
    await stage.window.perform(ReadLeaves(stage.shard(), ASKER, (Run(first=0, count=1),)))
    event = await stage.window.inbox.get()
    assert isinstance(event, LeavesFailed)
    assert (event.reason, event.gone) == ("the transfer took nothing for 0 s", False)


async def test_a_refusal_is_told_and_one_for_good_counted(stage: Stage) -> None:
    run = Run(first=0, count=1)
    await stage.window.perform(SayNotYet(stage.shard(), ASKER, (run,), gone=False, reason="later"))
    await stage.window.perform(SayNotYet(stage.shard(), ASKER, (), gone=True, reason="never"))
    address = stage.shard().address
    assert [message for message, _ in stage.sender.sent] == [
        NotYet(address=address, runs=(run,), reason="later"),
        NotYet(address=address, gone=True, reason="never"),
    ]
    assert stage.registry.get_sample_value("checkpoint_replicator_backup_absent_total") == 1


async def test_without_a_root_nothing_can_be_opened(stage: Stage) -> None:
    stage.window = stage.make(None)
    event = await stage.open()
    assert event == Absent(stage.shard(), "no backup root is configured for this uploader", gone=True)


async def test_a_closed_shard_is_forgotten(stage: Stage) -> None:
    await stage.open()
    await stage.window.perform(CloseShard(stage.shard()))
    await stage.window.perform(CloseShard(stage.shard()))
    assert isinstance(await stage.open(), Opened)


async def test_a_read_that_hangs_ends_the_process(stage: Stage) -> None:
    stage.window = stage.make(stage.store, silent=0.1)
    go = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hang(_method: str, _name: str) -> None:
        asyncio.run_coroutine_threadsafe(go.wait(), loop).result()

    stage.store.before = hang
    await stage.window.perform(OpenShard(stage.shard()))
    with pytest.raises(UnreachableError, match="gave no bytes") as raised:
        await stage.window.look()
    assert raised.value.exit_code == 75
    go.set()
    assert isinstance(await stage.window.inbox.get(), Absent)
