"""The operator's command `checkpoint-replicator`; each sub-command lies in a module of its name, read when used."""

import importlib
from typing import Any, Final

import click

from checkpoint_replicator import __version__
from checkpoint_replicator.errors import ReplicatorError

__all__ = ["COMMANDS", "main"]

COMMANDS: Final = ("demo", "explain", "forget", "hold", "redis", "restore", "status", "up")


class Commands(click.Group):
    """Finds sub-commands by name, and turns our errors into a line on stderr and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of `--help`."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Read the module of this command."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(f"{__name__}.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)  # noqa: S101  # one of our own modules
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except ReplicatorError as error:
            click.echo(f"checkpoint-replicator: {error}", err=True)
            ctx.exit(error.exit_code)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="checkpoint-replicator")
def main() -> None:
    """Replicates training checkpoints between nodes' ramdisks, backs them up, and restores them bit-exactly."""
