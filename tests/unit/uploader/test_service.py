import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import structlog
from prometheus_client import CollectorRegistry

from checkpoint_replicator.bus import Received
from checkpoint_replicator.bus.zeromq import ZeroMQBus
from checkpoint_replicator.config import load
from checkpoint_replicator.errors import UnreachableError
from checkpoint_replicator.ids import Address, Host, Incarnation
from checkpoint_replicator.messages import (
    Envelope,
    Message,
    NotYet,
    Party,
    Service,
    UploaderOrders,
    UploaderReport,
    Want,
)
from checkpoint_replicator.metrics import Health
from checkpoint_replicator.process import Runtime
from checkpoint_replicator.records import Peer
from checkpoint_uploader.config import UploaderConfig
from checkpoint_uploader.service import bounds_of, serve
from support.backup_scene import JOB, NAME, Scene
from support.memory_blobs import MemoryBlobStore
from support.memory_bus import MemoryBus, MemoryNetwork

RUN = Path("/run/test")
HOST = Host("h")


class Node:
    """An uploader in this process, and the other two services of its node."""

    def __init__(self, ramdisk: Path, store: MemoryBlobStore | None) -> None:
        network = MemoryNetwork()
        self.health = Health(60.0)
        bus = cast("ZeroMQBus", MemoryBus(network))
        self.runtime = Runtime(bus, CollectorRegistry(), structlog.get_logger(), self.health, "")
        self.config = load(UploaderConfig, flags={"host": HOST, "ramdisk": str(ramdisk), "run": str(RUN)})
        self.store = store
        self.others = MemoryBus(network)
        self.heard: asyncio.Queue[Message] = asyncio.Queue()

    def tell(self, service: Service, message: Message) -> None:
        sender = Party(host=HOST, service=service, incarnation=Incarnation("x"))
        receiver = Party(host=HOST, service=Service.UPLOADER)
        envelope = Envelope(sender=sender, receiver=receiver, job=JOB, message=message)
        assert self.others.push(f"ipc://{RUN}/uploader.sock").send(envelope)

    async def hear(self, wish: Callable[[Message], bool]) -> Message:
        while not wish(message := await self.heard.get()):
            continue
        return message


@asynccontextmanager
async def running(ramdisk: Path, store: MemoryBlobStore | None) -> AsyncIterator[Node]:
    node = Node(ramdisk, store)

    async def keep(received: Received) -> None:
        await node.heard.put(received.envelope.message)

    for name in ("watcher", "transfer"):
        await node.others.pull(f"ipc://{RUN}/{name}.sock", keep)
    task = asyncio.create_task(serve(node.config, node.runtime, store))
    try:
        while node.health.not_ready == "starting":
            await asyncio.sleep(0)
        yield node
        node.runtime.stopping.set()
        await task
    finally:
        task.cancel()
        await node.others.close()
        await node.runtime.bus.close()


async def test_orders_of_the_watcher_are_answered_to_it(tmp_path: Path) -> None:
    store = MemoryBlobStore()
    async with running(tmp_path, store) as node:
        assert node.health.not_ready is None
        (tmp_path / "shards").mkdir()
        order = Scene(tmp_path / "shards").reserve()
        node.tell(Service.WATCHER, UploaderOrders(version=1, orders=(order,)))
        report = await node.hear(
            lambda message: isinstance(message, UploaderReport) and any(result.done for result in message.results)
        )
        assert isinstance(report, UploaderReport)
        assert (report.root, report.version) == ("memory://", 1)
    assert list(store.objects) == [f"{JOB}/{NAME}/ORDER.json"]


async def test_a_want_of_the_transfer_is_answered_to_it(tmp_path: Path) -> None:
    async with running(tmp_path, MemoryBlobStore()) as node:
        assert node.health.not_ready is None
        here = Peer(host=HOST, incarnation=Incarnation("x"), control="ipc:///t", leaves=())
        address = Address("0" * 64)
        node.tell(Service.TRANSFER, Want(address=address, answer_to=here, tree=True, backup=NAME))
        answer = await node.hear(lambda message: isinstance(message, NotYet))
        assert isinstance(answer, NotYet)
        assert answer.gone


async def test_it_is_ready_when_the_store_answered_and_says_why_it_is_not(tmp_path: Path) -> None:
    store = MemoryBlobStore()

    def silent(_method: str, _name: str) -> None:
        raise UnreachableError("no answer")

    store.before = silent
    async with running(tmp_path, store) as node:
        assert node.health.not_ready == "backup store: no answer"


async def test_without_a_store_it_is_ready_at_once_and_every_order_fails(tmp_path: Path) -> None:
    async with running(tmp_path, None) as node:
        (tmp_path / "shards").mkdir()
        node.tell(Service.WATCHER, UploaderOrders(version=1, orders=(Scene(tmp_path / "shards").simple("list"),)))
        report = await node.hear(
            lambda message: isinstance(message, UploaderReport) and any(result.reason for result in message.results)
        )
        assert isinstance(report, UploaderReport)
        assert report.root is None


async def test_a_message_for_another_service_is_dropped(tmp_path: Path) -> None:
    async with running(tmp_path, None) as node:
        node.tell(Service.TRANSFER, UploaderReport(root=None))
        node.tell(Service.WATCHER, UploaderOrders(version=1))
        assert isinstance(await node.hear(lambda _: True), UploaderReport)


def test_a_shard_of_a_backup_is_open_three_times_as_long_as_a_silent_host_is_not_lost(tmp_path: Path) -> None:
    config = tmp_path / "uploader.toml"
    config.write_text(f'ramdisk = "{tmp_path}"\nreads = 3\ntimes = {{lost = "30s"}}\n')
    bounds = bounds_of(load(UploaderConfig, path=config))
    assert (bounds.reads, bounds.idle) == (3, 90.0)
