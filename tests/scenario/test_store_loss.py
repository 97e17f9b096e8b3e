"""Redis forgets, comes back older, or its clock jumps: healed in one round, nothing is deleted or restarted."""

from collections.abc import Callable

import pytest

from checkpoint_coordinator.words import ReportReceived
from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Epoch
from checkpoint_replicator.save import Save
from checkpoint_replicator.session import SessionState
from checkpoint_replicator.shape import Shape
from support.coordination import JOB, Bench, Coordinator
from support.fake_nodes import Bucket, FakeNode

DAY = 24 * 3600.0
ROUND = 12.0
"""Seconds for a renewal to see it, a lease with a higher token, and a report of every node."""


def running(nodes: int = 3) -> tuple[Bench, list[FakeNode]]:
    bench = Bench()
    bench.coordinator()
    made = list(bench.cluster(nodes))
    assert bench.run(10, bench.all_running)
    return bench, made


def commit(bench: Bench, nodes: list[FakeNode], step: int, within: float = 10) -> Save:
    (save,) = {node.save(step) for node in nodes}
    assert bench.run(within, lambda: str(save) in bench.committed()), bench.store.snapshot(JOB).hashes
    bench.run(3)
    return save


def replace(bench: Bench) -> Coordinator:
    """The coordinator is gone for good; another process begins."""
    bench.coordinators[-1].paused = True
    return bench.coordinator(f"c{len(bench.coordinators) + 1}")


class Standing:
    """What must not change: markers, sessions, and what lies on the nodes."""

    def __init__(self, bench: Bench, nodes: list[FakeNode]) -> None:
        self.bench = bench
        self.nodes = nodes
        self.before = self._now()

    def _now(self) -> list[object]:
        return [
            (node.host, len(node.restored), node.session and node.session.id, sorted(node.held), len(node.dropped))
            for node in self.nodes
        ]

    def check(self) -> None:
        assert self._now() == self.before
        assert all(node.session is not None and node.session.state is SessionState.RUNNING for node in self.nodes)
        assert [node.failed for node in self.nodes] == [None] * len(self.nodes)


def flush(bench: Bench) -> None:
    bench.store.flush()


def test_s102_flushall_is_healed_in_one_round() -> None:
    bench, nodes = running()
    save = commit(bench, nodes, 1)
    standing = Standing(bench, nodes)
    before = bench.store.snapshot(JOB).hashes
    flush(bench)
    bench.run(ROUND)
    standing.check()
    after = bench.store.snapshot(JOB).hashes
    assert after["keep"]["upto"] == before["keep"]["upto"] == str(save)
    assert after["epoch"]["number"] == before["epoch"]["number"]
    assert after["epoch"]["members"] == before["epoch"]["members"]
    assert after["restore:1"]["decision"] == before["restore:1"]["decision"]
    commit(bench, nodes, 2)


def test_s102_an_old_snapshot_under_a_coordinator_that_remembers_is_written_over_in_one_round() -> None:
    bench, nodes = running()
    commit(bench, nodes, 1)
    go_back = bench.store.backup()
    bench.restart()
    assert bench.run(10, bench.all_running)
    save = commit(bench, nodes, 2)
    before = bench.store.snapshot(JOB).hashes
    standing = Standing(bench, nodes)
    go_back()
    bench.run(ROUND)
    standing.check()
    after = bench.store.snapshot(JOB).hashes
    assert (after["epoch"]["number"], after["epoch"]["state"]) == ("2", "running")
    assert after["epoch"]["members"] == before["epoch"]["members"]
    assert after["restore:2"]["decision"] == before["restore:2"]["decision"]
    assert after["keep"]["upto"] == str(save)
    assert after["step:2.2"]["state"] == "committed"
    commit(bench, nodes, 3)


def test_s102_an_old_snapshot_and_a_new_coordinator_go_on_with_the_running_epoch() -> None:
    bench, nodes = running()
    commit(bench, nodes, 1)
    go_back = bench.store.backup()
    bench.restart()
    assert bench.run(10, bench.all_running)
    save = commit(bench, nodes, 2)
    standing = Standing(bench, nodes)
    bench.coordinators[0].paused = True
    go_back()
    bench.coordinator("c2")
    bench.run(10 + ROUND)
    standing.check()
    after = bench.store.snapshot(JOB).hashes
    assert (after["epoch"]["number"], after["epoch"]["state"]) == ("2", "running")
    assert bench.committed()[-1] == str(save)
    commit(bench, nodes, 3)
    bench.restart()
    assert bench.run(20, bench.all_running)
    assert {str(node.restored[-1][0]) for node in nodes} == {"2.3"}


@pytest.mark.parametrize("fault", ["flushed", "old"])
def test_s107_what_a_paused_coordinator_remembers_is_history_when_another_led_meanwhile(fault: str) -> None:
    bench, nodes = running()
    commit(bench, nodes, 1)
    go_back: Callable[[], None] = bench.store.backup()
    first, second = bench.coordinators[0], bench.coordinator("c2")
    first.paused = True
    assert bench.run(15, lambda: second.machine.active)
    bench.restart()
    assert bench.run(10, bench.all_running)
    save = commit(bench, nodes, 5)
    standing = Standing(bench, nodes)
    second.paused = True
    if fault == "flushed":
        flush(bench)
    else:
        go_back()
    first.paused = False
    first.hear(ReportReceived(nodes[0].sender, nodes[0].report()))
    assert bench.run(40, lambda: first.machine.active)
    bench.run(2 * ROUND)
    standing.check()
    assert bench.epoch["number"] == "2"
    assert bench.committed()[-1] == str(save)
    commit(bench, nodes, 6)
    assert {str(tag.save) for node in nodes for tag in node.held} == {"2.6"}


def test_what_people_ordered_outlives_flushall_since_a_stand_by_leaves_the_lease_to_who_remembers() -> None:
    bench, nodes = running()
    save = commit(bench, nodes, 1)
    bench.coordinator("c2")
    bench.run(2)
    assert bench.ordered("hold", reason="we look").state == "done"
    assert bench.ordered("restore", save=save).state == "done"
    for tenth in range(10):  # at one of these moments the stand-by is the first to ask
        bench.run(3 + tenth / 10)
        flush(bench)
        bench.run(2 * ROUND)
        assert [one.machine.active for one in bench.coordinators] == [True, False]
        assert bench.hashes()["hold"]["reason"] == "we look"
        assert bench.hashes()["forced"]["save"] == str(save)


@pytest.mark.parametrize("fault", ["flushed", "old"])
def test_a_hold_is_found_on_the_hosts_when_redis_and_who_remembered_it_are_gone(fault: str) -> None:
    bench, nodes = running()
    save = commit(bench, nodes, 1)
    go_back: Callable[[], None] = bench.store.backup()
    assert bench.ordered("hold", reason="we look").state == "done"
    bench.coordinators[0].paused = True
    if fault == "flushed":
        flush(bench)
    else:
        go_back()
    second = bench.coordinator("c2")
    assert bench.run(30, lambda: second.machine.active)
    commit(bench, nodes, 2)
    assert {save} <= {tag.save for node in nodes for tag in node.held}
    assert bench.hashes()["hold"]["reason"] == "found on the hosts after Redis lost its data"
    assert bench.ordered("resume").state == "done"
    bench.run(3)
    assert "hold" not in bench.hashes()
    assert save not in {tag.save for node in nodes for tag in node.held}


def test_a_hold_that_had_ended_is_dropped_as_soon_as_a_host_tells_of_a_later_list() -> None:
    bench, nodes = running()
    commit(bench, nodes, 1)
    assert bench.ordered("hold").state == "done"
    nodes[2].alive = False  # it does not hear that the hold ends
    assert bench.ordered("resume").state == "done"
    bench.run(3)
    bench.coordinators[0].paused = True
    flush(bench)
    for node in nodes:
        node.alive = not node.alive
    second = bench.coordinator("c2")
    assert bench.run(30, lambda: "hold" in bench.hashes())
    for node in nodes:
        node.alive = True
    assert bench.run(10, lambda: "hold" not in bench.hashes())
    assert [note.event for note in second.notes if note.event.startswith("hold_")] == ["hold_found", "hold_ended"]


def test_whoever_got_the_flushed_lease_first_wins_and_the_old_leader_steps_down() -> None:
    bench, nodes = running()
    commit(bench, nodes, 1)
    standing = Standing(bench, nodes)
    flush(bench)
    second = bench.coordinator("c2")
    second.hear(ReportReceived(nodes[0].sender, nodes[0].report()))
    bench.run(2 * ROUND)
    standing.check()
    holders = [one for one in bench.coordinators if one.machine.active]
    assert len(holders) == 1
    commit(bench, nodes, 2)


def test_nothing_is_deleted_before_all_have_reported_to_who_rebuilt_the_index() -> None:
    bench, nodes = running()
    commit(bench, nodes, 1)
    flush(bench)
    bench.cut_off = {nodes[2].host}
    for node in nodes:
        node.save(2)
    standing = Standing(bench, nodes)
    bench.run(15)
    assert [len(node.dropped) for node in nodes] == [row[4] for row in standing.before]  # type: ignore[index]
    bench.cut_off.clear()
    assert bench.run(20, lambda: bench.committed()[-1:] == ["1.2"])


def test_who_finds_only_a_backup_goes_on_above_the_stamp_of_its_manifest() -> None:
    bucket = Bucket()
    bench = Bench(bucket=bucket)
    bench.coordinator()
    nodes = bench.cluster(2)
    assert bench.run(10, bench.all_running)
    for token in range(2, 5):  # each coordinator's lease has a higher token
        replace(bench)
        assert bench.run(15, lambda: bench.coordinators[-1].machine.active)
        lease = bench.coordinators[-1].machine.lease
        assert lease is not None
        assert lease.token == token
    save = commit(bench, list(nodes), 1)
    assert bench.run(20, lambda: "lastbackup" in bench.store.snapshot(JOB).hashes)
    bench.coordinators[-1].paused = True
    flush(bench)
    for rank, node in enumerate(nodes):
        node.wipe()
        node.start()
        node.open(rank, Shape(2, 1, 1, "pytorch"))
    fresh = bench.coordinator("fresh")
    assert bench.run(40, bench.all_running)
    assert bench.restore.save == save
    assert fresh.machine.lease is not None
    assert fresh.machine.lease.token > 4
    assert bench.restore.stamp > Stamp(4, Epoch(1), 10)
    assert "a backup was written under 4.1" in fresh.said("fence_raised")[0].fields["reason"]


# ---- clocks


@pytest.mark.parametrize("skew", [DAY, -DAY], ids=["forward", "back"])
def test_a_clock_of_redis_that_jumps_a_day_costs_a_lease_and_nothing_else(skew: float) -> None:
    bench, nodes = running()
    commit(bench, nodes, 1)
    standing = Standing(bench, nodes)
    bench.skew = skew
    bench.run(ROUND)
    standing.check()
    commit(bench, nodes, 2)


@pytest.mark.parametrize("skew", [DAY, -DAY], ids=["forward", "back"])
def test_a_stand_by_takes_over_in_time_whatever_the_clock_of_redis_did(skew: float) -> None:
    bench, nodes = running()
    commit(bench, nodes, 1)
    standing = Standing(bench, nodes)
    second = replace(bench)
    bench.skew = skew
    assert bench.run(12, lambda: second.machine.active)
    bench.run(ROUND)
    standing.check()
    commit(bench, nodes, 2)


# ---- keys that somebody spoilt

KEYS = ["epoch", "keep", "orders", "alive", "events", "keys", "steps", "node:0", "step:1.1", "restore:1"]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("value", ["a string", {"some": "hash"}], ids=["string", "hash"])
def test_a_key_that_somebody_spoilt_is_named_and_written_anew(key: str, value: str | dict[str, str]) -> None:
    bench, nodes = running()
    commit(bench, nodes, 1)
    standing = Standing(bench, nodes)
    before = bench.store.snapshot(JOB).hashes
    bench.store.put(f"ckpt:{{{JOB}}}:{key}", value)
    bench.run(bench.times.repair + ROUND)
    assert healed(bench, before)
    standing.check()
    told = " ".join(note.fields["reason"] for note in bench.coordinators[0].said("index_repaired"))
    assert key in told or key in {"events", "alive", "keys"}  # these are written anyway
    commit(bench, nodes, 2)


def test_a_store_that_nobody_touched_is_never_repaired() -> None:
    bench, nodes = running()
    commit(bench, nodes, 1)
    bench.run(3 * bench.times.repair)
    assert bench.coordinators[0].said("index_repaired") == []


@pytest.mark.parametrize("key", KEYS)
def test_a_new_coordinator_goes_on_whatever_somebody_spoilt(key: str) -> None:
    bench, nodes = running()
    commit(bench, nodes, 1)
    standing = Standing(bench, nodes)
    second = replace(bench)
    bench.store.put(f"ckpt:{{{JOB}}}:{key}", "a string")
    assert bench.run(15, lambda: second.machine.active)
    bench.run(ROUND)
    standing.check()
    assert bench.store.snapshot(JOB).spoilt == {}
    commit(bench, nodes, 2)


def healed(bench: Bench, before: dict[str, dict[str, str]]) -> bool:
    """Tell whether all keys stand that stood before, and what is decided is as it was."""
    found = bench.store.snapshot(JOB)
    fields = {
        "epoch": ("number", "members"),
        "keep": ("upto", "keep"),
        "restore:1": ("decision",),
        "step:1.1": ("state",),
    }
    same = all(
        found.hashes.get(key, {}).get(name) == before[key][name] for key, names in fields.items() for name in names
    )
    return same and not found.spoilt and found.hashes.keys() >= before.keys()
