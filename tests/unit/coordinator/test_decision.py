"""What all nodes of an epoch restore; `test_machine` plays whole stories."""

from checkpoint_replicator.ids import Epoch, Step
from checkpoint_replicator.save import Save
from checkpoint_replicator.shape import Shape
from support.coordination import Bench

SHAPE = Shape(2, 1, 1, "pytorch")


def test_a_member_that_still_hashes_is_waited_for_and_named() -> None:
    bench = Bench()
    bench.coordinator()
    nodes = bench.cluster(2)
    nodes[1].complete = False
    bench.run(10)
    assert bench.epoch["state"] == "deciding"
    assert bench.epoch["reason"] == "waiting for rank 1 on node-1 (still scanning and hashing)"
    nodes[1].complete = True
    assert bench.run(3, bench.all_running)


def test_a_save_that_is_still_hashed_somewhere_is_not_passed_over() -> None:
    bench = Bench()
    bench.coordinator()
    nodes = bench.cluster(2)
    nodes[0].hold(Save(Epoch(1), Step(5)), 0, 0, SHAPE, own=True)
    nodes[1].complete = False
    bench.run(10)
    nodes[1].hold(Save(Epoch(1), Step(5)), 1, 0, SHAPE, own=True)
    nodes[1].complete = True
    assert bench.run(5, bench.all_running)
    assert str(bench.restore.save) == "1.5"


def test_where_all_is_lost_the_ways_out_are_told_once() -> None:
    bench = Bench()
    bench.coordinator()
    nodes = bench.cluster(2)
    for step in (5, 6, 7):
        nodes[0].hold(Save(Epoch(1), Step(step)), 0, 0, SHAPE, own=True, committed=True)
    assert bench.run(40, lambda: all(node.failed for node in nodes))
    reason = bench.restore.reason
    assert reason.endswith(
        "; to begin anew: `checkpoint-replicator restore --job run --none` for one release, "
        "or `checkpoint-replicator forget --job run`"
    )
    assert reason.count("checkpoint-replicator restore") == 1
    assert "checkpoint-replicator restore" in str(nodes[0].failed)
