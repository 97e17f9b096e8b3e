"""`checkpoint-replicator status`: what the cluster knows of its jobs, out of Redis."""

import asyncio

import click
import msgspec

from checkpoint_replicator.status import ClusterStatus, read_cluster, status_text
from checkpoint_replicator.store.redis import RedisManifestStore

__all__ = ["status"]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for scripts.")
@click.option(
    "--redis",
    metavar="URL",
    envvar="CHECKPOINT_REDIS",
    default="redis://127.0.0.1:6379/0",
    show_default=True,
    show_envvar=True,
)
def status(redis: str, as_json: bool) -> None:
    """Show jobs, epochs, nodes, saves, replicas, protection and the age of the backup.

    Exit codes: 0 shown, 75 Redis does not answer, 76 a value in Redis does not parse.
    """
    found = asyncio.run(_read(redis))
    click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() if as_json else status_text(found))


async def _read(redis: str) -> ClusterStatus:
    store = RedisManifestStore(redis)
    try:
        return await read_cluster(store)
    finally:
        await store.close()
