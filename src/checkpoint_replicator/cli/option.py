"""Options that several commands have, and what they name."""

from collections.abc import Callable
from functools import wraps
from math import isfinite
from typing import Any

import click
from click.core import ParameterSource

from checkpoint_replicator.errors import NoJobError, NoServerError, UnknownJobError
from checkpoint_replicator.ids import Job, job_fault
from checkpoint_replicator.store import ManifestStore

__all__ = ["Function", "Seconds", "job_option", "known_job", "redis_option"]

Function = Callable[..., None]


class Seconds(click.FloatRange):
    """Seconds within bounds; `nan` is beyond all of them, although no comparison says so."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read a number.

        Raises:
            click.BadParameter: it is none, or out of bounds.
        """
        found = float(super().convert(value, param, ctx))
        if not isfinite(found):
            self.fail(f"expected a number of seconds, found {value}", param, ctx)
        return found


def job_option(command: Function) -> Function:
    """Give a command `--job`."""
    return click.option("--job", "-j", required=True, metavar="NAME", help="Which job.")(command)


def redis_option(command: Function) -> Function:
    """Give a command `--redis`; where nobody chose a server and none answers, it is said how to choose one."""

    @wraps(command)
    def run(**options: Any) -> None:
        try:
            command(**options)
        except NoServerError as error:
            if click.get_current_context().get_parameter_source("redis") is not ParameterSource.DEFAULT:
                raise
            raise NoServerError(f"{error}; --redis or CHECKPOINT_REDIS names another server") from error

    return click.option(
        "--redis",
        metavar="URL",
        envvar="CHECKPOINT_REDIS",
        default="redis://127.0.0.1:6379/0",
        show_default=True,
        show_envvar=True,
        help="The server; `up` prints its own.",
    )(run)


async def known_job(store: ManifestStore, name: str) -> Job:
    """Return the job of this name.

    Raises:
        UnknownJobError: there is none; names those that are known.
        NoJobError: none is known at all, which is so for some seconds after Redis was emptied.
    """
    if fault := job_fault(name):
        raise UnknownJobError(f"--job: a job's name {fault}")
    jobs = await store.jobs()
    if not jobs:
        when = "a job shows within seconds after Redis was emptied or its first trainer came"
        raise NoJobError(f"no job {name}; Redis knows none at all: {when}")
    if name not in jobs:
        raise UnknownJobError(f"no job {name}; known: {', '.join(sorted(jobs))}")
    return Job(name)
