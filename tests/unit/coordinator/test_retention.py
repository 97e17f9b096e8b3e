"""Keep lists; the stories are in `test_machine`."""

import json

from checkpoint_replicator.ids import Host
from checkpoint_replicator.messages import Room
from support.coordination import Bench, restored_pair


def saves(bench: Bench) -> set[str]:
    return {str(tag.save) for node in bench.nodes.values() for tag in node.held}


def test_newer_saves_of_older_epochs_go_when_a_save_of_this_epoch_commits() -> None:
    bench = restored_pair()
    for node in bench.nodes.values():
        node.save(7)
    bench.run(5)
    assert saves(bench) == {"2.7"}


def test_newer_saves_of_older_epochs_go_for_room() -> None:
    bench = restored_pair()
    bench.nodes[Host("node-1")].room = Room(size=100, free=9, reserve=10)
    bench.run(3)
    assert bench.hashes()["keep"]["upto"] == "1.5"
    assert saves(bench) == {"1.5"}


def test_nothing_goes_for_room_while_nobody_remembers_what_was_restored() -> None:
    bench = restored_pair()
    bench.coordinators[0].paused = True
    bench.store.flush()
    fresh = bench.coordinator("c2")
    for node in bench.nodes.values():
        node.room = Room(size=100, free=9, reserve=10)
    assert bench.run(20, lambda: fresh.machine.active)
    bench.run(5)
    assert saves(bench) == {"1.5", "1.6"}


def test_a_keep_list_is_said_anew_under_a_new_lease() -> None:
    bench = restored_pair()
    before = bench.hashes()["keep"]["stamp"]
    bench.coordinators[0].paused = True
    bench.coordinator("c2")
    bench.run(20)
    assert bench.hashes()["keep"]["upto"] == "1.5"
    assert int(bench.hashes()["keep"]["stamp"].partition(".")[0]) > int(before.partition(".")[0])


def test_no_keep_list_is_written_before_the_release() -> None:
    bench = Bench()
    bench.coordinator()
    nodes = bench.cluster(2)
    nodes[1].complete = False
    bench.run(5)
    assert "keep" not in bench.hashes()
    assert json.loads(bench.hashes()["orders"]["node-0"]).get("peers", []) == []


def test_s102_no_keep_list_comes_from_a_view_before_the_new_lease() -> None:
    bench = restored_pair()
    nodes = list(bench.nodes.values())
    nodes[1].alive = False
    bench.coordinators[0].paused = True
    bench.coordinator("c2")
    before = bench.hashes()["keep"]
    bench.run(20)
    assert bench.hashes()["keep"] == before
