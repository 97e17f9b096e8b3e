"""`checkpoint-replicator hold`: nothing is deleted while people look."""

import click

from checkpoint_replicator.cli.order import order_options, run_order
from checkpoint_replicator.messages import Wish
from checkpoint_replicator.quote import quote
from checkpoint_replicator.wishes import WishKind

__all__ = ["hold"]


@click.command(short_help="Delete and back up nothing until --release.")
@order_options
@click.option("--reason", metavar="TEXT", default="", help="Why, for others who look.")
@click.option("--release", is_flag=True, help="End the hold: all goes on.")
def hold(job: str, redis: str, timeout: float, reason: str, *, release: bool) -> None:
    """Stop all deleting, pruning and backup ordering of a job, until `--release`.

    Saves are still replicated and committed, so ramdisks fill up. Returns when every live host obeys.
    Exit codes: 0 done, 66 no such job, 75 Redis, the coordinator or a host does not answer, or Redis knows no job at
    all yet, 77 refused.
    """
    if not reason.isprintable():
        raise click.UsageError(f"--reason: expected one line without control characters, found {quote(reason)}")
    kind = WishKind.RESUME if release else WishKind.HOLD
    click.echo(run_order(redis, job, timeout, Wish(id="", kind=kind, until=0, reason=reason)))
