"""Rows about a whole job: coordinators, a model of Redis and nodes on paper, on a clock that the test moves."""

import json

import pytest

from checkpoint_coordinator.words import ReportReceived
from checkpoint_replicator.ids import Address, Epoch, Host, Incarnation, Rank, SessionId, Step, Worker
from checkpoint_replicator.messages import Fault, Held, NodeReport, Party, Saving, Service
from checkpoint_replicator.records import Outcome
from checkpoint_replicator.save import Save, ShardKey, Tag, shards_of
from checkpoint_replicator.session import Session, SessionSpec, SessionState
from checkpoint_replicator.shape import Shape
from support.coordination import JOB, Bench
from support.fake_nodes import Bucket, FakeNode


def running(
    nodes: int, *, bucket: Bucket | None = None, peers_per_node: int = 1, minutes: float | None = None
) -> tuple[Bench, list[FakeNode]]:
    """Return a job that runs, without a save."""
    bench = Bench(bucket=bucket)
    bench.coordinator()
    made = list(bench.cluster(nodes, peers_per_node=peers_per_node))
    for rank, node in enumerate(made):
        node.open(rank, Shape(nodes, 1, 1, "pytorch"), peers_per_node=peers_per_node, minutes=minutes)
    assert bench.run(10, bench.all_running)
    return bench, made


def commit(bench: Bench, nodes: list[FakeNode], step: int) -> Save:
    """Save a step everywhere and wait for its commit and for what follows."""
    (save,) = {node.save(step) for node in nodes}
    assert bench.run(10, lambda: str(save) in bench.committed())
    bench.run(3)
    return save


def step(bench: Bench, save: str) -> dict[str, str]:
    return bench.store.snapshot(JOB).hashes[f"step:{save}"]


def restarted(bench: Bench, seconds: float = 30) -> set[Save | None]:
    """Let every trainer write a new yaml; returns what they were given."""
    bench.restart()
    assert bench.run(seconds, bench.all_running)
    return {node.restored[-1][0] for node in bench.nodes.values() if node.alive and node.restored}


# ---- A: what is committed, and what is restored


def test_s01_a_step_that_failed_raises_no_floor_and_is_called_abandoned() -> None:
    bench, nodes = running(2)
    commit(bench, nodes, 10)
    nodes[0].save(20)  # the other node's trainer died amid its own
    bench.run(12)
    save = commit(bench, nodes, 15)
    assert bench.committed() == ["1.10", "1.15"]
    assert restarted(bench) == {save}
    bench.run(1)
    assert (step(bench, "1.20")["state"], step(bench, "1.15")["state"]) == ("abandoned", "committed")
    assert "rank 1 on node-1 did not save it yet" in step(bench, "1.20")["reason"]


@pytest.mark.parametrize("writes", range(1, 9))
def test_s02_after_any_write_of_the_coordinator_a_whole_save_is_left_though_a_node_dies_with_it(writes: int) -> None:
    """Copies, commit, keep list, deletion: the coordinator dies after each of its writes, a node a moment later."""
    bench, nodes = running(3)
    first = commit(bench, nodes, 1)
    coordinator = bench.coordinators[0]
    apply, left = bench.store.apply, [writes]

    def counted(*arguments: object) -> object:
        answer = apply(*arguments)  # type: ignore[arg-type]
        left[0] -= 1
        coordinator.paused = coordinator.paused or left[0] <= 0
        return answer

    bench.store.apply = counted  # type: ignore[method-assign, assignment]
    for node in nodes:
        node.save(2)
    bench.run(3)
    bench.store.apply = apply  # type: ignore[method-assign]
    coordinator.paused = True
    nodes[writes % 3].wipe()
    nodes[writes % 3].start()
    held = {tag.save for node in nodes for tag in node.held}
    whole = {
        save
        for save in held
        if {tag.key for node in nodes for tag in node.held if tag.save == save}
        == set(shards_of(Shape(3, 1, 1, "pytorch")))
    }
    assert whole
    bench.coordinator("c2")
    nodes[writes % 3].open(writes % 3, Shape(3, 1, 1, "pytorch"))
    for node in nodes:
        assert node.session is not None
        node.open(node.session.spec.rank, node.session.spec.shape)
    assert bench.run(40, bench.all_running)
    assert {node.restored[-1][0] for node in nodes} == {max(whole)}
    assert max(whole) >= first


def test_s03_a_peer_without_room_means_no_commit_anywhere_and_one_more_incomplete_save() -> None:
    bench, nodes = running(3, bucket=Bucket())
    nodes[1].copies = False
    reason = "node-0 refused the copy: no_room: 10 bytes do not fit"
    for node in nodes:
        save = node.save(1)
    nodes[1].faults = (Fault(kind="uncopied", reason=reason, save=save),)
    bench.run(15)
    assert bench.committed() == []
    assert len(bench.coordinators[0].said("save_incomplete")) == 1
    assert step(bench, "1.1")["state"] == "incomplete"
    assert step(bench, "1.1")["reason"] == f"rank 1 lacks 1 of 1 copies (to rank 0); {reason}"
    assert bench.bucket is not None
    assert bench.bucket.objects == {}
    assert bench.view(nodes[0]).keep is None or bench.view(nodes[0]).keep.upto is None  # type: ignore[union-attr]


def test_s12_a_commit_deletes_nothing_while_a_member_has_not_told_all_that_it_holds() -> None:
    bench, nodes = running(3)
    first = commit(bench, nodes, 1)
    nodes[2].complete = False  # it still scans and hashes
    commit(bench, nodes, 2)
    bench.run(60)
    assert {str(tag.save) for node in nodes for tag in node.held} == {str(first), "1.2"}
    nodes[2].complete = True
    bench.run(3)
    assert {str(tag.save) for node in nodes for tag in node.held} == {"1.2"}


def test_s17_three_laggards_are_dead_stuck_and_slow_and_only_the_dead_one_is_lost() -> None:
    bench, nodes = running(4)
    commit(bench, nodes, 1)
    for node in nodes[1:]:
        node.stalled = True
    nodes[3].moving, nodes[3].needed = 1, 1000
    bench.restart()
    bench.run(1)
    nodes[1].alive = False
    begun = bench.clock.now
    seen: dict[str, float] = {}

    def watch() -> None:
        for rank, text in bench.store.snapshot(JOB).hashes["alive"].items():
            seen.setdefault(f"{rank} {json.loads(text)['state']}", bench.clock.now - begun)

    bench.laws.append(watch)
    bench.run(19)
    assert Host("node-1") in bench.coordinators[0].machine.desk.live
    bench.run(5)
    assert bench.coordinators[0].machine.desk.live == {"node-0", "node-2", "node-3"}
    assert 6 <= seen["1 dead"] <= 8
    assert 9 <= seen["2 stuck"] <= 12
    assert {name for name in seen if name[0] in "03"} == {"0 ok", "3 slow"}
    assert "2 dead" not in seen
    reason = bench.epoch["reason"]
    assert "rank 1 on node-1 (dead: no report for" in reason
    assert "rank 2 on node-2 (stuck: 0 of 10 bytes, no progress for" in reason
    assert "rank 3 on node-3 (slow: " in reason


def test_s20_a_save_that_only_one_node_began_is_not_the_newest_though_its_number_is() -> None:
    bench, nodes = running(2)
    save = commit(bench, nodes, 7)
    nodes[0].save(999_999)
    bench.run(1)
    assert restarted(bench) == {save}
    assert [(str(one.save), one.reason) for one in bench.restore.rejected] == [("1.999999", "missing n1/w0")]


def test_s30_a_job_that_dies_more_often_than_its_interval_is_backed_up_all_the_same() -> None:
    bucket = Bucket()
    bench, nodes = running(2, bucket=bucket, minutes=1)
    number = 1
    for crash in range(5):
        for _ in range(4):
            bench.run(10)
            for node in nodes:
                node.save(number)
            number += 1
        for coordinator in bench.coordinators:
            coordinator.paused = True
        bench.coordinator(f"after-{crash}")
        for rank, node in enumerate(nodes):
            node.start()
            node.open(rank, Shape(2, 1, 1, "pytorch"), minutes=1)
        assert bench.run(30, bench.all_running)
    assert sum("MANIFEST.json" in objects for objects in bucket.objects.values()) >= 3


def test_s30_a_first_upload_that_fails_is_tried_again_within_a_minute_and_an_old_backup_is_an_alarm() -> None:
    bucket = Bucket()
    bench, nodes = running(2, bucket=bucket, minutes=1)
    bucket.fault = "503 slow down"
    commit(bench, nodes, 1)
    bench.run(10)
    bucket.fault = None
    assert bench.run(60, lambda: "lastbackup" in bench.store.snapshot(JOB).hashes)
    assert not bench.coordinators[0].said("backup_overdue")
    bucket.fault = "503 slow down"
    commit(bench, nodes, 2)
    assert bench.run(125, lambda: bool(bench.coordinators[0].said("backup_overdue")))
    assert "expected one each 1 minutes" in str(bench.coordinators[0].said("backup_overdue")[0])
    bench.run(60)
    assert len(bench.coordinators[0].said("backup_overdue")) == 1


def test_s26_three_failed_saves_in_a_row_are_an_alarm_and_stop_no_trainer() -> None:
    bench, nodes = running(2)
    commit(bench, nodes, 1)
    nodes[1].copies = False
    for number in (2, 3, 4):
        for node in nodes:
            node.save(number)
        bench.run(12)
    (alarm,) = bench.coordinators[0].said("saves_failing")
    assert "3 saves failed since save 1.1" in str(alarm)
    assert [node.failed for node in nodes] == [None, None]
    nodes[1].copies = True
    commit(bench, nodes, 5)
    assert len(bench.coordinators[0].said("saves_failing")) == 1


# ---- what an earlier replicator did


def test_fault_1_a_node_that_dies_amid_its_copies_holds_up_nobody_and_comes_back_with_all_the_others() -> None:
    """There the others waited for ever without a word, and the one that was started again died of an answer."""
    bench, nodes = running(4)
    first = commit(bench, nodes, 1)
    nodes[2].copies = False
    for node in nodes:
        node.save(2)
    nodes[2].alive = False  # its ramdisk survives
    bench.run(25)
    assert bench.committed() == [str(first)]
    assert "rank 2" in step(bench, "1.2")["reason"]
    nodes[2].start()
    nodes[2].copies = True
    bench.run(3)
    assert bench.committed() == [str(first), "1.2"]  # alone, without a new yaml anywhere
    nodes[2].open(2, Shape(4, 1, 1, "pytorch"))
    bench.run(5)
    reason = bench.epoch["reason"]
    assert "ranks 0, 1, 3 still running in epoch 1" in reason
    for rank in (0, 1, 3):
        nodes[rank].open(rank, Shape(4, 1, 1, "pytorch"))
    assert bench.run(10, bench.all_running)
    assert {str(node.restored[-1][0]) for node in nodes} == {"1.2"}


def test_fault_2_a_node_that_is_dead_before_its_save_blocks_nobody() -> None:
    bench, nodes = running(4)
    first = commit(bench, nodes, 1)
    nodes[2].alive = False
    for node in (nodes[0], nodes[1], nodes[3]):
        node.save(2)
    bench.run(30)
    assert bench.committed() == [str(first)]
    assert "rank 2 on node-2 did not save it yet" in step(bench, "1.2")["reason"]
    fresh = bench.node("spare")
    fresh.open(2, Shape(4, 1, 1, "pytorch"))
    for rank in (0, 1, 3):
        nodes[rank].open(rank, Shape(4, 1, 1, "pytorch"))
    assert bench.run(60, bench.all_running)
    assert {node.restored[-1][0] for node in (*nodes[:2], nodes[3], fresh)} == {first}


def test_fault_3_without_any_coordinator_nothing_is_lost_and_the_next_one_goes_on() -> None:
    bench, nodes = running(3)
    first = commit(bench, nodes, 1)
    bench.coordinators[0].paused = True
    for node in nodes:
        node.save(2)
    bench.run(300)
    assert {str(tag.save) for node in nodes for tag in node.held} == {str(first), "1.2"}
    assert [node.failed for node in nodes] == [None] * 3
    bench.coordinator("c2")
    assert bench.run(15, lambda: "1.2" in bench.committed())
    assert [len(node.restored) for node in nodes] == [1, 1, 1]


def test_fault_6_a_peer_out_of_space_costs_neither_the_older_save_nor_the_newer_one() -> None:
    """There the newer save was called replicated and the older one deleted; then both were gone with one node."""
    bench, nodes = running(2)
    first = commit(bench, nodes, 1)
    nodes[0].copies = False  # its peer has no room
    for node in nodes:
        node.save(2)
    bench.run(20)
    assert bench.committed() == [str(first)]
    assert {str(tag.save) for tag in nodes[1].held} == {"1.1", "1.2"}
    nodes[0].wipe()
    nodes[0].start()
    nodes[0].open(0, Shape(2, 1, 1, "pytorch"))
    nodes[1].open(1, Shape(2, 1, 1, "pytorch"))
    assert bench.run(60, bench.all_running)
    assert {node.restored[-1][0] for node in nodes} == {first}
    assert [(str(one.save), one.reason) for one in bench.restore.rejected] == [("1.2", "missing n0/w0")]


def test_fault_13_both_nodes_of_a_pair_are_lost_and_the_survivors_data_stays() -> None:
    bench, nodes = running(4)
    save = commit(bench, nodes, 1)
    holders = [node for node in nodes if any(tag.key.rank == 0 for tag in node.held)]
    assert len(holders) == 2
    survivors = [node for node in nodes if node not in holders]
    before = {node.host: set(node.held) for node in survivors}
    for node in holders:
        node.wipe()
        node.start()
    for rank, node in enumerate(nodes):
        node.open(rank, Shape(4, 1, 1, "pytorch"))
    assert bench.run(60, lambda: all(node.failed is not None for node in nodes))
    assert bench.restore.outcome is Outcome.LOST
    assert all(f"save {save}" in str(node.failed) and "n0/w0" in str(node.failed) for node in nodes)
    assert {node.host: set(node.held) for node in survivors} == before


def test_fault_14_step_0_survives_a_restart_and_the_next_save_commits() -> None:
    bench, nodes = running(2)
    save = commit(bench, nodes, 0)
    assert restarted(bench) == {save}
    assert all(any(tag.save == save for tag in node.held) for node in nodes)
    assert str(commit(bench, nodes, 1)) == "2.1"


def test_fault_18_nodes_that_save_different_steps_wait_for_nothing_and_the_next_common_one_commits() -> None:
    bench, nodes = running(2)
    first = commit(bench, nodes, 4)
    nodes[0].save(6)
    nodes[1].save(5)
    bench.run(30)
    assert bench.committed() == [str(first)]
    assert [node.failed for node in nodes] == [None, None]
    assert "rank 1 on node-1 did not save it yet" in step(bench, "1.6")["reason"]
    assert "rank 0 on node-0 did not save it yet" in step(bench, "1.5")["reason"]
    commit(bench, nodes, 7)
    assert {str(tag.save) for node in nodes for tag in node.held} == {"1.7"}


def test_fault_19_one_of_two_workers_skips_a_save_and_nothing_ends() -> None:
    bench = Bench()
    bench.coordinator()
    nodes = list(bench.cluster(2, workers=2))
    assert bench.run(10, bench.all_running)
    commit(bench, nodes, 1)
    for node in nodes:
        assert node.session is not None
        save, shape = Save(node.session.epoch, Step(2)), node.session.spec.shape
        for worker in range(2 if node is nodes[0] else 1):
            node.hold(save, node.session.spec.rank, worker, shape, own=True)
    bench.run(15)
    assert bench.committed() == ["1.1"]
    assert step(bench, "1.2")["reason"] == "rank 1 on node-1 did not save it yet"
    commit(bench, nodes, 3)
    assert step(bench, "1.2")["state"] == "abandoned"
    assert bench.coordinators[0].machine.active


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (Shape(2, 1, 1, "pytorch"), Shape(4, 1, 1, "pytorch"), ("2 nodes", "4 nodes")),
        (Shape(2, 1, 1, "pytorch"), Shape(2, 1, 1, "pytorch.distributed"), ("pytorch", "pytorch.distributed")),
        (Shape(2, 1, 1, "pytorch"), Shape(2, 2, 1, "pytorch"), ("1 worker", "2 workers")),
    ],
)
def test_fault_32_nodes_that_disagree_are_told_so_naming_both(
    first: Shape, second: Shape, words: tuple[str, str]
) -> None:
    bench = Bench()
    bench.coordinator()
    nodes = [bench.node("a"), bench.node("b")]
    nodes[0].open(0, first)
    nodes[1].open(1, second)
    assert bench.run(15, lambda: all(node.failed is not None for node in nodes))
    assert nodes[0].failed == nodes[1].failed
    assert all(word in str(nodes[0].failed) for word in words)


@pytest.mark.parametrize("fault", ["file:///backup: no such directory", "file:///backup: is a file"])
def test_fault_33_a_backup_root_that_is_none_is_named_and_stops_no_job_that_runs(fault: str) -> None:
    bucket = Bucket()
    bucket.fault = fault
    bench = Bench(bucket=bucket)
    bench.coordinator()
    nodes = list(bench.cluster(2))
    bench.run(40)
    assert bench.restore.outcome is Outcome.UNKNOWN  # whether a backup exists is not known, so this is no first start
    assert fault in bench.restore.reason
    bucket.fault = None
    assert bench.run(30, bench.all_running)
    bucket.fault = fault
    for number in (1, 2, 3):
        commit(bench, nodes, number)
    assert bucket.objects == {}
    assert bench.coordinators[0].machine.active
    bucket.fault = None
    assert bench.run(60, lambda: "lastbackup" in bench.store.snapshot(JOB).hashes)


def _report(**fields: object) -> NodeReport:
    return NodeReport(version=1, **fields)  # type: ignore[arg-type]


def _session(rank: int, shape: Shape) -> Session:
    spec = SessionSpec(job=JOB, rank=Rank(rank), shape=shape)
    return Session(id=SessionId("stranger"), spec=spec, state=SessionState.RUNNING, epoch=Epoch(1))


def _tag(step: int) -> Tag:
    key = ShardKey(Rank(0), Worker(0))
    return Tag(JOB, Save(Epoch(1), Step(step)), SHAPE, key, Address("e" * 64), 10)


SHAPE = Shape(2, 1, 1, "pytorch")


@pytest.mark.parametrize(
    "report",
    [
        _report(),
        _report(held=(Held(tag=_tag(9), own=True), Held(tag=_tag(2), own=False))),
        _report(saving=(Saving(save=Save(Epoch(1), Step(9)), key=ShardKey(Rank(0), Worker(0))),)),
        _report(faults=(Fault(kind="uncopied", reason="", save=Save(Epoch(7), Step(9))),)),
        _report(session=_session(1 << 30, SHAPE)),
        _report(session=_session(-1, SHAPE)),
        _report(rank=Rank(77)),
        _report(newest_committed=Save(Epoch(1), Step(1 << 40))),
    ],
    ids=[
        "nothing",
        "other steps",
        "saving",
        "a fault",
        "rank beyond",
        "rank below",
        "rank alone",
        "a commit nobody knows",
    ],
)
def test_fault_39_a_bogus_report_of_a_stranger_stops_neither_the_coordinator_nor_a_node(report: NodeReport) -> None:
    bench, nodes = running(2)
    commit(bench, nodes, 1)
    stranger = Party(host=Host("stranger"), service=Service.WATCHER, incarnation=Incarnation("x"))
    bench.coordinators[0].hear(ReportReceived(stranger, report))
    commit(bench, nodes, 2)
    assert [node.failed for node in nodes] == [None, None]
    assert bench.coordinators[0].machine.active
