import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from checkpoint_replicator.cli import main
from checkpoint_replicator.cli.up import announcement, occupied
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


@pytest.mark.parametrize("nodes", ["0", "65", "x"])
def test_an_impossible_number_of_nodes_is_refused(tmp_path: Path, nodes: str) -> None:
    result = CliRunner().invoke(main, ["up", "--nodes", nodes, "--dir", str(tmp_path)])
    assert result.exit_code == 2
    assert "--nodes" in result.output
