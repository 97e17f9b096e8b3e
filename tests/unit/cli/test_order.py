"""A command's way to the coordinator and back, without processes."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from checkpoint_replicator.bus import Received
from checkpoint_replicator.cli.order import order, read_save, run_order
from checkpoint_replicator.errors import NoJobError, RefusedError, UnknownJobError, UnreachableError
from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Epoch, Host, Incarnation, Job, Step
from checkpoint_replicator.messages import Service, Wish
from checkpoint_replicator.records import Lease
from checkpoint_replicator.save import Save
from checkpoint_replicator.store import Change, Delete, SetHash
from checkpoint_replicator.store.fields import to_json
from checkpoint_replicator.wishes import WishAnswer, WishKind, WishState
from support.memory_bus import MemoryBus, MemoryNetwork
from support.memory_store import MemoryManifestStore, StoreModel

JOB = Job("llama")
HOLD = Wish(id="", kind=WishKind.HOLD, until=0, reason="we look")


class Coordinator:
    """Hears wishes and answers them in Redis as a test says."""

    def __init__(self, bus: MemoryBus, model: StoreModel) -> None:
        self.bus = bus
        self.model = model
        self.heard: list[Received] = []
        self.answers: list[WishAnswer | None] = []
        """One is given for each time the wish comes; None: silence. The last one stands."""
        self.lease: Lease | None = None

    async def begin(self, name: str = "c1") -> None:
        endpoint = await self.bus.pull("tcp://127.0.0.1:0", self.hear)
        wanted = Lease(incarnation=Incarnation(name), token=0, host=Host("head"), reports=endpoint, beacons="tcp://x:1")
        lease = self.model.acquire(JOB, wanted, 60)
        assert isinstance(lease, Lease)
        self.lease = lease

    async def hear(self, received: Received) -> None:
        self.heard.append(received)
        wish = received.envelope.message
        assert isinstance(wish, Wish)
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            self.write(SetHash("wishes", {wish.id: to_json(answer)}))

    def write(self, *changes: Change) -> None:
        assert self.lease is not None
        stamp = Stamp(self.lease.token, Epoch(1), 1)
        assert self.model.apply(JOB, self.lease, stamp, changes) is None


class Scene:
    def __init__(self, bus: MemoryBus) -> None:
        self.model = StoreModel(lambda: 1000.0)
        self.store = MemoryManifestStore(self.model)
        self.bus = bus
        self.coordinator = Coordinator(bus, self.model)
        self.told: list[str] = []

    async def ask(self, wish: Wish = HOLD, seconds: float = 0.9) -> str:
        return await order(self.store, self.bus, JOB, wish, seconds=seconds, tell=self.told.append)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    bus = MemoryBus(MemoryNetwork())
    scene = Scene(bus)
    scene.model.add_job(JOB)
    yield scene
    await bus.close()


async def test_a_redis_that_is_away_for_a_moment_ends_no_order(scene: Scene) -> None:
    await scene.coordinator.begin()
    scene.coordinator.answers = [None, answer(WishState.DONE, "held")]
    faults = iter(["connection refused", None])
    scene.coordinator.heard.clear()

    def tell(text: str) -> None:
        scene.told.append(text)
        scene.model.down = next(faults, None)

    found = await order(scene.store, scene.bus, JOB, HOLD, seconds=2.9, tell=tell)
    assert found == "held"
    assert any("connection refused" in text for text in scene.told)


def answer(state: WishState, reason: str) -> WishAnswer:
    return WishAnswer(kind="hold", state=state, reason=reason)


async def test_a_wish_is_said_to_the_holder_of_the_lease_and_its_answer_comes_back(scene: Scene) -> None:
    await scene.coordinator.begin()
    scene.coordinator.answers = [answer(WishState.DONE, "held")]
    assert await scene.ask() == "held"
    [heard, *_] = scene.coordinator.heard
    assert heard.envelope.sender.service is Service.OPERATOR
    assert heard.envelope.job == JOB
    wish = heard.envelope.message
    assert isinstance(wish, Wish)
    assert msgspec.structs.replace(wish, id="", until=0) == HOLD
    assert wish.until == pytest.approx(1000 + 0.9 - 2)


async def test_a_wish_that_was_lost_is_said_again_under_the_same_id(scene: Scene) -> None:
    await scene.coordinator.begin()
    scene.coordinator.answers = [None, None, answer(WishState.DONE, "held")]
    assert await scene.ask(seconds=20) == "held"
    assert len({one.envelope.message.id for one in scene.coordinator.heard}) == 1  # type: ignore[union-attr]


async def test_a_refusal_is_an_error_with_its_reason(scene: Scene) -> None:
    await scene.coordinator.begin()
    scene.coordinator.answers = [answer(WishState.REFUSED, "nobody holds it")]
    with pytest.raises(RefusedError, match="nobody holds it"):
        await scene.ask()


async def test_who_is_waited_for_is_told_and_named_at_the_deadline(scene: Scene) -> None:
    await scene.coordinator.begin()
    scene.coordinator.answers = [answer(WishState.TAKEN, "waiting for node-3")]
    with pytest.raises(UnreachableError, match=r"in force, and its effect was not seen within 0.9 s: .* node-3"):
        await scene.ask()
    assert scene.told[-1] == "waiting for node-3"


async def test_without_a_coordinator_nothing_is_ordered(scene: Scene) -> None:
    with pytest.raises(UnreachableError, match=r"not taken up within 0\.5 s; no coordinator holds the job's lease"):
        await scene.ask(seconds=0.5)


async def test_a_coordinator_that_is_silent_is_named(scene: Scene) -> None:
    await scene.coordinator.begin()
    with pytest.raises(UnreachableError, match=r"nothing was ordered: .* waiting for the coordinator on head at tcp"):
        await scene.ask(seconds=0.7)


async def test_the_next_holder_of_the_lease_is_asked(scene: Scene) -> None:
    await scene.coordinator.begin()
    second = Coordinator(scene.bus, scene.model)

    async def take_over() -> None:
        while not scene.coordinator.heard:
            await asyncio.sleep(0)
        assert scene.coordinator.lease is not None
        scene.model.release(JOB, scene.coordinator.lease)
        second.answers = [answer(WishState.DONE, "held")]
        await second.begin("c2")

    asked = asyncio.create_task(scene.ask(seconds=20))
    await take_over()
    assert await asked == "held"
    assert second.heard


async def test_an_unknown_job_is_refused_and_the_known_ones_are_named() -> None:
    bus = MemoryBus(MemoryNetwork())
    scene = Scene(bus)
    with pytest.raises(NoJobError, match="no job llama; Redis knows none at all"):
        await scene.ask()
    scene.model.add_job(Job("other"))
    with pytest.raises(UnknownJobError, match="no job llama; known: other"):
        await scene.ask()
    await bus.close()


async def test_a_job_whose_keys_are_gone_is_forgotten(scene: Scene) -> None:
    await scene.coordinator.begin()
    coordinator = scene.coordinator
    coordinator.answers = [answer(WishState.TAKEN, "waiting for node-0")]
    wish = Wish(id="", kind=WishKind.FORGET, until=0, ramdisks=True)

    def gone(text: str) -> None:
        if text == "waiting for node-0":
            coordinator.write(Delete("wishes"))
            scene.model.remove_job(JOB)

    text = await order(scene.store, scene.bus, JOB, wish, seconds=20, tell=gone)
    assert text.startswith("job llama is forgotten")


async def test_a_job_that_is_forgotten_between_two_looks_is_forgotten_although_no_answer_was_seen(scene: Scene) -> None:
    await scene.coordinator.begin()
    coordinator = scene.coordinator
    wish = Wish(id="", kind=WishKind.FORGET, until=0, ramdisks=True)

    def at_once(_text: str) -> None:
        coordinator.write(Delete("wishes"))
        assert coordinator.lease is not None
        scene.model.release(JOB, coordinator.lease)
        scene.model.remove_job(JOB)

    text = await order(scene.store, scene.bus, JOB, wish, seconds=20, tell=at_once)
    assert text.startswith("job llama is forgotten")


async def test_a_redis_that_lost_its_data_before_any_answer_has_not_forgotten_the_job(scene: Scene) -> None:
    await scene.coordinator.begin()
    wish = Wish(id="", kind=WishKind.FORGET, until=0, ramdisks=True)
    flushes = [scene.model.flush]

    def flush(_text: str) -> None:
        if flushes:
            flushes.pop()()

    with pytest.raises(UnreachableError, match="nothing was ordered"):
        await order(scene.store, scene.bus, JOB, wish, seconds=1, tell=flush)


async def test_another_order_than_to_forget_is_not_done_by_the_job_being_gone(scene: Scene) -> None:
    await scene.coordinator.begin()

    def forgotten(_text: str) -> None:
        scene.model.remove_job(JOB)

    with pytest.raises(UnreachableError, match="nothing was ordered"):
        await order(scene.store, scene.bus, JOB, HOLD, seconds=1, tell=forgotten)


async def test_a_redis_that_lost_its_data_has_not_forgotten_the_job(scene: Scene) -> None:
    await scene.coordinator.begin()
    scene.coordinator.answers = [answer(WishState.TAKEN, "waiting for node-0")]
    wish = Wish(id="", kind=WishKind.FORGET, until=0, ramdisks=True)

    def flush(text: str) -> None:
        if text == "waiting for node-0":
            scene.model.flush()

    with pytest.raises(UnreachableError, match="its effect was not seen"):
        await order(scene.store, scene.bus, JOB, wish, seconds=1, tell=flush)


def test_a_name_that_is_none_of_a_job_is_refused() -> None:
    with pytest.raises(UnknownJobError, match="a job's name is 'a b'"):
        run_order("redis://127.0.0.1:1/0", "a b", 5, HOLD)


def test_saves_are_named_as_status_names_them() -> None:
    assert read_save("3.40") == Save(Epoch(3), Step(40))


@pytest.mark.parametrize("text", ["", "40", "3.40.1", "a.b"])
def test_other_names_of_saves_are_wrong_usage(text: str) -> None:
    with pytest.raises(Exception, match=r"expected EPOCH\.STEP"):
        read_save(text)
