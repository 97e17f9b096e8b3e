"""`checkpoint-replicator forget`: what was committed does not count any more, or nothing of the job is left."""

import click

from checkpoint_replicator.cli.order import order_options, run_order
from checkpoint_replicator.messages import Wish
from checkpoint_replicator.wishes import WishKind

__all__ = ["forget"]


@click.command()
@order_options
@click.option("--ramdisks", is_flag=True, help="Also remove all that the hosts hold of it; backups stay.")
@click.option("--force", is_flag=True, help="Although its trainers may still run.")
def forget(job: str, redis: str, timeout: float, *, ramdisks: bool, force: bool) -> None:
    """Forget a job that is over, or that lost everything.

    What was committed up to now does not count as lost any more; what is still whole is restored as ever. When no live
    host has anything of the job, or with --ramdisks, its keys go from Redis (but its fence: numbers never go back; its
    lease runs out by itself within 10 s).
    Exit codes: 0 forgotten, 66 no such job, 75 Redis, the coordinator or a host does not answer, or Redis knows no job
    at all yet, 77 refused.
    """
    wish = Wish(id="", kind=WishKind.FORGET, until=0, ramdisks=ramdisks, force=force)
    click.echo(run_order(redis, job, timeout, wish))
