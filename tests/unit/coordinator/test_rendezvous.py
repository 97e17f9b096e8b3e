"""From open sessions to a release; `test_machine` plays whole stories."""

from checkpoint_replicator.ids import Epoch, Step
from checkpoint_replicator.save import Save
from checkpoint_replicator.shape import Shape
from support.coordination import Bench

SHAPE = Shape(2, 1, 1, "pytorch")


def test_a_laggard_in_a_restore_is_named_with_its_pace() -> None:
    bench = Bench()
    bench.coordinator()
    nodes = bench.cluster(2)
    for rank, node in enumerate(nodes):
        node.hold(Save(Epoch(1), Step(5)), rank, 0, SHAPE, own=True)
    nodes[1].stalled = True
    bench.run(15)
    assert bench.epoch["state"] == "restoring"
    assert "rank 1 on node-1 (stuck: 0 of 10 bytes, no progress for" in bench.epoch["reason"]
    nodes[1].alive = False
    bench.run(15)
    assert "rank 1 on node-1 (dead: no report for" in bench.epoch["reason"]
    nodes[1].alive, nodes[1].stalled = True, False
    assert bench.run(5, bench.all_running)


def test_a_plan_follows_peers_that_come_and_go() -> None:
    bench = Bench()
    bench.coordinator()
    nodes = bench.cluster(2)
    spare = bench.node("spare")
    for rank in range(2):
        spare.hold(Save(Epoch(1), Step(5)), rank, 0, SHAPE)
    for node in nodes:
        node.fetch_fault = "not yet"
    bench.run(4)
    assert [peer.host for peer in bench.view(nodes[0]).plan.shards[0].holders] == ["spare"]  # type: ignore[union-attr]
    spare.start()
    bench.run(5)
    [holder] = bench.view(nodes[0]).plan.shards[0].holders  # type: ignore[union-attr]
    assert holder.incarnation == spare.incarnation


def test_a_job_is_not_idle_because_the_clock_of_redis_jumps() -> None:
    bench = Bench()
    bench.coordinator()
    nodes = bench.cluster(2)
    assert bench.run(5, bench.all_running)
    for rank, node in enumerate(nodes):
        node.hold(Save(Epoch(1), Step(5)), rank, 0, SHAPE, own=True)
    bench.run(3)
    bench.skew = 3 * 24 * 3600.0
    bench.run(10)
    assert bench.epoch["state"] == "running"
