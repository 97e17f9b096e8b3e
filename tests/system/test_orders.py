"""What people order, by the real commands against real processes: hold, restore, explain, forget."""

import subprocess
import sys
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from click.testing import CliRunner

from checkpoint_replicator.cli import main
from support.cluster import LiveCluster, live_cluster
from support.eventually import eventually

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]

JOB = "llama-8b"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[LiveCluster]:
    async with live_cluster(2) as running:
        yield running


def command(cluster: LiveCluster, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run `checkpoint-replicator` on the cluster's job."""
    line = [sys.executable, "-m", "checkpoint_replicator", *words, "--job", JOB, "--redis", cluster.redis]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)


def keys(cluster: LiveCluster) -> set[str]:
    """Return the names of the job's keys."""
    words = ["redis", "--raw", "-u", cluster.redis, "KEYS", f"ckpt:{{{JOB}}}:*"]
    return set(CliRunner().invoke(main, words).stdout.split())


async def test_a_hold_keeps_every_save_and_an_older_one_comes_back_over_a_lost_redis(cluster: LiveCluster) -> None:
    team = cluster.team(JOB)
    assert await team.restore() is None
    await team.save(1)
    await cluster.committed(JOB, 1)
    held = command(cluster, "hold", "--reason", "we look")
    assert (held.returncode, held.stdout) == (0, "nothing is deleted, pruned or backed up (2 hosts obey)\n")
    await team.save(2)
    await cluster.committed(JOB, 2)
    names = {path.name for path in cluster.cluster.ramdisk(0).glob("*.meta")}
    assert {f"{JOB}-s{step}-n0-w0.meta" for step in (1, 2)} <= names
    refused = command(cluster, "restore", "--save", "1.9")
    assert refused.returncode == 77
    assert refused.stderr.endswith("checkpoint-replicator: save 1.9: nobody holds it\n")
    ordered = command(cluster, "restore", "--save", "1.1")
    assert (ordered.returncode, ordered.stdout) == (0, "save 1.1 is restored at the next start of all trainers\n")
    assert "save 1.1 is ordered for the next release" in command(cluster, "explain").stdout
    assert CliRunner().invoke(main, ["redis", "-u", cluster.redis, "FLUSHALL"]).output == "OK\n"
    await eventually(lambda: {f"ckpt:{{{JOB}}}:hold", f"ckpt:{{{JOB}}}:forced"} <= keys(cluster), 30)
    team = cluster.team(JOB)
    assert await team.restore() == 1
    assert "that was ordered by people, by command" in command(cluster, "explain").stdout
    assert command(cluster, "hold", "--release").returncode == 0


async def test_a_job_is_forgotten_with_all_that_its_hosts_have(cluster: LiveCluster) -> None:
    assert command(cluster, "forget", "--ramdisks").returncode == 77
    forgotten = command(cluster, "forget", "--ramdisks", "--force")
    assert forgotten.returncode == 0, forgotten.stderr
    await eventually(lambda: keys(cluster) == {f"ckpt:{{{JOB}}}:fence"}, 40)
    for node in range(2):
        left = [path.name for path in cluster.cluster.ramdisk(node).iterdir() if path.name != ".replicator"]
        assert left == []
    await eventually(lambda: command(cluster, "explain").returncode == 75)  # its name goes last; no other job is known
    team = cluster.team(JOB)
    assert await team.restore() is None
