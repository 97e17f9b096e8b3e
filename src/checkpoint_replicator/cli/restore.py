"""`checkpoint-replicator restore`: say what the next start of a job restores."""

import click

from checkpoint_replicator.backup import is_backup_name
from checkpoint_replicator.cli.order import order_options, read_save, run_order
from checkpoint_replicator.messages import Wish
from checkpoint_replicator.wishes import WishKind

__all__ = ["restore"]


@click.command(short_help="Order what the next start restores.")
@order_options
@click.option("--save", metavar="EPOCH.STEP", help="Exactly this save, as `status` names it.")
@click.option("--backup", metavar="NAME", help="Exactly the save in this backup, `<YYYY-MM-DD_HH-MM>`.")
@click.option("--none", "nothing", is_flag=True, help="Nothing: a fresh start, although something was committed.")
@click.option("--withdraw", is_flag=True, help="Take an ordered restore back.")
def restore(  # one parameter an option
    job: str, redis: str, timeout: float, save: str | None, backup: str | None, *, nothing: bool, withdraw: bool
) -> None:
    """Order what the next start of all trainers restores: exactly that, or an error before anyone moves.

    It counts for one release. What nobody holds is refused at once; trainers that restore something else just now get
    what is ordered. Prints what was ordered.
    Exit codes: 0 ordered, 66 no such job, 75 Redis or the coordinator does not answer, or Redis knows no job at all
    yet, 77 refused.
    """
    if sum((save is not None, backup is not None, nothing, withdraw)) != 1:
        raise click.UsageError("expected one of --save, --backup, --none and --withdraw")
    if backup is not None and not is_backup_name(backup):
        raise click.UsageError(f"--backup: expected a name like 2026-01-31_12-00, found {backup!r}")
    wish = Wish(
        id="",
        kind=WishKind.WITHDRAW if withdraw else WishKind.RESTORE,
        until=0,
        save=None if save is None else read_save(save),
        backup=backup,
        none=nothing,
    )
    click.echo(run_order(redis, job, timeout, wish))
