"""`checkpoint-replicator explain`: why a job, or a save, is where it is."""

import asyncio

import click
import msgspec

from checkpoint_replicator.cli.option import job_option, known_job, redis_option
from checkpoint_replicator.cli.order import read_save
from checkpoint_replicator.cli.status import MIXED
from checkpoint_replicator.explain import explain_job, explain_save
from checkpoint_replicator.ids import Host
from checkpoint_replicator.save import Save
from checkpoint_replicator.store.redis import RedisManifestStore

__all__ = ["explain"]


@click.command(short_help="Say why a job, or a save, is where it is.")
@job_option
@click.option("--save", metavar="EPOCH.STEP", help="Explain this save, as `status` names it.")
@click.option("--json", "as_json", is_flag=True, help="A JSON list of the lines, for scripts.")
@redis_option
def explain(job: str, save: str | None, redis: str, *, as_json: bool) -> None:
    """Say why a job is where it is: who is waited for, what was restored and why nothing newer, what people ordered.

    Exit codes: 0 explained, 66 no such job, 75 Redis does not answer or knows no job at all yet, 76 a value in Redis
    does not parse.
    """
    lines = asyncio.run(_read(redis, job, None if save is None else read_save(save)))
    click.echo(msgspec.json.encode(lines).decode() if as_json else "\n".join(lines))


async def _read(redis: str, name: str, save: Save | None) -> list[str]:
    store = RedisManifestStore(redis)
    try:
        job = await known_job(store, name)
        view = await store.view(job, Host(""), None)
        found = await store.snapshot(job, mixed=True)
        lines = explain_job(view, found.hashes) if save is None else explain_save(save, view, found.hashes)
        return [*lines, f"read {MIXED}"] if found.mixed else lines
    finally:
        await store.close()
