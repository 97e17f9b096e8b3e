"""Clusters of one and of three nodes, step 0, more than one replica, and a coordinator that dies during a restore."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from checkpoint_replicator.cluster import node_services
from checkpoint_replicator.status import Protection
from support.cluster import LiveCluster, live_cluster

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def three() -> AsyncIterator[LiveCluster]:
    async with live_cluster(3) as running:
        yield running


async def test_one_node_commits_with_its_own_copy_and_says_so() -> None:
    async with live_cluster(1) as cluster:
        team = cluster.team("job")
        assert await team.restore() is None
        await team.save(0)
        status = await cluster.committed("job", 0)
        assert status.protection is Protection.UNPROTECTED
        assert await cluster.team("job").restore() == 0


async def test_two_replicas_of_step_0_survive_the_loss_of_two_of_three_nodes(three: LiveCluster) -> None:
    team = three.team("job", peers=2)
    assert await team.restore() is None
    await team.save(0)
    status = await three.committed("job", 0)
    assert (status.protection, status.replicas) == (Protection.PROTECTED, 2)
    for node in (0, 2):
        await three.kill_node(node)
        three.wipe(node)
    await three.start([*node_services(0), *node_services(2)])
    assert await three.team("job", peers=2).restore() == 0


async def test_a_restore_outlives_the_coordinator_that_began_it(three: LiveCluster) -> None:
    await three.kill_node(1)
    three.wipe(1)
    await three.start_node(1)
    restore = asyncio.create_task(three.team("job", peers=2).restore())
    await asyncio.sleep(0.3)  # some way into gathering, deciding or moving; each must do
    await three.supervisor.kill([(await three.status("job")).coordinator])
    assert await restore == 0
