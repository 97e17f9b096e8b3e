"""Hosts that are lost, and hosts that are only cut off: from the coordinator, from Redis, or all at once."""

import json

from checkpoint_coordinator.words import ReportReceived
from checkpoint_replicator.ids import Host, Incarnation
from checkpoint_replicator.messages import Party, Service
from checkpoint_replicator.save import Save
from checkpoint_replicator.shape import Shape
from support.coordination import JOB, Bench
from support.fake_nodes import FakeNode


def running(nodes: int) -> tuple[Bench, list[FakeNode]]:
    bench = Bench()
    bench.coordinator()
    made = list(bench.cluster(nodes))
    assert bench.run(10, bench.all_running)
    return bench, made


def commit(bench: Bench, nodes: list[FakeNode], step: int) -> Save:
    (save,) = {node.save(step) for node in nodes}
    assert bench.run(10, lambda: str(save) in bench.committed())
    bench.run(3)
    return save


def copies(nodes: list[FakeNode]) -> int:
    return sum(len(node.held) for node in nodes)


def alive(bench: Bench, name: str) -> dict[str, str]:
    found = json.loads(bench.store.snapshot(JOB).hashes["alive"][name])
    assert isinstance(found, dict)
    return found


# ---- cut off from the coordinator only


def test_who_is_cut_off_from_the_coordinator_only_is_not_replaced() -> None:
    bench, nodes = running(4)
    save = commit(bench, nodes, 1)
    before = copies(nodes)
    bench.cut_off = {nodes[3].host}
    bench.run(60)
    assert copies(nodes) == before
    assert (alive(bench, "3")["state"], alive(bench, "3")["reason"]) == ("suspect", "cut off: no beacon for 5 s")
    assert bench.store.snapshot(JOB).hashes[f"step:{save}"]["unprotected"] == "no"
    bench.cut_off = set()
    commit(bench, nodes, 2)
    assert [len(node.restored) for node in nodes] == [1] * 4


def test_who_calls_for_help_and_then_dies_is_lost_after_all() -> None:
    bench, nodes = running(4)
    commit(bench, nodes, 1)
    before = copies(nodes[:3])
    bench.cut_off = {nodes[3].host}
    bench.run(30)
    assert copies(nodes[:3]) == before
    nodes[3].alive = False
    bench.run(45)
    assert copies(nodes[:3]) > before
    assert alive(bench, "3")["state"] == "lost"


def test_a_laggard_that_is_cut_off_is_not_called_dead() -> None:
    bench, nodes = running(3)
    commit(bench, nodes, 1)
    for node in nodes:
        node.stalled = True
    bench.restart()
    bench.run(3)
    bench.cut_off = {nodes[2].host}
    bench.run(30)
    reason = bench.epoch["reason"]
    assert "rank 2 on node-2 (cut off: no beacon for 5 s)" in reason


def test_an_unranked_host_that_cannot_reach_the_coordinator_is_asked_for_until_it_is_lost() -> None:
    bench = Bench()
    spare = bench.node("spare")
    bench.cut_off = {spare.host}
    bench.coordinator()
    nodes = bench.cluster(2)
    bench.run(40)
    assert bench.restore.outcome == "unknown"
    assert "host spare without a rank (no beacon for 5 s)" in bench.restore.reason
    spare.alive = False
    assert bench.run(40, bench.all_running)
    assert bench.restore.outcome == "none"
    assert bench.restore.reason == (
        "no checkpoint anywhere; without an answer of host spare without a rank (lost, no report)"
    )
    assert all(node.restored for node in nodes)


# ---- many at once


def test_more_than_a_third_silent_together_is_no_loss_and_a_restore_is_decided_all_the_same() -> None:
    bench, nodes = running(6)
    save = commit(bench, nodes, 1)
    before = copies(nodes)
    for node in nodes[3:]:
        node.alive = False
    bench.run(90)
    assert copies(nodes) == before
    for node in nodes[3:]:
        node.start()
    bench.restart()
    nodes[5].alive = False
    fresh = bench.node("node-9")
    fresh.open(5, Shape(6, 1, 1, "pytorch"))
    assert bench.run(40, bench.all_running)
    assert fresh.restored[-1][0] == save


def test_hosts_that_are_lost_one_after_another_are_lost() -> None:
    bench, nodes = running(6)
    commit(bench, nodes, 1)
    nodes[5].alive = False
    bench.run(30)
    nodes[2].alive = False
    bench.run(30)
    holders = {rank: sum(any(t.key.rank == rank for t in n.held) for n in nodes if n.alive) for rank in range(6)}
    assert min(holders.values()) >= 2


# ---- a new coordinator


def test_a_new_coordinator_stops_no_transfer_before_it_has_heard_all() -> None:
    bench, nodes = running(3)
    commit(bench, nodes, 1)
    orders = bench.store.snapshot(JOB).hashes["orders"]
    assert '"peers":[' in orders["node-0"]
    bench.coordinators[0].paused = True
    for node in nodes[1:]:
        bench.cut_off.add(node.host)
    second = bench.coordinator("c2")
    assert bench.run(15, lambda: second.machine.active)
    bench.run(3)
    peers = {host: json.loads(text).get("peers") for host, text in orders.items()}
    found = bench.store.snapshot(JOB).hashes["orders"]
    assert {host: json.loads(text).get("peers") for host, text in found.items()} == peers
    bench.cut_off.clear()
    commit(bench, nodes, 2)


def test_a_new_coordinator_makes_the_copies_of_a_host_that_was_lost_before_it_came() -> None:
    bench, nodes = running(4)
    commit(bench, nodes, 1)
    bench.coordinators[0].paused = True
    nodes[3].alive = False
    second = bench.coordinator("c2")
    assert bench.run(15, lambda: second.machine.active)
    bench.run(10)
    assert "3" not in bench.store.snapshot(JOB).hashes["alive"]
    bench.run(20)
    holders = {rank: sum(any(t.key.rank == rank for t in n.held) for n in nodes[:3]) for rank in range(4)}
    assert holders == {0: 2, 1: 2, 2: 2, 3: 2}
    assert alive(bench, "3")["state"] == "lost"
    assert alive(bench, "3")["reason"] == "node-3 did not report to this coordinator"


def test_a_life_of_a_watcher_that_was_superseded_is_never_heard_by_the_next_coordinator_either() -> None:
    bench, nodes = running(2)
    zombie = nodes[1].incarnation
    stale = nodes[1].report()
    nodes[1].start()
    bench.run(3)
    assert str(zombie) in bench.store.snapshot(JOB).hashes["node:1"]["superseded-incarnations"]
    bench.coordinators[0].paused = True
    second = bench.coordinator("c2")
    assert bench.run(15, lambda: second.machine.active)
    bench.run(3)
    sender = Party(host=Host("node-1"), service=Service.WATCHER, incarnation=Incarnation(zombie))
    second.hear(ReportReceived(sender, stale))
    assert second.machine.desk.hearing.voices[Host("node-1")].incarnation == nodes[1].incarnation
    commit(bench, nodes, 1)
