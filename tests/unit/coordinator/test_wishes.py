"""What people order, from the message to its effect on Redis and the nodes."""

from collections.abc import Sequence

import pytest

from checkpoint_coordinator.desk import Options
from checkpoint_coordinator.words import ReportReceived, WishReceived
from checkpoint_replicator.ids import Epoch, Step
from checkpoint_replicator.messages import Wish
from checkpoint_replicator.records import Outcome
from checkpoint_replicator.save import Save
from checkpoint_replicator.shape import Shape
from checkpoint_replicator.times import Times
from support.coordination import JOB, Bench
from support.fake_nodes import Bucket, FakeNode

SHAPE = Shape(2, 1, 1, "pytorch")


def save(epoch: int, step: int) -> Save:
    return Save(Epoch(epoch), Step(step))


def trained(
    *steps: int, bucket: Bucket | None = None, options: Options | None = None, times: Times | None = None
) -> tuple[Bench, Sequence[FakeNode]]:
    """Return a job of two nodes that committed these steps."""
    bench = Bench(bucket=bucket, options=options, times=times)
    bench.coordinator()
    nodes = bench.cluster(2)
    assert bench.run(10, bench.all_running)
    for step in steps:
        for node in nodes:
            node.save(step)
        assert bench.run(10, lambda step=step: f"1.{step}" in bench.committed())  # type: ignore[misc]
        bench.run(3)
    return bench, nodes


def hashes(bench: Bench) -> dict[str, dict[str, str]]:
    return bench.store.snapshot(JOB).hashes


def restart(bench: Bench) -> None:
    bench.restart()
    assert bench.run(20, bench.all_running), hashes(bench)["epoch"]


# ---- restore


def test_an_ordered_save_is_restored_at_the_next_start_and_counts_for_one_release() -> None:
    bench, nodes = trained(1)
    for rank, node in enumerate(nodes):
        node.hold(save(1, 7), rank, 0, SHAPE, own=True)
    answer = bench.ordered("restore", save=save(1, 1))
    assert (answer.state, answer.reason) == ("done", "save 1.1 is restored at the next start of all trainers")
    restart(bench)
    assert [node.restored[-1][0] for node in nodes] == [save(1, 1)] * 2
    assert bench.restore.forced == "command"
    assert bench.restore.warning == "save 1.1 was ordered"
    assert "forced" not in hashes(bench)
    restart(bench)
    assert [node.restored[-1][0] for node in nodes] == [save(1, 7)] * 2
    assert bench.restore.warning == ""


def test_an_ordered_save_stays_although_a_later_one_commits() -> None:
    bench, nodes = trained(1)
    assert bench.ordered("restore", save=save(1, 1)).state == "done"
    for node in nodes:
        node.save(2)
    assert bench.run(10, lambda: "1.2" in bench.committed())
    bench.run(3)
    assert {str(tag.save) for node in nodes for tag in node.held} == {"1.1", "1.2"}
    restart(bench)
    assert [node.restored[-1][0] for node in nodes] == [save(1, 1)] * 2


def test_an_order_outlives_a_redis_that_comes_back_without_it() -> None:
    bench, nodes = trained(1)
    go_back = bench.store.backup()
    for rank, node in enumerate(nodes):
        node.hold(save(1, 7), rank, 0, SHAPE, own=True)
    assert bench.ordered("restore", save=save(1, 1)).state == "done"
    bench.run(3)
    go_back()
    bench.run(30)
    assert bench.coordinators[0].said("index_rebuilt")
    assert hashes(bench)["forced"]["save"] == "1.1"
    restart(bench)
    assert [node.restored[-1][0] for node in nodes] == [save(1, 1)] * 2


def test_an_order_that_is_given_after_redis_lost_all_stands_though_nodes_obeyed_more_before() -> None:
    bench, nodes = trained(1)
    nodes[0].alive = False  # it obeyed less than the other
    bench.run(30)
    nodes[1].alive = False  # what they obeyed is told when the order was taken, by one after the other
    bench.coordinators[0].paused = True
    bench.store.flush()
    second = bench.coordinator("c2")
    assert bench.run(1, lambda: second.machine.active)
    assert bench.ordered("restore", none=True).state == "done"
    nodes[0].alive = True
    bench.run(30)
    second.hear(ReportReceived(nodes[1].sender, nodes[1].report()))
    bench.run(3)
    assert second.said("index_rebuilt")
    assert hashes(bench)["forced"]["none"] == "true"


def test_an_order_that_an_earlier_coordinator_took_is_dropped_when_redis_comes_back_with_it() -> None:
    bench, nodes = trained(1)
    for rank, node in enumerate(nodes):
        node.hold(save(1, 7), rank, 0, SHAPE, own=True)
    assert bench.ordered("restore", save=save(1, 1)).state == "done"
    go_back = bench.store.backup()
    assert bench.ordered("withdraw").state == "done"
    bench.run(5)
    bench.coordinators[0].paused = True
    go_back()
    second = bench.coordinator("c2")
    assert bench.run(30, lambda: second.machine.active)
    bench.run(10)
    assert second.said("orders_dropped")
    assert "forced" not in hashes(bench)


def test_an_order_that_ends_soon_is_decided_before_its_end_though_a_witness_is_silent() -> None:
    bucket = Bucket()
    bench, _ = trained(1, bucket=bucket)
    bucket.fault = "403 forbidden"
    wish = Wish(id="short", kind="restore", until=bench.store.time() + 4, backup="2026-01-01_00-00")
    bench.coordinators[0].hear(WishReceived(wish))
    bench.run(2.5)
    assert bench.answer("short") is None
    bench.run(1.2)
    answer = bench.answer("short")
    assert answer is not None
    assert "taken on trust, without an answer of the backup store" in answer.reason


def test_what_nobody_holds_is_refused_at_once() -> None:
    bench, _ = trained(1)
    answer = bench.ordered("restore", save=save(1, 9))
    assert (answer.state, answer.reason) == ("refused", "save 1.9: nobody holds it")
    assert "forced" not in hashes(bench)


def test_what_is_torn_is_refused_with_what_is_missing() -> None:
    bench, nodes = trained(1)
    nodes[0].hold(save(1, 9), 0, 0, SHAPE, own=True)
    bench.run(1)
    answer = bench.ordered("restore", save=save(1, 9))
    assert (answer.state, answer.reason) == ("refused", "save 1.9: missing n1/w0")


def test_an_order_is_taken_on_trust_while_a_witness_is_silent_and_fails_exactly_if_it_was_wrong() -> None:
    bucket = Bucket()
    bench, nodes = trained(1, bucket=bucket)
    bucket.fault = "403 forbidden"
    answer = bench.ordered("restore", backup="2026-01-01_00-00")
    assert answer.state == "done"
    assert (
        "taken on trust, without an answer of the backup store file:///bucket (node-1: 403 forbidden)" in answer.reason
    )
    bucket.fault = None
    bench.restart()
    bench.run(60)
    assert {node.failed for node in nodes} == {
        "backup 2026-01-01_00-00 was ordered: the backup store has no whole backup of this name"
    }
    assert hashes(bench)["forced"]["backup"] == "2026-01-01_00-00"
    assert bench.ordered("withdraw").reason == "backup 2026-01-01_00-00 is not restored any more"
    restart(bench)
    assert [node.restored[-1][0] for node in nodes] == [save(1, 1)] * 2


def test_a_fresh_start_can_be_ordered_for_one_release() -> None:
    bench, nodes = trained(1)
    answer = bench.ordered("restore", none=True)
    assert (answer.state, answer.reason) == ("done", "a fresh start is made at the next start of all trainers")
    restart(bench)
    assert bench.restore.outcome is Outcome.NONE
    assert bench.restore.warning == "a fresh start was ordered"
    assert {str(tag.save) for node in nodes for tag in node.held} == {"1.1"}
    restart(bench)
    assert bench.restore.save == save(1, 1)


def test_an_order_in_the_middle_of_another_restore_is_decided_for_all() -> None:
    bench, nodes = trained(1)
    for rank, node in enumerate(nodes):
        node.hold(save(1, 7), rank, 0, SHAPE, own=True)
    nodes[1].stalled = True
    bench.restart()
    bench.run(5)
    assert bench.restore.save == save(1, 7)
    assert bench.ordered("restore", save=save(1, 1)).reason == "save 1.1 is restored now, in epoch 2"
    nodes[1].stalled = False
    assert bench.run(20, bench.all_running)
    assert [node.restored[-1][0] for node in nodes] == [save(1, 1)] * 2


@pytest.mark.parametrize("none", [False, True])
def test_trainers_that_start_again_one_after_another_get_what_was_ordered_though_nothing_was_saved(none: bool) -> None:
    bench, nodes = trained(1)
    restart(bench)
    assert bench.restore.save == save(1, 1)
    for rank, node in enumerate(nodes):
        node.hold(save(1, 7), rank, 0, SHAPE, own=True)
    bench.run(3)
    wish: dict[str, object] = {"none": True} if none else {"save": save(1, 7)}
    assert bench.ordered("restore", **wish).state == "done"
    for rank, node in enumerate(nodes):
        node.open(rank, SHAPE, peers_per_node=1)
        bench.run(3)  # its fellow's old session still runs when the first comes
    assert bench.run(20, bench.all_running)
    assert bench.restore.save == (None if none else save(1, 7))
    assert "forced" not in hashes(bench)


def test_a_release_of_something_else_does_not_use_an_order_up() -> None:
    bench, nodes = trained(1)
    bench.restart()
    assert bench.run(20, bench.all_running)
    assert bench.ordered("restore", save=save(1, 1)).state == "done"
    bench.run(5)
    assert hashes(bench)["forced"]["save"] == "1.1"
    assert len(nodes[0].restored) == 2


def test_an_order_outlives_the_coordinator() -> None:
    bench, nodes = trained(1)
    for rank, node in enumerate(nodes):
        node.hold(save(1, 7), rank, 0, SHAPE, own=True)
    ident = bench.wish("restore", save=save(1, 1))
    bench.run(2)
    bench.coordinators[0].paused = True
    bench.coordinator("c2")
    bench.run(15)
    answer = bench.answer(ident)
    assert answer is not None
    assert answer.state == "done"
    restart(bench)
    assert [node.restored[-1][0] for node in nodes] == [save(1, 1)] * 2


def test_a_repeated_order_is_the_same_order() -> None:
    bench, _ = trained(1)
    for _ in range(3):
        wish = Wish(id="same", kind="restore", until=bench.store.time() + 60, save=save(1, 1))
        bench.coordinators[0].hear(WishReceived(wish))
    bench.run(3)
    restart(bench)
    bench.coordinators[0].hear(WishReceived(wish))
    bench.run(3)
    assert "forced" not in hashes(bench)
    assert list(hashes(bench)["wishes"]) == ["same"]


def test_an_order_that_comes_too_late_is_not_taken_up() -> None:
    bench, _ = trained(1)
    wish = Wish(id="late", kind="hold", until=bench.store.time() - 1)
    bench.coordinators[0].hear(WishReceived(wish))
    bench.run(3)
    assert "hold" not in hashes(bench)
    assert bench.coordinators[0].said("wish_too_late")


@pytest.mark.parametrize(
    ("kind", "more", "reason"),
    [
        ("restore", {}, "expected a save, or the name of a backup, or none"),
        ("restore", {"none": True, "save": save(1, 1)}, "expected a save, or the name of a backup, or none"),
        ("restore", {"backup": "../x"}, "expected a save, or the name of a backup, or none"),
        ("withdraw", {}, "no restore is ordered"),
        ("resume", {}, "nothing is held"),
        ("dance", {}, "'dance' cannot be ordered, expected restore, withdraw, hold, resume, forget"),
    ],
)
def test_orders_that_make_no_sense_are_refused(kind: str, more: dict[str, object], reason: str) -> None:
    bench, _ = trained()
    answer = bench.ordered(kind, **more)
    assert (answer.state, answer.reason) == ("refused", reason)


def test_only_the_latest_answers_stay() -> None:
    bench, _ = trained()
    for _ in range(20):
        bench.ordered("resume")
    assert len(hashes(bench)["wishes"]) == 16


def test_orders_of_an_older_redis_are_dropped_and_told_about() -> None:
    bench, nodes = trained(1)
    assert bench.ordered("restore", save=save(1, 1)).state == "done"
    before = bench.store.contents()
    assert bench.ordered("withdraw").state == "done"
    restart(bench)
    bench.store.flush()
    for key, value in before.items():
        if not key.endswith(":lease"):
            bench.store.put(key, value)
    bench.run(30)
    assert "forced" not in hashes(bench)
    assert len(nodes[0].restored) == 2


# ---- hold


def test_while_people_look_nothing_is_deleted_and_no_backup_ordered() -> None:
    bucket = Bucket()
    bench, nodes = trained(1, bucket=bucket)
    bench.run(5)
    backups = list(bucket.objects)
    answer = bench.ordered("hold", reason="why is the loss so high")
    assert (answer.state, answer.reason) == ("done", "nothing is deleted, pruned or backed up (2 hosts obey)")
    assert hashes(bench)["hold"]["reason"] == "why is the loss so high"
    for step in (2, 3):
        for node in nodes:
            node.save(step)
        assert bench.run(10, lambda step=step: f"1.{step}" in bench.committed())  # type: ignore[misc]
    bench.run(2000)
    assert {str(tag.save) for node in nodes for tag in node.held} == {"1.1", "1.2", "1.3"}
    assert list(bucket.objects) == backups
    assert bench.ordered("resume").state == "done"
    bench.run(10)
    assert {str(tag.save) for node in nodes for tag in node.held} == {"1.3"}
    assert len(bucket.objects) == 2


def test_a_hold_freezes_a_list_that_some_node_has_not_obeyed_yet() -> None:
    bench, nodes = trained(1)
    nodes[1].alive = False
    bench.run(1)
    ident = bench.wish("hold")
    bench.run(3)
    answer = bench.answer(ident)
    assert answer is not None
    assert (answer.state, answer.reason) == ("taken", "waiting for node-1")
    nodes[1].hold(save(1, 0), 1, 0, SHAPE)
    nodes[1].alive = True
    bench.run(3)
    answer = bench.answer(ident)
    assert answer is not None
    assert answer.state == "done"
    assert save(1, 0) in {tag.save for tag in nodes[1].held}


def test_a_hold_is_not_done_before_hosts_spoke_that_this_coordinator_has_not_heard_yet() -> None:
    bench, nodes = trained(1)
    bench.coordinators[0].paused = True
    nodes[1].alive = False
    second = bench.coordinator("c2")
    assert bench.run(30, lambda: second.machine.active)
    ident = bench.wish("hold")
    bench.run(2)
    answer = bench.answer(ident)
    assert answer is not None
    assert (answer.state, answer.reason) == ("taken", "waiting for node-1")
    nodes[1].alive = True
    bench.run(3)
    answer = bench.answer(ident)
    assert answer is not None
    assert (answer.state, answer.reason) == ("done", "nothing is deleted, pruned or backed up (2 hosts obey)")


def test_a_hold_stands_before_the_first_release_and_over_a_take_over() -> None:
    bench = Bench()
    bench.coordinator()
    nodes = bench.cluster(2)
    nodes[1].complete = False
    bench.run(3)
    assert bench.ordered("hold").state == "done"
    bench.coordinators[0].paused = True
    bench.coordinator("c2")
    nodes[1].complete = True
    assert bench.run(30, bench.all_running)
    bench.run(3)
    assert hashes(bench)["keep"]["hold"] == "true"


# ---- forget


def test_forgetting_turns_lost_into_none() -> None:
    bench, nodes = trained(1)
    for node in nodes:
        node.held.clear()
    bench.restart()
    bench.run(20)
    [failed] = {node.failed for node in nodes}
    assert str(failed).startswith("save 1.1 was committed and no whole save is left; to begin anew: ")
    answer = bench.ordered("forget")
    assert answer.state == "done"
    assert "node-0, node-1 still hold its session or data" in answer.reason
    assert hashes(bench)["forgotten"]["upto"] == "1.1"
    restart(bench)
    assert bench.restore.outcome is Outcome.NONE
    assert bench.restore.warning == "no checkpoint anywhere; people had save 1.1 forgotten"


def test_a_new_coordinator_forgets_nothing_before_it_heard_the_hosts() -> None:
    bench, nodes = trained(1)
    bench.coordinators[0].paused = True
    for node in nodes:
        node.alive = False
    second = bench.coordinator("c2")
    assert bench.run(15, lambda: second.machine.active)
    ident = bench.wish("forget", force=True)
    bench.run(2)
    assert bench.answer(ident) is None
    for node in nodes:
        node.alive = True
    bench.run(5)
    answer = bench.answer(ident)
    assert answer is not None
    assert "node-0, node-1 still hold its session or data" in answer.reason
    assert all(node.held for node in nodes)


def test_forgetting_does_not_hide_what_is_whole() -> None:
    bench, nodes = trained(1)
    assert bench.ordered("forget", force=True).state == "done"
    restart(bench)
    assert [node.restored[-1][0] for node in nodes] == [save(1, 1)] * 2


def test_a_job_that_may_still_train_is_not_forgotten_without_force() -> None:
    bench, nodes = trained(1)
    answer = bench.ordered("forget", ramdisks=True)
    assert answer.state == "refused"
    assert answer.reason == "rank 0 on node-0 and 1 more may still train; end the trainers, then order it with --force"
    nodes[1].complete = False
    bench.restart()
    bench.run(2)
    answer = bench.ordered("forget", ramdisks=True, force=True)
    assert answer.reason == "rank 0 on node-0 waits for its restore; end the trainers first"


@pytest.mark.parametrize("ramdisks", [False, True])
def test_law_5_a_held_job_is_not_forgotten_whoever_forces_it(ramdisks: bool) -> None:
    bench, nodes = trained(1)
    assert bench.ordered("hold").state == "done"
    answer = bench.ordered("forget", ramdisks=ramdisks, force=True)
    assert answer.state == "refused"
    assert answer.reason == "the job is held, so nothing is deleted; end the hold first: hold --release"
    bench.run(5)
    assert all(node.held for node in nodes)
    assert bench.ordered("resume").state == "done"
    assert bench.ordered("forget", force=True).state == "done"


def test_a_job_that_is_being_forgotten_is_not_held() -> None:
    bench, nodes = trained(1)
    nodes[0].alive = False  # it is waited for
    bench.wish("forget", ramdisks=True, force=True)
    answer = bench.ordered("hold")
    assert answer.state == "refused"
    assert answer.reason == "the job is being forgotten, the hosts remove what they have"


def test_an_idle_job_is_forgotten_without_force() -> None:
    bench, _ = trained(1, times=Times(idle=60))
    bench.run(70)
    assert hashes(bench)["epoch"]["state"] == "idle"
    assert bench.ordered("forget").state == "done"
