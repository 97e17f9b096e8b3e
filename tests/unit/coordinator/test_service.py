"""The wiring's own decisions; the whole of it runs in `tests/integration/test_coordinator.py`."""

import asyncio

import structlog
import structlog.testing
from prometheus_client import CollectorRegistry

from checkpoint_coordinator.config import CoordinatorConfig
from checkpoint_coordinator.service import Coordinator, call_deadline
from checkpoint_replicator.ids import Job
from checkpoint_replicator.times import Times
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


async def test_a_server_that_becomes_unfit_is_told_once_and_again_when_it_is_put_right() -> None:
    coordinator, _, model = made()
    told: list[tuple[str, str]] = []
    with structlog.testing.capture_logs() as logs:
        for problems in ((), ("maxmemory: expected 9 bytes free, found 3",), ("maxmemory: found 2",), ()):
            model.problems = problems
            coordinator._check_at = float("-inf")
            await coordinator._new_jobs()
        told += [(entry["event"], entry["reason"]) for entry in logs]
    assert told == [
        ("redis_misconfigured", "maxmemory: expected 9 bytes free, found 3"),
        ("redis_put_right", "maxmemory: found 2"),
    ]


async def test_the_server_is_looked_at_now_and_then_only() -> None:
    coordinator, _, model = made()
    await coordinator._new_jobs()
    model.problems = ("maxmemory: found 2",)
    with structlog.testing.capture_logs() as logs:
        await coordinator._new_jobs()
    assert logs == []


def test_a_call_to_redis_ends_before_the_lease_permits_nothing_more() -> None:
    assert call_deadline(Times()) == 5
    assert call_deadline(Times(lease_ttl=4, lease_renewed=1, lease_margin=1)) == 2
    assert call_deadline(Times(lease_ttl=60, lease_renewed=10)) == 5
