"""Keep lists and orders; the stories are in `test_machine`."""

import json

from checkpoint_replicator.ids import Epoch, Host, Step
from checkpoint_replicator.messages import Room
from checkpoint_replicator.save import Save
from checkpoint_replicator.shape import Shape
from support.coordination import JOB, Bench

SHAPE = Shape(2, 1, 1, "pytorch")


def hashes(bench: Bench) -> dict[str, dict[str, str]]:
    return bench.store.snapshot(JOB).hashes


def restored() -> Bench:
    """Return two nodes that restored 1.5 and hold a torn 1.6."""
    bench = Bench()
    bench.coordinator()
    nodes = bench.cluster(2)
    for rank, node in enumerate(nodes):
        node.hold(Save(Epoch(1), Step(4)), rank, 0, SHAPE, own=True)
        node.hold(Save(Epoch(1), Step(5)), rank, 0, SHAPE, own=True)
    nodes[0].hold(Save(Epoch(1), Step(6)), 0, 0, SHAPE, own=True)
    assert bench.run(5, bench.all_running)
    bench.run(3)
    return bench


def saves(bench: Bench) -> set[str]:
    return {str(tag.save) for node in bench.nodes.values() for tag in node.held}


def test_after_a_release_the_restored_save_stands_for_the_newest_committed() -> None:
    bench = restored()
    assert hashes(bench)["keep"]["upto"] == "1.5"
    assert saves(bench) == {"1.5", "1.6"}


def test_newer_saves_of_older_epochs_go_when_a_save_of_this_epoch_commits() -> None:
    bench = restored()
    for node in bench.nodes.values():
        node.save(7)
    bench.run(5)
    assert saves(bench) == {"2.7"}


def test_newer_saves_of_older_epochs_go_for_room() -> None:
    bench = restored()
    bench.nodes[Host("node-1")].room = Room(size=100, free=9, reserve=10)
    bench.run(3)
    assert hashes(bench)["keep"]["upto"] == "1.5"
    assert saves(bench) == {"1.5"}


def test_nothing_goes_for_room_while_nobody_remembers_what_was_restored() -> None:
    bench = restored()
    bench.coordinators[0].paused = True
    bench.store.flush()
    fresh = bench.coordinator("c2")
    for node in bench.nodes.values():
        node.room = Room(size=100, free=9, reserve=10)
    assert bench.run(20, lambda: fresh.machine.active)
    bench.run(5)
    assert saves(bench) == {"1.5", "1.6"}


def test_a_keep_list_is_said_anew_under_a_new_lease() -> None:
    bench = restored()
    before = hashes(bench)["keep"]["stamp"]
    bench.coordinators[0].paused = True
    bench.coordinator("c2")
    bench.run(20)
    assert hashes(bench)["keep"]["upto"] == "1.5"
    assert int(hashes(bench)["keep"]["stamp"].partition(".")[0]) > int(before.partition(".")[0])


def test_no_keep_list_is_written_before_the_release() -> None:
    bench = Bench()
    bench.coordinator()
    nodes = bench.cluster(2)
    nodes[1].complete = False
    bench.run(5)
    assert "keep" not in hashes(bench)
    assert json.loads(hashes(bench)["orders"]["node-0"]).get("peers", []) == []


def test_s102_no_keep_list_comes_from_a_view_before_the_new_lease() -> None:
    bench = restored()
    nodes = list(bench.nodes.values())
    nodes[1].alive = False
    bench.coordinators[0].paused = True
    bench.coordinator("c2")
    before = hashes(bench)["keep"]
    bench.run(20)
    assert hashes(bench)["keep"] == before


def test_every_host_is_told_its_peers_with_the_release() -> None:
    bench = restored()
    orders = {host: json.loads(text) for host, text in hashes(bench)["orders"].items()}
    assert [peer["host"] for peer in orders["node-0"]["peers"]] == ["node-1"]
    assert [peer["host"] for peer in orders["node-1"]["peers"]] == ["node-0"]


def test_old_saves_leave_the_index() -> None:
    bench = Bench()
    bench.coordinator()
    nodes = bench.cluster(1, peers_per_node=0)
    bench.run(3, bench.all_running)
    for step in range(80):
        nodes[0].save(step)
        bench.run(0.5)
    bench.run(3)
    assert len(hashes(bench)["steps"]) == 64
    assert len([key for key in hashes(bench) if key.startswith("step:")]) == 64
