import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog
from prometheus_client import CollectorRegistry

from checkpoint_replicator.bus import Received
from checkpoint_replicator.errors import UnreachableError
from checkpoint_replicator.ids import Host, Incarnation
from checkpoint_replicator.messages import Envelope, Party, Service, UploaderOrders, UploaderReport
from checkpoint_uploader.archive import KINDS, Archive
from checkpoint_uploader.desk import OrderDesk
from checkpoint_uploader.failpoints import CHANGES
from checkpoint_uploader.machine import Begin, Cancel, Event, Failed, Finished, Limits, Moved, Ordered, Quit, Report
from checkpoint_uploader.metrics import UploaderMetrics
from support.backup_scene import JOB, Scene
from support.memory_blobs import MemoryBlobStore
from support.recording_sender import RecordingSender

ME = Party(host=Host("h"), service=Service.UPLOADER, incarnation=Incarnation("u"))
WATCHER = Party(host=Host("h"), service=Service.WATCHER, incarnation=Incarnation("w"))


class Stage:
    """A desk over a store in memory."""

    def __init__(self, folder: Path) -> None:
        self.scene = Scene(folder)
        self.store = MemoryBlobStore()
        self.sender = RecordingSender()
        self.registry = CollectorRegistry()
        self.desk = self.make(Archive(self.store, self.scene.shards))

    def make(self, archive: Archive | None) -> OrderDesk:
        return OrderDesk(
            archive,
            Limits(),
            me=ME,
            watcher=(WATCHER, self.sender),
            log=structlog.get_logger(),
            metrics=UploaderMetrics(self.registry),
        )

    async def answer(self) -> Event:
        return await self.desk.inbox.get()

    def count(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"checkpoint_replicator_backup_{name}", labels)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    await stage.desk.close()


async def test_the_watchers_orders_reach_the_machine_with_its_life(stage: Stage) -> None:
    orders = UploaderOrders(version=4, orders=(stage.scene.reserve(),))
    await stage.desk.take(Received(Envelope(sender=WATCHER, receiver=ME, job=JOB, message=orders)), orders)
    assert await stage.answer() == Ordered(Incarnation("w"), JOB, 4, orders.orders)


async def test_an_order_is_carried_out_and_counted(stage: Stage) -> None:
    await stage.desk.perform(Begin(JOB, stage.scene.reserve()))
    event = await stage.answer()
    assert isinstance(event, Finished)
    assert event.result.done
    assert stage.count("orders_total", kind="reserve", outcome="done") == 1
    assert stage.count("orders_active_count") == 0


@pytest.mark.parametrize("kind", [*KINDS, "shred"])
async def test_every_kind_of_order_has_its_name_in_the_metrics_and_its_failpoints(stage: Stage, kind: str) -> None:
    await stage.desk.perform(Begin(JOB, stage.scene.simple(kind)))
    event = await stage.answer()
    assert isinstance(event, Finished | Failed)
    outcome = "done" if isinstance(event, Finished) else "failed"
    strange = isinstance(event, Failed) and event.reason.startswith("order of kind 'shred', expected list, ")
    assert strange is (kind not in KINDS)
    assert (f"Begin {kind}" in CHANGES) is not strange
    assert stage.count("orders_total", kind="unknown" if strange else kind, outcome=outcome) == 1


async def test_uploaded_bytes_are_counted(stage: Stage) -> None:
    for order in (stage.scene.reserve(), stage.scene.upload(0)):
        await stage.desk.perform(Begin(JOB, order))
        await stage.answer()
    assert stage.count("uploaded_bytes_total") == stage.scene.trees[0].size


async def test_a_failure_says_whether_trying_again_may_help(stage: Stage) -> None:
    errors = iter([UnreachableError("no answer"), OSError(5, "bad ramdisk"), ZeroDivisionError("ours")])

    def fail(_method: str, _name: str) -> None:
        raise next(errors)

    stage.store.before = fail
    found = []
    for _ in range(3):
        await stage.desk.perform(Begin(JOB, stage.scene.reserve()))
        found.append(await stage.answer())
    assert found == [
        Failed(JOB, "reserve", "no answer", again=True),
        Failed(JOB, "reserve", "ramdisk: [Errno 5] bad ramdisk", again=True),
        Failed(JOB, "reserve", "ZeroDivisionError: ours", again=False),
    ]
    assert stage.count("orders_total", kind="reserve", outcome="again") == 2


async def test_a_shard_that_is_not_here_fails_for_good(stage: Stage) -> None:
    await stage.desk.perform(Begin(JOB, stage.scene.reserve()))
    await stage.answer()
    stage.scene.shards.paths.clear()
    await stage.desk.perform(Begin(JOB, stage.scene.upload(0)))
    event = await stage.answer()
    assert isinstance(event, Failed)
    assert not event.again


async def test_without_a_root_nothing_is_carried_out(stage: Stage) -> None:
    desk = OrderDesk(
        None,
        Limits(),
        me=ME,
        watcher=(WATCHER, stage.sender),
        log=structlog.get_logger(),
        metrics=UploaderMetrics(CollectorRegistry()),
    )
    await desk.perform(Begin(JOB, stage.scene.simple("list")))
    event = await desk.inbox.get()
    assert event == Failed(JOB, "list", "no backup root is configured for this uploader", again=False)
    await desk.close()


async def test_a_cancelled_order_comes_back_as_such(stage: Stage) -> None:
    inside, go = threading.Event(), threading.Event()

    def wait(_method: str, _name: str) -> None:
        inside.set()
        go.wait(10)

    stage.store.before = wait
    await stage.desk.perform(Begin(JOB, stage.scene.simple("prune")))
    await asyncio.to_thread(inside.wait, 10)
    await stage.desk.perform(Cancel(JOB, "prune"))
    go.set()
    assert await stage.answer() == Failed(JOB, "prune", "given up", again=True)
    await stage.desk.perform(Cancel(JOB, "unknown"))


async def test_progress_is_told_while_a_thread_is_at_work(stage: Stage) -> None:
    inside, go = threading.Event(), threading.Event()

    def wait(method: str, _name: str) -> None:
        if method == "list":
            inside.set()
            go.wait(10)

    stage.store.before = wait
    looking = asyncio.create_task(stage.desk.look())
    await stage.desk.perform(Begin(JOB, stage.scene.simple("list")))
    assert await stage.answer() == Moved(JOB, "list", 0)
    go.set()
    assert isinstance(await stage.answer(), Finished)
    looking.cancel()


async def test_a_report_goes_to_the_watcher_and_one_that_finds_nobody_is_lost(stage: Stage) -> None:
    report = UploaderReport(root="memory://", version=1)
    await stage.desk.perform(Report(JOB, report))
    stage.sender.full = True
    await stage.desk.perform(Report(JOB, report))
    assert [(one.sender, one.receiver, one.job, one.message) for one in stage.sender.envelopes] == [
        (ME, WATCHER, JOB, report)
    ]


async def test_the_end_of_the_process_is_an_error_with_exit_code_75(stage: Stage) -> None:
    with pytest.raises(UnreachableError, match="no bytes") as raised:
        await stage.desk.perform(Quit("no bytes"))
    assert raised.value.exit_code == 75
