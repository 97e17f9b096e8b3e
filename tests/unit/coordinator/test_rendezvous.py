"""From open sessions to a release; the parts that `test_machine` does not play as whole stories."""

from checkpoint_replicator.ids import Epoch, Step
from checkpoint_replicator.save import Save
from checkpoint_replicator.shape import Shape
from support.coordination import JOB, Bench

SHAPE = Shape(2, 1, 1, "pytorch")


def epoch(bench: Bench) -> dict[str, str]:
    return bench.store.snapshot(JOB).hashes["epoch"]


def test_a_new_epoch_is_above_everything_that_anybody_saw() -> None:
    bench = Bench()
    bench.coordinator()
    nodes = bench.cluster(2)
    nodes[0].hold(Save(Epoch(7), Step(1)), 0, 0, SHAPE)
    nodes[1].newest = Save(Epoch(6), Step(1))
    for node in nodes:
        node.newest = None
    assert bench.run(5, bench.all_running)
    assert epoch(bench)["number"] == "8"


def test_a_member_that_still_hashes_is_waited_for_and_named() -> None:
    bench = Bench()
    bench.coordinator()
    nodes = bench.cluster(2)
    nodes[1].complete = False
    bench.run(10)
    assert epoch(bench)["state"] == "deciding"
    assert epoch(bench)["reason"] == "waiting for rank 1 on node-1 (still scanning and hashing)"
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


def test_a_laggard_in_a_restore_is_named_with_its_pace() -> None:
    bench = Bench()
    bench.coordinator()
    nodes = bench.cluster(2)
    for rank, node in enumerate(nodes):
        node.hold(Save(Epoch(1), Step(5)), rank, 0, SHAPE, own=True)
    nodes[1].stalled = True
    bench.run(15)
    assert epoch(bench)["state"] == "restoring"
    assert "rank 1 on node-1 (stuck: 0 of 10 bytes, no progress for" in epoch(bench)["reason"]
    nodes[1].alive = False
    bench.run(15)
    assert "rank 1 on node-1 (dead: no report for" in epoch(bench)["reason"]
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
