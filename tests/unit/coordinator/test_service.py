"""The wiring's own decisions; the whole of it runs in `tests/integration/test_coordinator.py`."""

import asyncio

import structlog
from prometheus_client import CollectorRegistry

from checkpoint_coordinator.config import CoordinatorConfig
from checkpoint_coordinator.service import Coordinator
from checkpoint_replicator.ids import Job
from support.memory_store import MemoryManifestStore, StoreModel


class FakeRuntime:
    """What the wiring looks at before any socket is bound."""

    def __init__(self) -> None:
        self.metrics = CollectorRegistry()
        self.log = structlog.get_logger()
        self.stopping = asyncio.Event()
        self.waiting: str | None = "starting"

    def set_ready(self, reason: str | None) -> None:
        self.waiting = reason


class FakeStore(MemoryManifestStore):
    address = "127.0.0.1:1"


def made(**config: object) -> tuple[Coordinator, FakeRuntime, StoreModel]:
    runtime, model = FakeRuntime(), StoreModel(lambda: 0.0)
    built = CoordinatorConfig(**config)  # type: ignore[arg-type]
    return Coordinator(built, runtime, FakeStore(model)), runtime, model  # type: ignore[arg-type]


async def test_jobs_are_found_and_names_that_are_none_refused() -> None:
    coordinator, runtime, model = made(jobs=2)
    for name in ("b", "a", "../evil", "x" * 500, "c"):
        model.add_job(Job(name))
    assert await coordinator._new_jobs() == ["a", "b"]
    assert runtime.waiting is None


async def test_it_is_not_ready_while_redis_is_away() -> None:
    coordinator, runtime, model = made()
    model.down = "Redis at 127.0.0.1:1 does not answer: Connection refused"
    assert await coordinator._new_jobs() == []
    assert runtime.waiting == "Redis at 127.0.0.1:1 does not answer: Connection refused"
    model.down = None
    await coordinator._new_jobs()
    assert runtime.waiting is None


async def test_the_advertised_address_stands_in_the_lease() -> None:
    assert made()[0]._reachable("tcp://127.0.0.1:4242") == "tcp://127.0.0.1:4242"
    assert made(advertise="10.0.0.7")[0]._reachable("tcp://0.0.0.0:4242") == "tcp://10.0.0.7:4242"


async def test_work_is_left_when_the_process_is_to_end() -> None:
    coordinator, runtime, _ = made()
    endless = asyncio.Event()

    async def wait() -> int:
        await endless.wait()
        return 1

    async def done() -> int:
        return 2

    assert await coordinator._unless_stopped(done()) == 2
    runtime.stopping.set()
    assert await coordinator._unless_stopped(wait()) is None
