"""`checkpoint-replicator up`: a cluster on this machine, for trainers on this machine."""

import asyncio
import fcntl
import os
import random
import shutil
import signal
import sys
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from checkpoint_replicator.blobs.location import root_folder
from checkpoint_replicator.cluster import Cluster, host_name
from checkpoint_replicator.config import parse_size
from checkpoint_replicator.errors import BusyError, ConfigError, ReplicatorError
from checkpoint_replicator.store.redis import RedisManifestStore
from checkpoint_replicator.supervisor import Condition, State, Supervisor

__all__ = ["Uncleanly", "announcement", "judge", "occupied", "supervise", "up"]

READY_WITHIN: Final = 60.0
MOST_NODES: Final = 64


class Uncleanly(ReplicatorError):  # noqa: N818  # it ended so: an outcome
    """A program did not end with exit code 0 when it was asked to."""


@click.command()
@click.option("--nodes", type=click.IntRange(1, MOST_NODES), required=True, help="How many nodes.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Takes the nodes' local directories, logs and configuration; best on a tmpfs such as /dev/shm.",
)
@click.option("--backup", metavar="URL", help="Root for backups, file:///DIRECTORY; made where absent.")
@click.option("--redis", metavar="URL", help="A Redis that runs already; an embedded one without.")
@click.option("--ramdisk", metavar="SIZE", help="Most bytes of a node's directory, as 64MiB; all of its disk without.")
@click.option("--input-log", is_flag=True, help="Log what each service decides on to DIR/logs, for `make replay`.")
def up(
    nodes: int, directory: Path, backup: str | None, redis: str | None, ramdisk: str | None, *, input_log: bool
) -> None:
    """Run a cluster on this machine until Ctrl-C or SIGTERM.

    Starts an embedded Redis, a coordinator and its stand-by, and a watcher, a transfer and an uploader a node; starts
    again what ends; prints each node's local directory, where that node's trainer writes replicator.yaml.
    Exit codes: 0 everything ended well after Ctrl-C or SIGTERM, 70 something did not, 75 the directory is in use or
    the server of --redis does not answer, 78 the configuration is wrong.
    """
    directory = directory.absolute()
    cluster = Cluster(
        directory=directory, nodes=nodes, redis=redis, backup=backup, ramdisk_size=ramdisk, input_log=input_log
    )
    _check(ramdisk, redis)
    if backup is not None:
        _make("--backup", root_folder(backup))
    _make("--dir", directory)
    with occupied(directory):
        try:
            asyncio.run(_up(cluster))
        finally:
            shutil.rmtree(cluster.run, ignore_errors=True)  # sockets that nobody listens on any more


def _check(ramdisk: str | None, redis: str | None) -> None:
    """Say at once, and before anything is made, what would otherwise end every service."""
    if ramdisk is not None:
        try:
            parse_size(ramdisk)
        except ValueError as error:
            raise ConfigError(f"--ramdisk: {error}") from error
    if redis is not None:
        asyncio.run(_ask(redis))


async def _ask(redis: str) -> None:
    store = RedisManifestStore(redis)
    try:
        await store.time()
    finally:
        await store.close()


def _make(flag: str, directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{flag}: {directory} cannot be made: {error.strerror}") from error


async def _up(cluster: Cluster) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    await supervise(cluster, stopping)


async def supervise(cluster: Cluster, stopping: asyncio.Event) -> None:
    """Run the cluster until `stopping` is set, telling on stdout what happens.

    Raises:
        NotReadyError: it did not become ready.
        GivenUpError: a program's configuration is wrong.
        Uncleanly: at the end a program's exit code was not 0.
    """
    redis, programs = cluster.lay_out(random.Random())  # noqa: S311  # which port is no secret
    hopeless = asyncio.Event()

    def tell(state: State) -> None:
        if state.condition in {Condition.WAITING, Condition.GIVEN_UP}:
            failed = state.code is not None and state.code > 0
            said = f" (it said {supervisor.said(state.name)!r})" if failed else ""
            click.echo(f"{state.name} {state.reason}{said}")
        if state.condition is Condition.GIVEN_UP:
            hopeless.set()

    async with Supervisor(programs, watch=tell) as supervisor:
        supervisor.start()
        click.echo(announcement(cluster, redis))
        await _first(stopping, supervisor.ready(deadline=READY_WITHIN))
        if not stopping.is_set():
            nodes = "1 node" if cluster.nodes == 1 else f"{cluster.nodes} nodes"
            click.echo(f"ready: {nodes}, {len(programs)} processes; end with Ctrl-C")
            await _first(stopping, hopeless.wait())
        if hopeless.is_set():
            await supervisor.ready(deadline=0)  # raises, with the reason
        click.echo("stopping")
        codes = await supervisor.stop()
    judge(codes)
    click.echo("stopped")


async def _first(stopping: asyncio.Event, other: Coroutine[None, None, object]) -> None:
    """Wait for either; an error of the other one comes out."""
    tasks = (asyncio.create_task(stopping.wait()), asyncio.create_task(other))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[1].done():
            tasks[1].result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def announcement(cluster: Cluster, redis: str) -> str:
    """Say where everything is, one thing a line."""
    places = {"redis": redis}
    places.update((host_name(node), str(cluster.ramdisk(node))) for node in range(cluster.nodes))
    if cluster.backup is not None:
        places["backup"] = cluster.backup
    places["logs"] = str(cluster.directory / "logs")
    width = max(map(len, places))
    return "\n".join(f"{name:<{width}}  {place}" for name, place in places.items())


def judge(codes: Mapping[str, int | None]) -> None:
    """Look at the exit codes of programs that were asked to end.

    Raises:
        Uncleanly: one did not end well; names each.
    """
    well = {None, 0, -signal.SIGTERM}  # the last: it was asked before it had begun to listen
    bad = [f"{name} with {code}" for name, code in codes.items() if code not in well]
    if bad:
        raise Uncleanly(f"expected exit code 0 of every process, found {', '.join(bad)}")


@contextmanager
def occupied(directory: Path) -> Iterator[None]:
    """Hold the directory for this process.

    Raises:
        BusyError: another process has it; names its pid.
        ConfigError: this user cannot write there.
    """
    lock = directory / "up.lock"
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigError(f"--dir: {lock} cannot be written: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            raise BusyError(f"{directory} is in use by process {owner or 'unknown'}") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
        sys.stdout.flush()
