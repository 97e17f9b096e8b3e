"""A job is forgotten with all that its hosts have."""

from checkpoint_replicator.fence import ZERO
from checkpoint_replicator.ids import Epoch, Step
from checkpoint_replicator.records import Outcome
from checkpoint_replicator.save import Save
from checkpoint_replicator.shape import Shape
from support.coordination import JOB, Bench
from support.fake_nodes import FakeNode

SHAPE = Shape(2, 1, 1, "pytorch")
FENCE = f"ckpt:{{{JOB}}}:fence"


def trained() -> tuple[Bench, list[FakeNode]]:
    bench = Bench()
    bench.coordinator()
    nodes = list(bench.cluster(2))
    assert bench.run(10, bench.all_running)
    for node in nodes:
        node.save(1)
    assert bench.run(10, lambda: "1.1" in bench.committed())
    bench.run(3)
    return bench, nodes


def keys(bench: Bench) -> set[str]:
    return {key for key in bench.store.contents() if JOB in key}


def test_all_goes_but_the_fence() -> None:
    bench, nodes = trained()
    bench.wish("forget", ramdisks=True, force=True)
    bench.run(30)
    assert [(node.held, node.session, node.obeyed) for node in nodes] == [({}, None, ZERO)] * 2
    assert keys(bench) == {FENCE}
    assert bench.store.jobs() == frozenset()
    assert bench.coordinators[0].machine.over


def test_the_name_can_be_used_again_and_its_stamps_are_above_all_before() -> None:
    bench, nodes = trained()
    before = bench.store.snapshot(JOB).fence
    bench.wish("forget", ramdisks=True, force=True)
    bench.run(30)
    bench.coordinators.clear()
    bench.coordinator("c2")
    for rank, node in enumerate(nodes):
        node.open(rank, SHAPE)
    assert bench.run(40, bench.all_running)
    assert bench.restore.outcome is Outcome.NONE
    assert bench.restore.stamp > before


def test_a_host_that_is_slow_is_waited_for_and_named() -> None:
    bench, nodes = trained()
    nodes[1].alive = False
    bench.run(1)
    ident = bench.wish("forget", ramdisks=True, force=True)
    bench.run(8)
    answer = bench.answer(ident)
    assert answer is not None
    assert (answer.state, answer.reason) == ("taken", "waiting for node-1")
    nodes[1].alive = True
    bench.run(10)
    assert keys(bench) == {FENCE}
    assert nodes[1].held == {}


def test_a_lost_host_is_not_waited_for() -> None:
    bench, nodes = trained()
    nodes[1].alive = False
    bench.wish("forget", ramdisks=True, force=True)
    bench.run(40)
    assert keys(bench) == {FENCE}
    assert nodes[1].held != {}


def test_a_trainer_that_comes_again_stops_the_forgetting() -> None:
    bench, nodes = trained()
    nodes[1].alive = False
    bench.run(1)
    ident = bench.wish("forget", ramdisks=True, force=True)
    bench.run(3)
    nodes[1].alive = True
    nodes[1].open(1, SHAPE)
    bench.run(5)
    answer = bench.answer(ident)
    assert answer is not None
    assert (answer.state, answer.reason) == ("refused", "rank 1 on node-1 has a new session: the job goes on")
    assert {str(tag.save) for tag in nodes[1].held} == {"1.1"}
    nodes[0].open(0, SHAPE)
    assert bench.run(20, bench.all_running)
    assert nodes[0].restored[-1][0] == Save(Epoch(1), Step(1))


def test_the_next_coordinator_goes_on_with_it() -> None:
    bench, nodes = trained()
    nodes[1].alive = False
    bench.run(1)
    bench.wish("forget", ramdisks=True, force=True)
    bench.run(3)
    bench.coordinators[0].paused = True
    second = bench.coordinator("c2")
    nodes[1].alive = True
    bench.run(60)
    assert keys(bench) == {FENCE}
    assert second.machine.over
    assert nodes[1].held == {}


def test_a_job_that_no_host_has_any_more_is_forgotten_at_once() -> None:
    bench, nodes = trained()
    for node in nodes:
        node.alive = False
    bench.run(30)
    bench.wish("forget")
    bench.run(10)
    assert keys(bench) == {FENCE}


def test_an_old_order_to_forget_does_not_reach_a_later_job_of_the_same_name() -> None:
    bench, nodes = trained()
    nodes[1].alive = False
    bench.run(1)
    bench.wish("forget", ramdisks=True, force=True)
    bench.run(3)
    old = bench.store.contents()
    nodes[1].alive = True
    bench.run(30)
    assert keys(bench) == {FENCE}
    bench.coordinators.clear()
    bench.coordinator("c2")
    for rank, node in enumerate(nodes):
        node.open(rank, SHAPE)
    assert bench.run(40, bench.all_running)
    held = {node.save(5) for node in nodes}
    bench.run(10)
    bench.store.flush()
    for key, value in old.items():
        if not key.endswith(":lease"):
            bench.store.put(key, value)
    bench.run(60)
    assert {tag.save for node in nodes for tag in node.held} == held
    assert len(nodes[0].restored) == 2


def test_the_lease_of_a_forgotten_job_runs_out_so_that_no_stand_by_begins_the_job_anew() -> None:
    bench, _ = trained()
    bench.wish("forget", ramdisks=True, force=True)
    assert bench.run(30, lambda: bench.coordinators[0].machine.over)
    assert keys(bench) == {FENCE, f"ckpt:{{{JOB}}}:lease"}
    bench.run(30)
    assert keys(bench) == {FENCE}
