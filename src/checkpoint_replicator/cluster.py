"""A cluster on this machine: which processes with which configuration, in which directories.

`up`, the demo and the system tests all run what is described here, under a `Supervisor`.
"""

import hashlib
import json
import os
import random
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from checkpoint_replicator.embedded import free_ports, redis_command
from checkpoint_replicator.errors import ConfigError
from checkpoint_replicator.ids import Host
from checkpoint_replicator.supervisor import Program

__all__ = ["SERVICES", "Cluster", "Setting", "host_name", "node_services", "toml_text"]

SERVICES: Final = ("watcher", "transfer", "uploader")
"""The services of a node, in the order in which they are started."""
REDIS: Final = "redis"
MAX_SOCKET_PATH: Final = 107
"""Longest path of a unix socket in bytes."""

Setting = str | int | float | bool | Mapping[str, str]
"""A value in a service's TOML file; a mapping becomes an inline table (`times`)."""


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """What to run.

    Attributes:
        directory: takes everything that stays: `node-<n>/` (the ramdisks), `config/`, `logs/`, `redis/`.
        nodes: number of nodes, at least 1.
        redis: URL of a server that runs already; None: an embedded one is part of the cluster.
        backup: root URL for backups, None for none.
        ramdisk_size: quota of each node's directory with its unit (`64MiB`); None: what the file system has.
        coordinators: the active one and its stand-bys.
        input_log: each service logs its machines' inputs to `logs/<name>.inputs`, for `make replay`.
        settings: more keys for a service's configuration, by service name; win over the cluster's own.
    """

    directory: Path
    nodes: int
    redis: str | None = None
    backup: str | None = None
    ramdisk_size: str | None = None
    coordinators: int = 2
    input_log: bool = False
    settings: Mapping[str, Mapping[str, Setting]] = {}

    def ramdisk(self, node: int) -> Path:
        """The local directory of a node: what its trainer uses."""
        return self.directory / host_name(node)

    @property
    def run(self) -> Path:
        """Directory of the unix sockets: short, and the same for each start in the same directory.

        Raises:
            ConfigError: not even the shortest place leaves room for a socket's name.
        """
        digest = hashlib.sha256(os.fsencode(self.directory.resolve())).hexdigest()[:10]
        for base in (tempfile.gettempdir(), "/tmp"):  # noqa: S108  # mode 0700 and the owner are checked in `lay_out`
            run = Path(base, f"ckpt-{os.getuid()}-{digest}")
            if len(os.fsencode(run / f"n{self.nodes}" / "transfer.sock")) <= MAX_SOCKET_PATH:
                return run
        raise ConfigError(f"{run} is too long for a unix socket, expected at most {MAX_SOCKET_PATH} bytes")

    def lay_out(self, chance: random.Random) -> tuple[str, tuple[Program, ...]]:
        """Make the directories and configuration files; return the Redis URL and the programs to run, in order.

        Raises:
            ConfigError: a directory cannot be used, or no embedded server is to be had.
        """
        _own_directory(self.run)
        for path in (self.directory / "config", self.directory / "logs", *map(self.ramdisk, range(self.nodes))):
            path.mkdir(parents=True, exist_ok=True)
        programs: list[Program] = []
        redis = self.redis
        if redis is None:
            [port] = free_ports(1, chance)
            redis = f"redis://127.0.0.1:{port}/0"
            data = self.directory / REDIS
            data.mkdir(exist_ok=True)
            programs.append(Program(name=REDIS, command=redis_command(port, data), log=self._log(REDIS)))
        programs += (
            self._service("coordinator", f"coordinator-{number}", redis, self.run / f"c{number}", {})
            for number in range(self.coordinators)
        )
        for node in range(self.nodes):
            for service in SERVICES:
                own: dict[str, Setting] = {"ramdisk": str(self.ramdisk(node))}
                if self.ramdisk_size is not None and service != "uploader":
                    own["ramdisk-size"] = self.ramdisk_size
                programs.append(self._service(service, host_name(node), redis, self.run / f"n{node}", own))
        return redis, tuple(programs)

    def _service(self, service: str, host: str, redis: str, run: Path, own: Mapping[str, Setting]) -> Program:
        run.mkdir(mode=0o700, exist_ok=True)
        alone = service == "coordinator"
        name = host if alone else f"{host}-{service}"
        settings: dict[str, Setting] = {"host": host, "redis": redis, "run": str(run), "log-format": "json", **own}
        if self.backup is not None and service != "transfer":
            settings["backup"] = self.backup
        if self.input_log:
            settings["input-log"] = str(self.directory / "logs" / f"{name}.inputs")
        settings.update(self.settings.get(service, {}))
        config = self.directory / "config" / f"{name}.toml"
        config.write_text(toml_text(settings), encoding="utf-8")
        command = (sys.executable, "-m", f"checkpoint_{service}", "--config", str(config))
        health = run / f"{service}.health"
        return Program(name=name, command=command, log=self._log(name), health=health, tier=1 if alone else 2)

    def _log(self, name: str) -> Path:
        return self.directory / "logs" / f"{name}.log"


def host_name(node: int) -> Host:
    """Name of a node's host."""
    return Host(f"node-{node}")


def node_services(node: int) -> tuple[str, ...]:
    """Names of a node's programs."""
    return tuple(f"{host_name(node)}-{service}" for service in SERVICES)


def toml_text(settings: Mapping[str, Setting]) -> str:
    """Write settings as TOML."""
    return "".join(f"{key} = {_toml_value(value)}\n" for key, value in settings.items())


def _toml_value(value: Setting) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key} = {_toml_value(part)}' for key, part in value.items())}}}"
    return json.dumps(value, ensure_ascii=False)  # JSON's strings, numbers and booleans are TOML's too


def _own_directory(path: Path) -> None:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    if path.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o077:
        message = (
            f"{path} must be a directory of this user with mode 0700, found mode {found.st_mode & 0o7777:04o} of uid"
        )
        raise ConfigError(f"{message} {found.st_uid}")
