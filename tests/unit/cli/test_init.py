from click.testing import CliRunner

from checkpoint_replicator import __version__
from checkpoint_replicator.cli import COMMANDS, main


def test_help_lists_every_command_with_a_line() -> None:
    result = CliRunner().invoke(main, ["--help"], terminal_width=80)
    assert result.exit_code == 0
    listed = result.output.partition("Commands:")[2].split("\n")
    assert [line.split()[0] for line in listed if line.startswith("  ") and line.strip()] == list(COMMANDS)
    assert "..." not in result.output.partition("Commands:")[2]


def test_the_version_is_that_of_the_package() -> None:
    assert CliRunner().invoke(main, ["--version"]).output == f"checkpoint-replicator, version {__version__}\n"


def test_an_unknown_command_is_a_wrong_usage() -> None:
    result = CliRunner().invoke(main, ["explode"])
    assert result.exit_code == 2
    assert "No such command 'explode'" in result.output
