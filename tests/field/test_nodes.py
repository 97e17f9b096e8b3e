"""Rows about one node: its watcher's machine over a ramdisk in memory; the test plays trainer and coordinator."""

import pytest

from checkpoint_replicator.ids import Rank
from checkpoint_replicator.messages import Room
from checkpoint_replicator.placement import place
from checkpoint_replicator.session import SessionState
from checkpoint_replicator.yaml import Accepted, read_session
from checkpoint_watcher import effects as do
from checkpoint_watcher.effects import AppendErrors
from support.watcher_shell import ModelRamdisk, WatcherShell, yaml_text
from support.watcher_story import open_session, run_fresh, state, tag


@pytest.fixture
def shell() -> WatcherShell:
    return WatcherShell(ModelRamdisk()).start()


def refusal(shell: WatcherShell, text: bytes, *, seconds: float = 0) -> str:
    """Give a bad yaml to a node that holds a save; returns `replicator.failed`. The next good one must work."""
    shell.disk.hold(tag(3), "3/0/0")
    shell.disk.files["notes.txt"] = "mine"
    shell.disk.write_yaml(text)
    shell.scan()
    shell.wait(seconds)
    failed = shell.disk.files.get("replicator.failed", "")
    assert failed.startswith("replicator.yaml: ")
    assert shell.disk.yaml is None
    assert shell.disk.files == {"notes.txt": "mine", "replicator.failed": failed}
    assert tag(3) in shell.disk.held
    assert not shell.all(do.DropSaves)
    run_fresh(shell)
    assert "replicator.failed" not in shell.disk.files
    return failed


def without(key: str) -> bytes:
    return b"".join(line for line in yaml_text().splitlines(keepends=True) if not line.startswith(key.encode()))


def test_fault_25_an_empty_yaml_is_waited_for_and_then_refused(shell: WatcherShell) -> None:
    shell.disk.write_yaml(b"")
    shell.scan()
    shell.wait(9)
    assert shell.disk.yaml is not None
    assert "empty" in refusal(shell, b"", seconds=12)


@pytest.mark.parametrize("text", [b"{{{", b"- job-name\n- nodes\n", b"hello\n", b"job-name: [1, 2\n"])
def test_fault_26_what_is_no_mapping_is_refused_once_and_is_no_crash_loop(shell: WatcherShell, text: bytes) -> None:
    failed = refusal(shell, text)
    assert "expected" in failed or "is not YAML" in failed
    assert shell.order(do.WriteFailed) == ["WriteFailed"]


@pytest.mark.parametrize("key", ["job-name", "nodes", "node-rank", "framework"])
def test_fault_26_a_missing_key_is_refused_by_its_name(shell: WatcherShell, key: str) -> None:
    failed = refusal(shell, without(key))
    assert failed.startswith(f"replicator.yaml: {key}: expected ")
    assert failed.endswith("found no such key")


def test_fault_26_without_peers_per_node_a_session_runs_and_says_nothing(shell: WatcherShell) -> None:
    assert b"peers-per-node" not in yaml_text()
    run_fresh(shell)
    assert "replicator.failed" not in shell.disk.files


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (without("framework"), "framework"),
        (yaml_text(framework="jax"), "framework"),
        (yaml_text(workers_per_node="x"), "workers-per-node"),
    ],
)
def test_fault_27_a_bad_framework_or_worker_is_refused_before_anything_is_restored_or_deleted(
    shell: WatcherShell, text: bytes, key: str
) -> None:
    assert f"{key}: expected " in refusal(shell, text)


def test_fault_27_no_master_is_needed(shell: WatcherShell) -> None:
    run_fresh(shell)
    assert state(shell) is SessionState.RUNNING


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"backup_interval_minutes": "x"}, "backup-interval-minutes"),
        ({"nodes": "two"}, "nodes"),
        ({"nodes": 0}, "nodes"),
        ({"nodes": -1}, "nodes"),
        ({"assume_data_parallelism": "x"}, "assume-data-parallelism"),
        ({"peer_ranks": "[9]"}, "peer-ranks"),
    ],
)
def test_fault_28_a_number_that_is_none_or_out_of_range_is_refused_on_its_own_node(
    shell: WatcherShell, keys: dict[str, object], key: str
) -> None:
    assert f"{key}: expected " in refusal(shell, yaml_text(**keys))  # type: ignore[arg-type]


@pytest.mark.parametrize("keys", [{}, {"peers_per_node": 0}, {"backup_interval_minutes": 30}])
def test_fault_28_no_interval_and_no_peers_are_a_job_like_any_other(
    shell: WatcherShell, keys: dict[str, object]
) -> None:
    run_fresh(shell, **keys)
    assert state(shell) is SessionState.RUNNING


@pytest.mark.parametrize(
    ("keys", "notes", "peers"),
    [
        ({"peers_per_node": 5}, ("peers-per-node 5 counts as 1: a job of 2 nodes has no more peers",), (1,)),
        ({"peer_ranks": "[0]"}, ("peer-ranks: struck 0, the own rank",), ()),
        ({"peer_ranks": "[0, 1]"}, ("peer-ranks: struck 0, the own rank",), (1,)),
        (
            {"assume_data_parallelism": 4, "peers_per_node": 1},
            ("assume-data-parallelism 4 counts as 2: every node holds the whole model",),
            (1,),
        ),
        ({"peers_per_node": 1, "colour": "red"}, ("ignored the unknown key 'colour'",), (1,)),
    ],
)
def test_fault_31_what_cannot_be_meant_is_put_right_with_a_note_and_copies_are_really_made(
    keys: dict[str, object], notes: tuple[str, ...], peers: tuple[int, ...]
) -> None:
    answer = read_session(yaml_text(**keys))  # type: ignore[arg-type]
    assert isinstance(answer, Accepted)
    assert answer.notes == notes
    hosts = {Rank(0): "a", Rank(1): "b"}
    spec = answer.spec
    placed = place(Rank(0), hosts, peer_ranks=spec.peer_ranks, peers_per_node=spec.peers_per_node)  # type: ignore[arg-type]
    assert (placed.peers, placed.asked, placed.same_host) == (peers, len(peers), False)


def test_fault_31_a_parallelism_that_fits_no_node_is_refused_and_nothing_is_called_replicated(
    shell: WatcherShell,
) -> None:
    failed = refusal(shell, yaml_text(assume_data_parallelism=3))
    assert "expected a divisor or multiple of nodes (2), found 3" in failed


@pytest.mark.parametrize("job", ["../evil", '"$HOME"', "a/b", "x" * 300, "..", '"*"', '"a\\nb"', '"a\\0b"'])
def test_fault_35_a_job_name_that_leads_out_is_refused_and_nothing_is_written_by_it(
    shell: WatcherShell, job: str
) -> None:
    failed = refusal(shell, yaml_text(job=job))
    assert failed.startswith("replicator.yaml: ")
    assert "job-name" in failed or "not YAML" in failed
    published = [effect for effect in shell.done if isinstance(effect, do.PublishMarkers)]
    markers = [marker.name for effect in published for marker in effect.markers]
    assert markers == ["j-s0-n0-w0.restore"]


def test_fault_7_a_node_whose_ramdisk_is_full_says_so_and_goes_on(shell: WatcherShell) -> None:
    """There it ended with code 1, since even its error log found no room, and the others waited for ever."""
    run_fresh(shell)
    shell.disk.save(1)
    shell.scan()
    shell.hold = (AppendErrors,)  # no room for the line either
    shell.disk.room = Room(size=10, free=0)
    shell.disk.save(2, "x" * 9)
    shell.scan()
    shell.wait(2)
    assert [held.save.step for held in shell.disk.held] == [1]
    assert [(fault.kind, fault.save.step) for fault in shell.report.faults if fault.save] == [("skipped", 2)]
    assert shell.machine.running
    assert open_session(shell)


def test_s52_of_64_mib_for_shards_of_20_and_two_copies_the_alarm_comes_with_the_first_save(shell: WatcherShell) -> None:
    mib = 1 << 20
    run_fresh(shell, nodes=3, peers_per_node=2)
    shell.disk.room = Room(size=64 * mib, free=64 * mib)
    shell.disk.save(1, "x" * 20 * mib)
    shell.scan()
    shell.scan()
    shell.wait(2)
    (fault,) = [fault for fault in shell.report.faults if fault.kind == "undersized"]
    assert shell.report.room is not None
    assert shell.report.room.needed == 142 * mib  # 2 generations x (1 own + 2 copies) x 20 MiB, and a tenth of it own
    assert fault.reason.startswith(f"the ramdisk has {64 * mib} bytes; two saves and 2 copies for others of each need ")
    assert fault.reason in shell.disk.files["replicator.errors"]
    assert "replicator.failed" not in shell.disk.files


def test_s26_what_cannot_be_saved_stops_no_trainer(shell: WatcherShell) -> None:
    run_fresh(shell)
    for step in (1, 2, 3):
        shell.disk.save(step, f"unsupported {step}")
        shell.scan()
    shell.wait(1)
    assert [fault.kind for fault in shell.report.faults] == ["unsupported"] * 3
    assert "replicator.failed" not in shell.disk.files
    assert shell.disk.files["replicator.errors"].count("\n") == 3
    shell.disk.save(4)
    shell.scan()
    assert list(shell.disk.held) == [tag(4)]
