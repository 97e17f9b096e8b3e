import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from checkpoint_replicator.cli import main
from checkpoint_replicator.cli.up import Uncleanly, announcement, judge, occupied
from checkpoint_replicator.cluster import Cluster
from checkpoint_replicator.errors import BusyError


def test_the_announcement_names_each_local_directory() -> None:
    cluster = Cluster(directory=Path("/d"), nodes=2, backup="file:///b")
    assert announcement(cluster, "redis://r:1").splitlines() == [
        "redis   redis://r:1",
        "node-0  /d/node-0",
        "node-1  /d/node-1",
        "backup  file:///b",
        "logs    /d/logs",
    ]


def test_ending_before_it_listened_to_signals_is_ending_well() -> None:
    judge({"one": 0, "absent": None, "young": -15})
    with pytest.raises(Uncleanly, match=r"found two with 70, three with -9$"):
        judge({"one": 0, "two": 70, "three": -9})


def test_a_directory_is_held_by_one_process_and_is_free_again_after(tmp_path: Path) -> None:
    busy = pytest.raises(BusyError, match=f"is in use by process {os.getpid()}")
    with occupied(tmp_path), busy, occupied(tmp_path):
        pass
    with occupied(tmp_path):
        pass


def test_a_busy_directory_is_exit_code_75(tmp_path: Path) -> None:
    with occupied(tmp_path):
        result = CliRunner().invoke(main, ["up", "--nodes", "1", "--dir", str(tmp_path)])
    assert result.exit_code == 75
    assert result.stderr == f"checkpoint-replicator: {tmp_path} is in use by process {os.getpid()}\n"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--ramdisk", "200000"], "--ramdisk: expected a size with its unit, such as 64MiB or 1.5GB, found '200000'"),
        (["--redis", "here"], "redis: expected redis://host:port/db, found 'here'"),
        (["--backup", "/folder"], "backup root '/folder': expected file:///folder"),
        (["--backup", "file:///proc/none"], "--backup: /proc/none cannot be made: No such file or directory"),
    ],
)
def test_a_wrong_value_is_said_before_anything_is_made(tmp_path: Path, words: list[str], text: str) -> None:
    directory = tmp_path / "cluster"
    result = CliRunner().invoke(main, ["up", "--nodes", "1", "--dir", str(directory), *words])
    assert result.exit_code == 78
    assert result.stderr.startswith(f"checkpoint-replicator: {text}")
    assert len(result.stderr.splitlines()) == 1
    assert not directory.exists()


def test_a_redis_that_does_not_answer_is_said_at_once(tmp_path: Path) -> None:
    address = "127.0.0.1:1"  # nobody may listen there but root
    words = ["up", "--nodes", "1", "--dir", str(tmp_path / "cluster"), "--redis", f"redis://{address}/0"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 75
    assert result.stderr == f"checkpoint-replicator: Redis at {address} does not answer: Connection refused\n"


def test_a_directory_that_cannot_be_made_is_exit_code_78() -> None:
    result = CliRunner().invoke(main, ["up", "--nodes", "1", "--dir", "/proc/none"])
    assert result.exit_code == 78
    assert result.stderr == "checkpoint-replicator: --dir: /proc/none cannot be made: No such file or directory\n"


def test_the_root_of_the_backups_is_made_where_it_is_absent(tmp_path: Path) -> None:
    directory, root = tmp_path / "cluster", tmp_path / "new" / "back ups"
    directory.mkdir()
    with occupied(directory):  # so that it goes no further
        words = ["up", "--nodes", "1", "--dir", str(directory), "--backup", f"file://{root}"]
        assert CliRunner().invoke(main, words).exit_code == 75
    assert root.is_dir()


@pytest.mark.parametrize("nodes", ["0", "65", "x"])
def test_an_impossible_number_of_nodes_is_refused(tmp_path: Path, nodes: str) -> None:
    result = CliRunner().invoke(main, ["up", "--nodes", nodes, "--dir", str(tmp_path)])
    assert result.exit_code == 2
    assert "--nodes" in result.output
