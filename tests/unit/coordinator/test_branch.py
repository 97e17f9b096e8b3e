"""`restore.version`, and what a forced restore leaves behind."""

from collections.abc import Sequence

import pytest

from checkpoint_coordinator.branch import begun, file_order
from checkpoint_coordinator.inventory import Inventory
from checkpoint_coordinator.restore import Facts
from checkpoint_replicator.fence import ZERO
from checkpoint_replicator.ids import Epoch, Step
from checkpoint_replicator.records import Outcome, RestoreRecord
from checkpoint_replicator.save import Save
from checkpoint_replicator.shape import Shape
from checkpoint_replicator.wishes import BY_COMMAND, BY_FILE, Branch, Forced
from support.coordination import JOB, Bench
from support.fake_nodes import Bucket, FakeNode

SHAPE = Shape(2, 1, 1, "pytorch")
NAME = "2026-01-01_00-00"


def save(epoch: int, step: int) -> Save:
    return Save(Epoch(epoch), Step(step))


def hashes(bench: Bench) -> dict[str, dict[str, str]]:
    return bench.store.snapshot(JOB).hashes


def backed_up(*steps: int) -> tuple[Bench, Sequence[FakeNode], Bucket, list[str]]:
    """Return a job of two nodes with a verified backup of each step, and the names of the backups."""
    bucket = Bucket()
    bench = Bench(bucket=bucket)
    bench.coordinator()
    nodes = bench.cluster(2)
    assert bench.run(10, bench.all_running)
    for step in steps:
        for node in nodes:
            node.requested = (save(1, step),)
            node.save(step)
        assert bench.run(20, lambda step=step: hashes(bench).get("lastbackup", {}).get("save") == f"1.{step}")  # type: ignore[misc]
        bench.run(61)
    for node in nodes:
        node.requested = ()
    return bench, nodes, bucket, sorted(bucket.objects)


def restart(bench: Bench) -> None:
    bench.restart()
    assert bench.run(60, bench.all_running), hashes(bench)["epoch"]


def train(bench: Bench, nodes: Sequence[FakeNode], step: int) -> None:
    (made,) = {node.save(step) for node in nodes}
    assert bench.run(10, lambda: str(made) in bench.committed())


def test_the_file_counts_until_a_save_of_the_new_line_is_whole() -> None:
    bench, nodes, bucket, names = backed_up(1, 2)
    bucket.forced = f"{names[0]}\n"
    bucket.fault = None
    restart(bench)
    assert [node.restored[-1][0] for node in nodes] == [save(1, 1)] * 2
    assert bench.restore.forced == "restore.version"
    assert bench.restore.warning == f"backup {names[0]} was ordered"
    restart(bench)
    assert [node.restored[-1][0] for node in nodes] == [save(1, 1)] * 2
    assert hashes(bench)["branch"] == {"epoch": "2", "save": "1.1", "backup": names[0], "by": "restore.version"}
    for node in nodes:
        node.save(2)
    bucket.fault = "503"  # so that no backup removes the file
    bench.run(5)
    bucket.fault = None
    restart(bench)
    assert [node.restored[-1][0] for node in nodes] == [save(3, 2)] * 2


def test_the_first_verified_backup_of_the_new_line_removes_the_file_and_supersedes_newer_backups() -> None:
    bench, nodes, bucket, names = backed_up(1, 2, 3)
    bucket.forced = names[0]
    restart(bench)
    train(bench, nodes, 2)
    assert bench.run(2000, lambda: "branch" not in hashes(bench))
    assert bucket.forced == ""
    states = {name: hashes(bench)[f"backup:{name}"]["state"] for name in names}
    assert states == {names[0]: "complete", names[1]: "superseded", names[2]: "superseded"}
    assert hashes(bench)["lastbackup"]["save"] == "2.2"
    assert hashes(bench)[f"backup:{names[1]}"]["reason"] == f"{names[0]} was restored by order in epoch 2"


def test_a_superseded_backup_is_restored_by_an_order_only() -> None:
    bench, nodes, bucket, names = backed_up(1, 2)
    assert bench.ordered("restore", backup=names[0]).state == "done"
    restart(bench)
    train(bench, nodes, 2)
    assert bench.run(2000, lambda: "branch" not in hashes(bench))
    for node in nodes:
        node.held.clear()
    for name in (names[0], hashes(bench)["lastbackup"]["name"]):
        del bucket.objects[name]
    bench.store.put(f"ckpt:{{{JOB}}}:lastbackup", {})
    bench.coordinators[0].machine.desk.archive.last = None
    bench.restart()
    bench.run(60)
    failed = nodes[0].failed
    assert failed is not None
    assert f"superseded backups, which only an order restores: {names[1]}" in failed
    assert bench.ordered("restore", backup=names[1]).state == "done"
    restart(bench)
    assert [node.restored[-1][0] for node in nodes] == [save(1, 2)] * 2


def test_a_file_that_names_no_backup_is_an_error_before_anyone_moves() -> None:
    bench, nodes, bucket, names = backed_up(1)
    bucket.forced = "latest, please"
    bench.restart()
    bench.run(60)
    reason = "restore.version: expected a backup's name (YYYY-MM-DD_HH-MM), found 'latest, please'"
    assert {node.failed for node in nodes} == {reason}
    bucket.forced = "2020-01-01_00-00"
    bench.restart()
    bench.run(60)
    assert {node.failed for node in nodes} == {
        "backup 2020-01-01_00-00 was ordered: the backup store has no whole backup of this name"
    }
    bucket.forced = names[0]
    restart(bench)


def rejoin(bench: Bench, node: FakeNode, seconds: float = 10) -> bool:
    """Tell whether a rank that restarts alone is running again after so long."""
    assert node.session is not None
    node.open(node.session.spec.rank, SHAPE)
    return bench.run(seconds, bench.all_running)


@pytest.mark.parametrize("released", ["save", "none"])
def test_a_file_put_there_after_the_release_is_obeyed_by_ranks_that_restart_one_after_another(released: str) -> None:
    bench, nodes, bucket, names = backed_up(1, 2)
    if released == "none":
        assert bench.ordered("restore", none=True).state == "done"
    restart(bench)
    assert bench.restore.outcome is (Outcome.NONE if released == "none" else Outcome.RESTORE)
    bucket.forced = names[0]
    assert not rejoin(bench, nodes[0])
    reason = f"waiting for 1 of 2 nodes: rank 1 still running in epoch 2 (restore.version orders backup {names[0]})"
    assert hashes(bench)["epoch"]["reason"] == reason
    assert rejoin(bench, nodes[1])
    assert [node.restored[-1][0] for node in nodes] == [save(1, 1)] * 2
    assert bench.restore.forced == "restore.version"
    assert rejoin(bench, nodes[0]), "it is given what the file orders"


def test_a_file_that_is_no_order_bars_a_join_until_it_is_taken_back() -> None:
    bench, nodes, bucket, _names = backed_up(1)
    restart(bench)
    bucket.forced = "latest, please"
    assert not rejoin(bench, nodes[0])
    assert "rank 1 still running in epoch 2 (restore.version: expected" in hashes(bench)["epoch"]["reason"]
    bucket.forced = ""
    assert bench.run(15, bench.all_running)
    assert hashes(bench)["epoch"]["number"] == "2"


def test_a_file_that_the_decision_knew_bars_no_join() -> None:
    bench, nodes, bucket, names = backed_up(1, 2)
    bucket.forced = names[0]
    assert bench.ordered("restore", save=save(1, 2)).state == "done"
    restart(bench)
    assert bench.restore.order == names[0]
    assert rejoin(bench, nodes[0])
    assert nodes[0].restored[-1][0] == save(1, 2)


def test_a_join_waits_for_a_silent_bucket_as_long_as_a_decision_does_and_says_so() -> None:
    bench, nodes, bucket, _names = backed_up(1)
    restart(bench)
    bucket.fault = "503"
    assert not rejoin(bench, nodes[0], bench.times.bucket_silent - 2)
    assert hashes(bench)["epoch"]["reason"] == "waiting for the backup store, which may hold a restore.version"
    assert bench.run(5, bench.all_running)
    [said] = bench.coordinators[0].said("session_joined")
    assert said.fields["reason"].startswith("restore.version was not read: the backup store ")


def test_a_join_waits_for_nothing_where_there_is_no_backup_store() -> None:
    bench = Bench()
    bench.coordinator()
    nodes = bench.cluster(2)
    assert bench.run(10, bench.all_running)
    assert rejoin(bench, nodes[0], 1)


def test_a_command_counts_before_the_file() -> None:
    bench, nodes, bucket, names = backed_up(1, 2)
    bucket.forced = names[0]
    assert bench.ordered("restore", save=save(1, 2)).state == "done"
    restart(bench)
    assert [node.restored[-1][0] for node in nodes] == [save(1, 2)] * 2
    restart(bench)
    assert [node.restored[-1][0] for node in nodes] == [save(1, 1)] * 2


def test_a_silent_bucket_is_waited_for_and_then_named_to_the_trainers() -> None:
    bench, nodes, bucket, _ = backed_up(1)
    bucket.fault = "503"
    bench.restart()
    bench.run(25)
    assert not bench.all_running()
    assert bench.run(20, bench.all_running)
    assert any("the backup store file:///bucket" in one for one in bench.restore.silent)
    assert nodes[0].restored[-1][0] == save(1, 1)


def test_a_file_that_people_changed_meanwhile_is_not_removed() -> None:
    bench, nodes, bucket, names = backed_up(1, 2)
    bucket.forced = names[0]
    restart(bench)
    bucket.forced = names[1]
    train(bench, nodes, 2)
    assert bench.run(2000, lambda: "branch" not in hashes(bench))
    assert bucket.forced == names[1]


# ---- the pure parts


def record(save_: Save | None, *, forced: str = "", backup: str | None = None) -> RestoreRecord:
    return RestoreRecord(stamp=ZERO, outcome=Outcome.RESTORE, save=save_, forced=forced, backup=backup)


def test_a_line_keeps_its_first_epoch_when_the_same_is_restored_again() -> None:
    first = begun(record(save(1, 1), forced=BY_FILE, backup=NAME), Epoch(4), None)
    assert first == Branch(epoch=Epoch(4), save=save(1, 1), backup=NAME, by=BY_FILE)
    assert begun(record(save(1, 1), forced=BY_FILE, backup=NAME), Epoch(5), first) == first
    assert begun(record(save(4, 9)), Epoch(6), first) == first
    assert begun(record(save(1, 1)), Epoch(6), first) == first


def test_a_line_ends_when_the_job_goes_on_where_it_was_before() -> None:
    branch = Branch(epoch=Epoch(4), save=save(1, 1))
    assert begun(record(save(1, 2)), Epoch(5), branch) is None
    assert begun(record(None), Epoch(5), None) is None


@pytest.mark.parametrize(
    ("text", "branch", "wanted"),
    [
        ("", None, None),
        (None, None, None),
        (f" {NAME}\n", None, Forced(backup=NAME)),
        (None, Branch(epoch=Epoch(4), backup=NAME, by=BY_FILE), Forced(backup=NAME)),
        (None, Branch(epoch=Epoch(4), backup=NAME, by=BY_COMMAND), None),
        (NAME, Branch(epoch=Epoch(4), backup=NAME, by=BY_FILE), Forced(backup=NAME)),
    ],
)
def test_what_the_file_orders(text: str | None, branch: Branch | None, wanted: Forced | None) -> None:
    facts = Facts(shape=SHAPE, stock=Inventory())
    assert file_order(text, branch, facts) == (wanted, "")
