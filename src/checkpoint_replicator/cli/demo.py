"""`checkpoint-replicator demo`: the main job, played before your eyes."""

import asyncio
import shutil
import sys
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import click

from checkpoint_replicator.cluster import Cluster
from checkpoint_replicator.demo.job import JobSpec
from checkpoint_replicator.demo.stage import LiveStage, PlainStage
from checkpoint_replicator.demo.story import NODES, Story
from checkpoint_replicator.errors import ReplicatorError
from checkpoint_replicator.store.redis import RedisManifestStore

__all__ = ["demo"]

SHM: Final = Path("/dev/shm")  # noqa: S108  # a directory of our own is made in it, with mode 0700
ROOM: Final = 1 << 30
"""Bytes that must be free in /dev/shm to use it; container engines give 64 MiB."""


@click.command()
@click.option("--size", type=click.IntRange(1), default=8, show_default=True, help="MiB that each trainer saves.")
@click.option("--keep", is_flag=True, help="Leave the directory with all logs.")
def demo(size: int, keep: bool) -> None:
    """Lose a node and get everything back.

    Starts an embedded Redis, two coordinators and four nodes of three processes each; trains, saves, kills one node
    and wipes its ramdisk, starts the job again and compares every byte. Exit codes: 0 as it must be, else 1 or that
    of the error; nothing is left running.
    """
    directory = Path(tempfile.mkdtemp(prefix="checkpoint-demo-", dir=_base()))
    cluster = Cluster(directory=directory, nodes=NODES)
    stage: AbstractContextManager[LiveStage | PlainStage] = LiveStage() if sys.stdout.isatty() else PlainStage()
    failed = True
    try:
        with stage as shown:
            verdict = asyncio.run(
                Story(cluster, RedisManifestStore, shown, JobSpec(name="demo", size=size << 20)).play()
            )
        click.echo(f"PASS: {verdict}")
        failed = False
    except ReplicatorError as error:
        click.echo(f"FAIL: {error}")
        raise
    finally:
        shutil.rmtree(cluster.run, ignore_errors=True)
        if keep or failed:
            click.echo(f"logs are in {directory / 'logs'}; remove {directory} when you have read them")
        else:
            shutil.rmtree(directory, ignore_errors=True)


def _base() -> Path | None:
    """Choose where: memory where there is enough, else the directory for temporary files."""
    try:
        return SHM if shutil.disk_usage(SHM).free >= ROOM else None
    except OSError:
        return None
