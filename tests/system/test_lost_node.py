"""A node, then all nodes, are lost with their ramdisks; the job gets its bytes back, from peers and from the backup."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from checkpoint_replicator.cluster import node_services
from checkpoint_replicator.status import Protection
from support.cluster import LiveCluster, live_cluster

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]

NODES = 4
LOST = 2


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[("pytorch", 1), ("pytorch", 2), ("pytorch.distributed", 1), ("pytorch.distributed", 2)],
    ids=lambda param: f"{param[0]}-{param[1]}",
)
async def kind(request: pytest.FixtureRequest) -> tuple[str, int]:
    framework, workers = request.param
    return str(framework), int(workers)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(kind: tuple[str, int]) -> AsyncIterator[LiveCluster]:
    del kind  # one cluster for each
    async with live_cluster(NODES, backup=True) as running:
        yield running


async def test_saves_of_all_nodes_are_committed_with_a_copy_on_another_host(
    cluster: LiveCluster, kind: tuple[str, int]
) -> None:
    framework, workers = kind
    team = cluster.team("job", framework=framework, workers=workers, backup_minutes=0.01)
    assert await team.restore() is None
    await team.save(1, 2, 3)
    status = await cluster.committed("job", 3)
    assert status.protection is Protection.PROTECTED
    assert status.replicas == 1
    assert [node.host for node in status.nodes] == [f"node-{rank}" for rank in range(NODES)]


async def test_the_shards_of_a_lost_node_come_back_from_its_peers(cluster: LiveCluster, kind: tuple[str, int]) -> None:
    framework, workers = kind
    await cluster.kill_node(LOST)
    cluster.wipe(LOST)
    await cluster.start_node(LOST)
    team = cluster.team("job", framework=framework, workers=workers, backup_minutes=0.01)
    assert await team.restore() == 3
    await team.save(4)
    await cluster.committed("job", 4)


async def test_all_ramdisks_lost_the_backup_comes_back(cluster: LiveCluster, kind: tuple[str, int]) -> None:
    framework, workers = kind
    await cluster.backed_up("job", 4)
    assert all("backup_failed" not in cluster.said(f"coordinator-{number}") for number in (0, 1))
    for node in range(NODES):
        await cluster.kill_node(node)
        cluster.wipe(node)
    everything = [name for node in range(NODES) for name in node_services(node)]
    await cluster.start(everything)
    assert await cluster.team("job", framework=framework, workers=workers).restore() == 4


async def test_sigterm_ends_every_process_with_exit_code_0(cluster: LiveCluster) -> None:
    codes = await cluster.supervisor.stop()
    assert set(codes.values()) == {0}
