"""Coordinator and Redis are lost in mid-run; trainers notice nothing and saves go on to be committed."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from support.cluster import LiveCluster, Team, live_cluster
from support.redis import command

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]

NODES = 2


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[LiveCluster]:
    async with live_cluster(NODES) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def team(cluster: LiveCluster) -> Team:
    """Trainers that have begun and saved step 1; the tests below save on with them, in order."""
    trainers = cluster.team("job")
    assert await trainers.restore() is None
    await trainers.save(1)
    await cluster.committed("job", 1)
    return trainers


async def test_the_stand_by_goes_on_when_the_coordinator_is_killed(cluster: LiveCluster, team: Team) -> None:
    active = (await cluster.status("job")).coordinator
    assert active in {"coordinator-0", "coordinator-1"}
    await cluster.supervisor.kill([active])
    await team.save(2)
    status = await cluster.committed("job", 2)
    assert status.coordinator not in {active, ""}
    assert status.epoch == 1
    await cluster.start([active])


async def test_a_killed_watcher_transfer_and_uploader_go_on_where_they_were(cluster: LiveCluster, team: Team) -> None:
    await cluster.kill_node(1)
    await team.save(3)
    await cluster.start_node(1)
    status = await cluster.committed("job", 3)
    assert status.epoch == 1


async def test_a_restart_of_redis_costs_nothing(cluster: LiveCluster, team: Team) -> None:
    await cluster.supervisor.kill(["redis"])
    await team.save(4)
    await cluster.start(["redis"])
    status = await cluster.committed("job", 4)
    assert status.epoch == 1


async def test_flushall_costs_a_rebuild_and_starts_no_restore(cluster: LiveCluster, team: Team) -> None:
    assert command(cluster.redis, "FLUSHALL") == b"+OK\r\n"
    await team.save(5)
    status = await cluster.committed("job", 5)
    assert status.state == "running"
    assert not list(cluster.cluster.ramdisk(0).glob("*.restore"))
    assert not list(cluster.cluster.ramdisk(0).glob("replicator.failed"))


async def test_the_job_then_restores_the_last_save(cluster: LiveCluster, team: Team) -> None:
    del team
    assert await cluster.team("job").restore() == 5


async def test_sigterm_ends_every_process_with_exit_code_0(cluster: LiveCluster) -> None:
    codes = await cluster.supervisor.stop()
    assert set(codes.values()) == {0}
