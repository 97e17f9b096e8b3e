import copy
import json

import pytest

from checkpoint_coordinator.words import ReportReceived, StopRequested
from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Epoch, Host, Incarnation, Job, Rank, SessionId, Step
from checkpoint_replicator.messages import Fault, NodeReport, Party, Service
from checkpoint_replicator.records import EpochState, Outcome
from checkpoint_replicator.save import Save
from checkpoint_replicator.session import Session, SessionSpec, SessionState
from checkpoint_replicator.shape import Shape
from support.coordination import JOB, Bench
from support.fake_nodes import Bucket, FakeNode


def running(
    nodes: int, *, bucket: Bucket | None = None, peers_per_node: int | None = 1
) -> tuple[Bench, list[FakeNode]]:
    """Return a job that runs, without a save."""
    bench = Bench(bucket=bucket)
    bench.coordinator()
    made = list(bench.cluster(nodes, peers_per_node=peers_per_node))
    assert bench.run(10, bench.all_running)
    return bench, made


def commit(bench: Bench, nodes: list[FakeNode], step: int) -> Save:
    """Save a step everywhere and wait for its commit and for what follows."""
    saves = {node.save(step) for node in nodes}
    save = saves.pop()
    assert not saves
    assert bench.run(10, lambda: str(save) in bench.committed()), bench.store.snapshot(JOB).hashes
    bench.run(3)
    return save


# ---- start


def test_a_first_start_needs_nothing_and_releases_at_once() -> None:
    bench, nodes = running(2)
    assert bench.restore.outcome is Outcome.NONE
    assert [node.restored for node in nodes] == [[(None, bench.restore.stamp)]] * 2


def test_a_first_start_with_an_empty_bucket_is_a_first_start() -> None:
    bench, _ = running(2, bucket=Bucket())
    assert bench.restore.outcome is Outcome.NONE


@pytest.mark.parametrize("nodes", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("factor", [1, 2, 3])
def test_s36_any_number_of_nodes_saves_commits_and_restores(nodes: int, factor: int) -> None:
    bench, made = running(nodes, peers_per_node=factor)
    save = commit(bench, made, 5)
    copies = min(factor, nodes - 1)
    assert sum(len(node.held) for node in made) == nodes * (1 + copies)
    bench.restart(peers_per_node=factor)
    assert bench.run(10, bench.all_running)
    assert {node.restored[-1][0] for node in made} == {save}


def test_s11_step_zero_is_an_ordinary_step() -> None:
    bench, nodes = running(2)
    save = commit(bench, nodes, 0)
    bench.restart()
    assert bench.run(10, bench.all_running)
    assert {node.restored[-1][0] for node in nodes} == {save}


def test_who_waits_for_nodes_names_them() -> None:
    bench = Bench()
    bench.coordinator()
    bench.node("node-0").open(0, Shape(3, 1, 1, "pytorch"))
    bench.run(3)
    assert bench.epoch["reason"] == "waiting for 2 of 3 nodes: ranks 1, 2 did not come"


# ---- saves


def test_a_save_commits_and_older_ones_go() -> None:
    bench, nodes = running(4)
    for step in (1, 2, 3):
        commit(bench, nodes, step)
    for node in nodes:
        assert {str(tag.save) for tag in node.held} == {"1.3"}
        assert len(node.held) == 2


def test_s03_a_save_without_all_copies_never_commits() -> None:
    bench, nodes = running(3)
    nodes[1].copies = False
    for node in nodes:
        node.save(1)
    bench.run(15)
    assert bench.committed() == []
    record = bench.store.snapshot(JOB).hashes["step:1.1"]
    assert record["state"] == "incomplete"
    assert "rank 1 lacks 1 of 1 copies" in record["reason"]
    nodes[1].copies = True
    assert bench.run(5, lambda: bench.committed() == ["1.1"])


def test_s16_a_node_that_skips_a_step_holds_up_nothing() -> None:
    bench, nodes = running(3)
    commit(bench, nodes, 10)
    for node in nodes[:2]:
        node.save(20)
    bench.run(3)
    assert bench.committed() == ["1.10"]
    commit(bench, nodes, 30)
    records = bench.store.snapshot(JOB).hashes
    assert records["step:1.20"]["state"] == "abandoned"
    assert bench.committed() == ["1.10", "1.30"]


def test_s01_a_step_between_an_abandoned_and_a_committed_one_commits() -> None:
    bench, nodes = running(2)
    commit(bench, nodes, 10)
    nodes[0].save(20)
    bench.run(2)
    commit(bench, nodes, 15)
    assert bench.committed() == ["1.10", "1.15"]


def test_of_saves_in_flight_those_between_the_oldest_and_the_newest_are_given_up() -> None:
    bench, nodes = running(2)
    nodes[0].copies = nodes[1].copies = False
    for step in (1, 2, 3):
        for node in nodes:
            node.save(step)
    bench.run(4)
    for node in nodes:
        assert sorted(str(tag.save) for tag in node.held) == ["1.1", "1.3"]


def test_a_skipped_save_leaves_when_a_newer_one_comes_and_that_one_is_not_given_up_for_the_next() -> None:
    bench, nodes = running(2)
    nodes[0].copies = nodes[1].copies = False
    skipped = nodes[0].save(1)
    nodes[1].faults = (Fault(kind="skipped", reason="no room", save=skipped),)
    bench.run(4)
    assert {str(tag.save) for tag in nodes[0].held} == {"1.1"}  # its step may be saved again
    for step in (2, 3, 4):
        for node in nodes:
            node.save(step)
        bench.run(4)
    for node in nodes:
        assert sorted(str(tag.save) for tag in node.held) == ["1.2", "1.4"]
    nodes[0].copies = nodes[1].copies = True
    assert bench.run(5, lambda: "1.2" in bench.committed())


def test_s45_a_mutated_save_never_commits_and_says_so() -> None:
    bench, nodes = running(2)
    for node in nodes:
        save = node.save(1)
    nodes[1].faults = (Fault(kind="mutated", reason="rewritten after hashing", save=save),)
    bench.run(3)
    assert bench.committed() == []
    assert bench.store.snapshot(JOB).hashes["step:1.1"]["state"] == "mutated"


def test_a_lone_node_commits_with_its_own_copy_and_is_unprotected() -> None:
    bench, nodes = running(1)
    commit(bench, nodes, 1)
    assert bench.store.snapshot(JOB).hashes["step:1.1"]["unprotected"] == "yes"


def test_nothing_is_deleted_while_a_member_is_silent() -> None:
    bench, nodes = running(4)
    commit(bench, nodes, 1)
    for node in nodes[:3]:
        node.save(2)
    nodes[3].alive = False
    bench.run(30)
    assert all(save == Save(Epoch(1), Step(0)) or save.step < 1 for node in nodes for save in node.dropped)
    assert {str(tag.save) for node in nodes for tag in node.held} == {"1.1", "1.2"}


# ---- restore


def test_s33_an_empty_replacement_gets_the_data_of_the_dead_node() -> None:
    bench, nodes = running(4)
    save = commit(bench, nodes, 7)
    nodes[2].alive = False
    fresh = bench.node("node-9")
    bench.restart()
    fresh.open(2, Shape(4, 1, 1, "pytorch"))
    assert bench.run(30, bench.all_running)
    assert fresh.restored == [(save, bench.restore.stamp)]
    assert any(tag.key.rank == 2 for tag in fresh.held)


def test_s32_ranks_may_move_between_hosts() -> None:
    bench, nodes = running(4)
    save = commit(bench, nodes, 7)
    for rank, node in enumerate([nodes[3], nodes[0], nodes[1], nodes[2]]):
        node.open(rank, Shape(4, 1, 1, "pytorch"))
    assert bench.run(10, bench.all_running)
    for rank, node in enumerate([nodes[3], nodes[0], nodes[1], nodes[2]]):
        assert node.restored[-1][0] == save
        assert any(tag.key.rank == rank for tag in node.held)


def test_s12_an_empty_redis_and_a_silent_bucket_are_unknown_and_delete_nothing() -> None:
    bucket = Bucket()
    bucket.fault = "403 forbidden"
    bench = Bench(bucket=bucket)
    bench.coordinator()
    nodes = bench.cluster(2)
    torn = nodes[0].hold(Save(Epoch(3), Step(1)), 0, 0, Shape(2, 1, 1, "pytorch"))
    bench.run(40)
    assert bench.restore.outcome == "unknown"
    assert "403 forbidden" in bench.restore.reason
    assert torn in nodes[0].held
    assert bench.epoch["released"] != "true"
    bucket.fault = None
    assert bench.run(10, bench.all_running)
    assert bench.restore.outcome == "none"


def test_a_commit_of_which_nothing_whole_is_left_is_lost_and_fails_everywhere() -> None:
    bench, nodes = running(2)
    commit(bench, nodes, 1)
    for node in nodes:
        node.held.clear()
    bench.restart()
    assert bench.run(10, lambda: all(node.failed is not None for node in nodes))
    assert bench.restore.outcome is Outcome.LOST
    assert "save 1.1 was committed" in str(nodes[0].failed)
    bench.run(3)
    assert all(node.session is not None and node.session.state is SessionState.CLOSED for node in nodes)


def test_why_the_last_start_failed_is_told_until_trainers_come_again() -> None:
    bench, nodes = running(2)
    commit(bench, nodes, 1)
    for node in nodes:
        node.held.clear()
    bench.restart()
    assert bench.run(10, lambda: all(node.failed is not None for node in nodes))
    bench.run(10)
    assert bench.epoch["state"] == EpochState.GATHERING
    assert bench.epoch["reason"] == "no open session"
    assert bench.epoch["failure"].startswith("save 1.1 was committed")


def test_s05_what_cannot_be_completed_is_decided_again_for_all() -> None:
    bench, nodes = running(2)
    save = commit(bench, nodes, 1)
    nodes[1].fetch_fault = "leaf 3 differs"
    bench.restart()
    bench.run(1.5)
    first = bench.restore.stamp
    nodes[1].fetch_fault = None
    assert bench.run(10, bench.all_running)
    assert bench.restore.stamp >= first
    assert {node.restored[-1] for node in nodes} == {(save, bench.restore.stamp)}


def test_a_save_that_never_completes_ends_in_an_error() -> None:
    bench, nodes = running(2)
    commit(bench, nodes, 1)
    nodes[1].fetch_fault = "leaf 3 differs"
    bench.restart()
    bench.run(50)
    assert [node.failed for node in nodes] == [None, None]
    assert bench.run(60, lambda: all(node.failed is not None for node in nodes))
    assert "leaf 3 differs" in str(nodes[0].failed)


def test_s29_a_restored_save_is_unprotected_until_its_copies_are_complete() -> None:
    bench, nodes = running(4)
    save = commit(bench, nodes, 7)
    nodes[2].wipe()
    nodes[2].start()
    for node in nodes:
        node.copies = False
    bench.restart()
    nodes[2].open(2, Shape(4, 1, 1, "pytorch"))
    assert bench.run(30, bench.all_running)
    bench.run(2)
    assert bench.store.snapshot(JOB).hashes[f"step:{save}"]["unprotected"] == "yes"
    for node in nodes:
        node.copies = True
    bench.run(5)
    assert bench.store.snapshot(JOB).hashes[f"step:{save}"]["unprotected"] == "no"


def test_a_lost_hosts_copies_are_made_anew_on_another() -> None:
    bench, nodes = running(4)
    save = commit(bench, nodes, 7)
    nodes[3].alive = False
    bench.run(30)
    holders = {rank: sum(any(t.key.rank == rank for t in n.held) for n in nodes[:3]) for rank in range(4)}
    assert min(holders.values()) >= 1
    assert holders[2] == 2
    assert bench.store.snapshot(JOB).hashes[f"step:{save}"]["unprotected"] == "no"


# ---- sessions


def test_a_session_replaced_before_the_release_abandons_the_epoch_for_all() -> None:
    bench = Bench()
    bench.coordinator()
    nodes = bench.cluster(2)
    nodes[1].complete = False
    bench.run(2)
    assert bench.epoch["state"] == "deciding"
    nodes[0].open(0, Shape(2, 1, 1, "pytorch"))
    bench.run(1)
    assert bench.epoch["state"] == "gathering"
    nodes[1].complete = True
    assert bench.run(10, bench.all_running)
    assert bench.epoch["number"] == "2"


def test_a_new_session_joins_the_released_epoch_while_it_has_no_save() -> None:
    bench, nodes = running(2)
    nodes[1].start()
    nodes[1].open(1, Shape(2, 1, 1, "pytorch"))
    assert bench.run(5, bench.all_running)
    assert bench.epoch["number"] == "1"


def test_no_session_joins_what_nobody_can_give_any_more() -> None:
    bench, nodes = running(2, peers_per_node=0)
    first = commit(bench, nodes, 1)
    bench.restart(peers_per_node=0)
    assert bench.run(10, bench.all_running)
    nodes[0].held.clear()
    nodes[0].open(0, Shape(2, 1, 1, "pytorch"), peers_per_node=0)
    bench.run(5)
    assert not bench.all_running()
    nodes[1].open(1, Shape(2, 1, 1, "pytorch"), peers_per_node=0)
    bench.run(5)
    assert all(node.failed is not None and str(first) in node.failed for node in nodes)


def test_a_new_session_waits_for_its_fellows_once_the_epoch_has_a_save() -> None:
    bench, nodes = running(2)
    save = commit(bench, nodes, 1)
    nodes[1].open(1, Shape(2, 1, 1, "pytorch"))
    bench.run(5)
    assert nodes[1].session is not None
    assert nodes[1].session.state is SessionState.OPEN
    assert "rank 0 still running in epoch 1" in bench.epoch["reason"]
    nodes[0].open(0, Shape(2, 1, 1, "pytorch"))
    assert bench.run(10, bench.all_running)
    assert {node.restored[-1][0] for node in nodes} == {save}


def test_s33_of_two_sessions_of_a_rank_the_later_wins() -> None:
    bench, nodes = running(2)
    commit(bench, nodes, 1)
    second = bench.node("node-b")
    second.open(1, Shape(2, 1, 1, "pytorch"))
    nodes[0].open(0, Shape(2, 1, 1, "pytorch"))
    assert bench.run(30, lambda: second.restored != [])
    old = nodes[1].session
    assert old is not None
    assert "taken over by a later session on host node-b" in str(bench.epoch["refused"])
    assert old.id in bench.epoch["refused"]


def test_s33_late_words_of_an_earlier_life_silence_nobody() -> None:
    bench, nodes = running(2)
    one = bench.coordinators[0]
    before = nodes[0].session
    assert before is not None
    ghost = Session(id=SessionId("ghost"), spec=before.spec, state=SessionState.OPEN)
    party = Party(host=nodes[0].host, service=Service.WATCHER, incarnation=Incarnation("node-0-life-0"))
    one.hear(ReportReceived(party, NodeReport(version=6, session=ghost)))
    commit(bench, nodes, 1)
    assert [note.fields["node"] for note in one.said("report_superseded")] == ["node-0"]
    assert bench.store.snapshot(JOB).hashes["node:0"]["session"] == before.id


def test_a_host_that_begins_a_new_life_is_heard_at_once() -> None:
    bench, nodes = running(2)
    nodes[0].start()
    save = nodes[0].save(1)
    nodes[1].save(1)
    assert bench.run(3, lambda: str(save) in bench.committed())
    assert bench.coordinators[0].said("report_superseded") == []


def test_law_7_a_superseded_session_is_remembered_over_two_take_overs_before_anybody_reports() -> None:
    bench, nodes = running(2)
    commit(bench, nodes, 1)
    second = bench.node("node-b")
    second.open(1, Shape(2, 1, 1, "pytorch"))
    nodes[0].open(0, Shape(2, 1, 1, "pytorch"))
    assert bench.run(30, lambda: second.restored != [] and "node:1" in bench.store.snapshot(JOB).hashes)
    old = nodes[1].session
    assert old is not None
    bench.run(3)
    for node in (*nodes, second):
        node.alive = False
    for name in ("c2", "c3"):
        bench.coordinators[-1].paused = True
        heir = bench.coordinator(name)
        assert bench.run(30, lambda heir=heir: heir.machine.active)  # type: ignore[misc]
        bench.run(3)
        assert old.id in bench.store.snapshot(JOB).hashes["node:1"]["superseded"]


def test_s33_a_rank_out_of_range_is_refused_with_a_message() -> None:
    bench, _ = running(2)
    stray = bench.node("node-b")
    stray.open(99, Shape(2, 1, 1, "pytorch"))
    assert bench.run(3, lambda: stray.failed is not None)
    assert stray.failed == "rank 99 is out of range: the job has 2 nodes, expected 0 to 1"


def test_sessions_that_disagree_on_the_shape_all_fail_naming_both() -> None:
    bench = Bench()
    bench.coordinator()
    nodes = [bench.node("a"), bench.node("b")]
    nodes[0].open(0, Shape(2, 1, 1, "pytorch"))
    nodes[1].open(1, Shape(3, 1, 1, "pytorch"))
    bench.run(9)
    assert [node.failed for node in nodes] == [None, None]
    assert bench.run(3, lambda: all(node.failed is not None for node in nodes))
    assert nodes[0].failed == nodes[1].failed
    assert "2 nodes" in str(nodes[0].failed)
    assert "3 nodes" in str(nodes[0].failed)


def test_a_smaller_job_may_not_restore_what_does_not_fit() -> None:
    bench, nodes = running(4)
    commit(bench, nodes, 1)
    for node in nodes[2:]:
        node.alive = False
    for rank, node in enumerate(nodes[:2]):
        node.open(rank, Shape(2, 1, 1, "pytorch"))
    assert bench.run(40, lambda: all(node.failed is not None for node in nodes[:2]))
    assert "4 nodes" in str(nodes[0].failed)


# ---- the coordinator is lost


def test_a_stand_by_takes_over_and_goes_on() -> None:
    bench, nodes = running(2)
    commit(bench, nodes, 1)
    standby = bench.coordinator("c2")
    bench.run(3)
    assert standby.machine.lease is None
    bench.coordinators[0].paused = True
    assert bench.run(12, lambda: standby.machine.active)
    commit(bench, nodes, 2)
    assert bench.epoch["number"] == "1"
    assert [len(node.restored) for node in nodes] == [1, 1]


def test_s117_a_stopped_coordinator_gives_its_lease_back_at_once() -> None:
    bench, _ = running(2)
    standby = bench.coordinator("c2")
    bench.run(2)
    bench.coordinators[0].hear(StopRequested())
    bench.coordinators[0].paused = True
    assert bench.run(2, lambda: standby.machine.active)


def test_a_renewal_whose_answer_is_overtaken_by_a_write_loses_no_lease() -> None:
    bench, nodes = running(2)
    one = bench.coordinators[0]
    one.late = []
    assert bench.run(4, lambda: bool(one.late))
    commit(bench, nodes, 1)
    (answer,) = one.late
    one.late = None
    one.hear(answer)
    assert one.machine.active
    assert not one.said("lease_lost")


def test_s107_a_paused_holder_changes_nothing_when_it_comes_back() -> None:
    bench, nodes = running(2)
    commit(bench, nodes, 1)
    first, second = bench.coordinators[0], bench.coordinator("c2")
    first.paused = True
    assert bench.run(15, lambda: second.machine.active)
    commit(bench, nodes, 2)
    before = bench.store.contents()
    first.paused = False
    first.hear(ReportReceived(nodes[0].sender, nodes[0].report()))
    assert first.machine.lease is None
    assert bench.store.contents() == before
    bench.run(5)
    assert not first.machine.active
    assert second.machine.active


def test_a_stand_by_finishes_a_restore_that_was_decided() -> None:
    bench, nodes = running(2)
    save = commit(bench, nodes, 1)
    standby = bench.coordinator("c2")
    bench.restart()
    nodes[1].alive = False
    bench.run(1)
    nodes[1].alive = True
    bench.coordinators[0].paused = True
    assert bench.run(20, bench.all_running)
    assert standby.machine.active
    assert {node.restored[-1] for node in nodes} == {(save, bench.restore.stamp)}


# ---- Redis is lost


def test_s102_flushall_in_mid_run_costs_a_rebuild_and_never_starts_a_restore() -> None:
    bench, nodes = running(3)
    commit(bench, nodes, 1)
    bench.store.flush()
    commit(bench, nodes, 2)
    assert [len(node.restored) for node in nodes] == [1, 1, 1]
    assert bench.epoch["number"] == "1"
    assert all(node.session is not None and node.session.state is SessionState.RUNNING for node in nodes)


def test_s102_a_coordinator_without_memory_takes_the_running_epoch_as_the_current_one() -> None:
    bench, nodes = running(3)
    first = commit(bench, nodes, 1)
    bench.coordinators[0].paused = True
    bench.store.flush()
    fresh = bench.coordinator("c2")
    assert bench.run(20, lambda: fresh.machine.active)
    bench.run(3)
    assert {tag.save for node in nodes for tag in node.held} == {first}
    commit(bench, nodes, 2)
    assert [len(node.restored) for node in nodes] == [1, 1, 1]
    bench.restart()
    assert bench.run(20, bench.all_running)
    assert str(nodes[0].restored[-1][0]) == "1.2"
    assert bench.epoch["number"] == "2"


def test_law_3_a_commit_that_redis_forgot_is_one_although_a_copy_is_missing_by_now() -> None:
    bench, nodes = running(3)
    commit(bench, nodes, 1)
    older = [dict(node.held) for node in nodes]
    second = commit(bench, nodes, 2)
    for node, held in zip(nodes, older, strict=True):
        node.held.update({tag: one for tag, one in held.items() if one.own})  # an upload kept them
    nodes[0].held = {tag: one for tag, one in nodes[0].held.items() if one.own}
    bench.coordinators[0].paused = True
    bench.store.flush()
    fresh = bench.coordinator("c2")
    assert bench.run(20, lambda: fresh.machine.active)
    nodes[0].save(3)
    bench.run(5)
    assert str(second) in bench.committed()
    assert sum(tag.save == second and held.own for node in nodes for tag, held in node.held.items()) == 3


def test_s102_a_coordinator_that_remembers_takes_a_token_above_the_one_that_redis_forgot() -> None:
    bench, nodes = running(2)
    commit(bench, nodes, 1)
    bench.coordinators[0].paused = True
    for node in nodes:
        node.alive = False
    second = bench.coordinator("c2")
    assert bench.run(20, lambda: second.machine.active)
    assert second.machine.lease is not None
    assert second.machine.lease.token == 2
    bench.store.flush()
    bench.run(5)
    assert second.machine.lease is not None
    assert second.machine.lease.token > 2
    for node in nodes:
        node.alive = True
    commit(bench, nodes, 2)


def test_s102_a_session_that_joined_stays_a_member_when_redis_goes_back_to_before() -> None:
    bench, nodes = running(2)
    before = copy.deepcopy({name: value for name, value in vars(bench.store).items() if isinstance(value, dict)})
    nodes[0].open(0, Shape(2, 1, 1, "pytorch"))
    assert bench.run(5, bench.all_running)
    bench.coordinators[0].paused = True
    vars(bench.store).update(before)
    second = bench.coordinator("c2")
    assert bench.run(20, lambda: second.machine.active)
    commit(bench, nodes, 1)
    members = bench.view(nodes[0]).epoch
    assert members is not None
    assert {member.session for member in members.members} == {node.session.id for node in nodes if node.session}


def test_s102_differences_are_never_written_onto_what_came_back() -> None:
    bench, nodes = running(2)
    before = copy.deepcopy({name: value for name, value in vars(bench.store).items() if isinstance(value, dict)})
    commit(bench, nodes, 1)
    vars(bench.store).update(copy.deepcopy(before))
    for node in nodes:
        node.save(2)
    assert bench.run(10, lambda: "1.2" in bench.committed())
    record = bench.store.snapshot(JOB).hashes["step:1.2"]
    assert {"n0/w0", "n1/w0", "shape", "state"} <= record.keys()
    assert bench.coordinators[0].said("write_refused")


def test_s102_a_flush_during_a_restore_ends_in_the_same_step() -> None:
    bench, nodes = running(2)
    save = commit(bench, nodes, 1)
    bench.restart()
    bench.run(0.3)
    bench.store.flush()
    assert bench.run(40, bench.all_running)
    assert {node.restored[-1][0] for node in nodes} == {save}


def test_redis_may_be_away_for_long() -> None:
    bench, nodes = running(2)
    commit(bench, nodes, 1)
    bench.store.down = "connection refused"
    for node in nodes:
        node.save(2)
    bench.run(60)
    assert bench.coordinators[0].machine.fault == "connection refused"
    bench.store.down = None
    assert bench.run(20, lambda: "1.2" in bench.committed())
    assert [len(node.restored) for node in nodes] == [1, 1]


def test_a_coordinator_cut_off_from_redis_writes_and_says_nothing_past_its_lease() -> None:
    bench, _ = running(2)
    machine = bench.coordinators[0].machine
    bench.store.down = "connection refused"
    bench.run(9)
    bench.woken = False
    bench.run(20)
    assert not bench.woken
    assert machine.lease is not None


def test_the_fence_rises_above_what_nodes_obeyed() -> None:
    bench = Bench()
    one = bench.coordinator()
    nodes = bench.cluster(2)
    nodes[0].obeyed = Stamp(40, Epoch(9), 900)
    assert bench.run(30, bench.all_running)
    assert one.machine.lease is not None
    assert one.machine.lease.token > 40
    assert int(bench.epoch["number"]) > 9


# ---- backups


def test_the_first_commit_is_backed_up_and_comes_back_when_every_ramdisk_is_gone() -> None:
    bucket = Bucket()
    bench, nodes = running(2, bucket=bucket)
    save = commit(bench, nodes, 1)
    assert bench.run(20, lambda: "lastbackup" in bench.store.snapshot(JOB).hashes)
    assert bench.store.snapshot(JOB).hashes["lastbackup"]["save"] == "1.1"
    for node in nodes:
        node.wipe()
        node.start()
    for rank, node in enumerate(nodes):
        node.open(rank, Shape(2, 1, 1, "pytorch"))
    assert bench.run(20, bench.all_running)
    assert bench.restore.save == save
    assert bench.restore.backup == bench.store.snapshot(JOB).hashes["lastbackup"]["name"]


def test_the_epoch_is_above_a_backup_that_is_all_that_is_left() -> None:
    bucket = Bucket()
    bench, nodes = running(2, bucket=bucket)
    save = commit(bench, nodes, 1)
    assert bench.run(20, lambda: "lastbackup" in bench.store.snapshot(JOB).hashes)
    bench.coordinators[0].paused = True
    bench.store.flush()
    for rank, node in enumerate(nodes):
        node.wipe()
        node.start()
        node.open(rank, Shape(2, 1, 1, "pytorch"))
    bench.coordinator("c2")
    assert bench.run(40, bench.all_running)
    assert bench.restore.save == save
    assert int(bench.epoch["number"]) > save.epoch


def test_s30_a_failed_backup_is_tried_again_and_ages_count_from_the_last_verified_one() -> None:
    bucket = Bucket()
    bench, nodes = running(2, bucket=bucket)
    bucket.fault = "503 slow down"
    commit(bench, nodes, 1)
    bench.run(20)
    assert "lastbackup" not in bench.store.snapshot(JOB).hashes
    bucket.fault = None
    assert bench.run(60, lambda: "lastbackup" in bench.store.snapshot(JOB).hashes)
    bench.run(3)
    found = bench.store.snapshot(JOB).hashes
    told = {json.loads(text)["last_backup"] for text in found["orders"].values()}
    assert told == {found["lastbackup"]["name"]}


def test_a_backup_belongs_to_its_save_and_goes_on_after_a_take_over() -> None:
    bucket = Bucket()
    bench, nodes = running(2, bucket=bucket)
    standby = bench.coordinator("c2")
    for node in nodes:
        node.save(1)
    bench.run(5, lambda: any("ORDER.json" in objects for objects in bucket.objects.values()))
    bench.coordinators[0].paused = True
    assert bench.run(60, lambda: "lastbackup" in bench.store.snapshot(JOB).hashes)
    assert standby.machine.active
    assert len(bucket.objects) == 1


def test_a_requested_backup_is_made_before_its_time() -> None:
    bucket = Bucket()
    bench, nodes = running(2, bucket=bucket)
    commit(bench, nodes, 1)
    bench.run(20, lambda: "lastbackup" in bench.store.snapshot(JOB).hashes)
    save = commit(bench, nodes, 2)
    bench.run(10)
    assert bench.store.snapshot(JOB).hashes["lastbackup"]["save"] == "1.1"
    nodes[1].requested = (save,)
    assert bench.run(20, lambda: bench.store.snapshot(JOB).hashes["lastbackup"]["save"] == "1.2")


# ---- what people see, and what strangers send


def test_redis_shows_every_key() -> None:
    bench, nodes = running(2, bucket=Bucket())
    commit(bench, nodes, 1)
    bench.run(20)
    hashes = bench.store.snapshot(JOB).hashes
    name = hashes["lastbackup"]["name"]
    wanted = {"epoch", "node:0", "node:1", "alive", "inventory:0", "inventory:1", "step:1.1", "steps", "keep"}
    assert wanted | {"restore:1", "orders", f"backup:{name}", "backups", "lastbackup"} <= hashes.keys()
    assert hashes["keep"]["upto"] == "1.1"
    assert hashes["node:0"]["host"] == "node-0"
    events = bench.store.contents()[f"ckpt:{{{JOB}}}:events"]
    assert isinstance(events, list)
    names = [entry["event"] for entry in events]
    assert names[:3] == ["epoch_opened", "restore_decided", "epoch_released"]
    assert {"save_committed", "keep_list_written", "backup_verified"} <= set(names)


def test_the_third_restore_of_one_save_is_an_alarm() -> None:
    bench, nodes = running(2)
    commit(bench, nodes, 1)
    for _ in range(3):
        bench.restart()
        assert bench.run(10, bench.all_running)
        bench.run(1)
    assert len(bench.coordinators[0].said("restart_loop")) == 1


def hostile_reports() -> list[tuple[Party, NodeReport]]:
    node = Party(host=Host("evil"), service=Service.WATCHER, incarnation=Incarnation("x"))
    shape = Shape(2, 1, 1, "pytorch")

    def session(job: str, rank: int, shape: Shape) -> Session:
        spec = SessionSpec(job=Job(job), rank=Rank(rank), shape=shape)
        return Session(id=SessionId("s"), spec=spec, state=SessionState.OPEN)

    return [
        (Party(host=Host(""), service=Service.WATCHER), NodeReport(version=0)),
        (Party(host=Host("evil"), service=Service.TRANSFER, incarnation=Incarnation("x")), NodeReport(version=0)),
        (node, NodeReport(version=-1)),
        (node, NodeReport(version=1, obeyed=Stamp(1 << 62, Epoch(1), 1))),
        (node, NodeReport(version=2, obeyed=Stamp(-1, Epoch(-1), -1))),
        (node, NodeReport(version=3, session=session("other", 0, shape))),
        (node, NodeReport(version=4, session=session(JOB, -1, shape))),
        (node, NodeReport(version=5, session=session(JOB, 1 << 40, shape))),
        (node, NodeReport(version=6, session=session(JOB, 0, Shape(0, 0, 0, "")))),
        (node, NodeReport(version=7, session=session(JOB, 0, Shape(1 << 40, 1 << 40, 1, "pytorch")))),
        (node, NodeReport(version=8, session=session(JOB, 0, Shape(3, 1, 2, "pytorch")))),
        (node, NodeReport(version=9, newest_committed=Save(Epoch(-1), Step(-1)))),
    ]


@pytest.mark.parametrize("number", range(len(hostile_reports())))
def test_s16_no_report_harms_the_coordinator(number: int) -> None:
    bench, nodes = running(2)
    bench.coordinators[0].hear(ReportReceived(*hostile_reports()[number]))
    bench.run(1)
    commit(bench, nodes, 1)
    bench.restart()
    assert bench.run(10, bench.all_running)
    assert bench.epoch["state"] == EpochState.RUNNING
