"""Who is in the next epoch; `test_machine` plays whole stories."""

from checkpoint_replicator.ids import Epoch, Step
from checkpoint_replicator.save import Save
from checkpoint_replicator.shape import Shape
from support.coordination import Bench

SHAPE = Shape(2, 1, 1, "pytorch")


def test_a_new_epoch_is_above_everything_that_anybody_saw() -> None:
    bench = Bench()
    bench.coordinator()
    nodes = bench.cluster(2)
    nodes[0].hold(Save(Epoch(7), Step(1)), 0, 0, SHAPE)
    nodes[1].newest = Save(Epoch(6), Step(1))
    for node in nodes:
        node.newest = None
    assert bench.run(5, bench.all_running)
    assert bench.epoch["number"] == "8"


def test_the_decision_that_stands_is_given_to_a_session_that_joins_after_a_take_over() -> None:
    bench = Bench()
    bench.coordinator()
    nodes = bench.cluster(2)
    for rank, node in enumerate(nodes):
        node.hold(Save(Epoch(1), Step(5)), rank, 0, SHAPE, own=True)
    assert bench.run(5, bench.all_running)
    stamp = bench.restore.stamp
    bench.coordinators[0].paused = True
    bench.coordinator("c2")
    bench.run(15)
    nodes[1].open(1, SHAPE)
    assert bench.run(10, bench.all_running)
    assert nodes[1].restored[-1] == (Save(Epoch(1), Step(5)), stamp)
