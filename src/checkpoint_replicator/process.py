"""How a service runs as a process: command line, logs, health, signals, readiness, drain, exit code.

Exit codes: 0 asked to stop, 2 wrong usage, 64 to 78 by the error (see `errors.py`), 70 an unexpected error, 75 the
drain did not end in time.
"""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, TypeVar, get_args, get_origin

import click
import msgspec
from msgspec.structs import FieldInfo
from prometheus_client import CollectorRegistry

from checkpoint_replicator import __version__, failpoint
from checkpoint_replicator.bus.zeromq import ZeroMQBus
from checkpoint_replicator.config import ServiceConfig, Size, environment_name, load, meanings
from checkpoint_replicator.errors import BusyError, ConfigError, PermanentError, ReplicatorError
from checkpoint_replicator.ids import Incarnation, new_id
from checkpoint_replicator.logs import Log, set_up
from checkpoint_replicator.metrics import Health, HealthServer, new_registry
from checkpoint_replicator.times import Times

__all__ = ["Runtime", "describe", "end_hard_after", "execute", "exit_code", "service_command"]

Config = TypeVar("Config", bound=ServiceConfig)

METAVARS: Final = {Size: "SIZE", Path: "PATH", int: "NUMBER"}
"""How `--help` calls the values of a type."""
URLS: Final = frozenset({"redis", "backup"})
STOPS: Final = (signal.SIGTERM, signal.SIGINT)
BEAT: Final = 1.0
"""Seconds between two beats of the event loop."""
HARD_STOP: Final = 3.0
"""Seconds after the drain's end at which the process ends whatever still runs in its threads."""


class Runtime:
    """What a running service is given.

    Attributes:
        incarnation: random id of this life of the process.
        bus: its sockets; closed after the service returned.
        metrics: its registry.
        log: its logger; service and node stand in every line.
        health_url: where `/healthz`, `/readyz` and `/metrics` are.
        stopping: set by SIGTERM and SIGINT; the service then drains and returns.
    """

    def __init__(self, bus: ZeroMQBus, metrics: CollectorRegistry, log: Log, health: Health, url: str) -> None:
        self.incarnation = Incarnation(new_id())
        self.bus = bus
        self.metrics = metrics
        self.log = log
        self.stopping = asyncio.Event()
        self.health_url = url
        self._health = health

    def set_ready(self, reason: str | None) -> None:
        """Say why the service is not ready; None: it is. A change is logged."""
        if reason == self._health.waiting:
            return
        self._health.set_ready(reason)
        if reason is None:
            self.log.info("service_ready")
        else:
            self.log.info("service_not_ready", reason=reason)


Service = Callable[[Config, Runtime], Awaitable[None]]


def service_command(name: str, kind: type[Config], run: Service[Config]) -> click.Command:
    """Build the command of a service: `--config`, `--check`, and one flag for each key of its configuration."""

    def main(config: Path | None, check: bool, **flags: str | None) -> None:
        try:
            loaded = load(kind, config, os.environ, {key.replace("_", "-"): value for key, value in flags.items()})
            loaded.health_address  # noqa: B018 - it raises where it is wrong
        except ConfigError as error:
            click.echo(f"checkpoint-{name}: {error}", err=True)
            raise SystemExit(error.exit_code) from error
        if check:
            click.echo(describe(loaded))
            return
        failpoint.arm(os.environ, name)
        raise SystemExit(execute(name, loaded, run, bound=end_hard_after))

    options: list[click.Parameter] = [
        click.Option(
            ["--config"],
            type=click.Path(path_type=Path),
            envvar="CHECKPOINT_CONFIG",
            help="TOML file with the keys below; a flag wins over its variable, and that over the file.",
            show_envvar=True,
        ),
        click.Option(["--check"], is_flag=True, help="Check the configuration, print it, and end."),
    ]
    texts = meanings(kind)
    for field in msgspec.structs.fields(kind):
        key = field.encode_name
        options.append(
            click.Option([f"--{key}", key.replace("-", "_")], metavar=_metavar(field), help=_help(field, texts))
        )
    command = click.Command(
        f"checkpoint-{name}",
        params=options,
        callback=main,
        help=f"Run the {name} service.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    return click.version_option(__version__, prog_name=f"checkpoint-{name}")(command)


def _help(field: FieldInfo, texts: Mapping[str, str]) -> str:
    text = texts.get(field.encode_name, "").removesuffix(".")
    facts = [f"env var: {environment_name(field.encode_name)}"]
    if field.required:
        facts.append("required")
    elif field.default is not msgspec.NODEFAULT and isinstance(field.default, str | int):
        facts.append(f"default: {field.default}")
    return f"{text[:1].upper()}{text[1:]}.  [{'; '.join(facts)}]"


def _metavar(field: FieldInfo) -> str:
    if get_origin(field.type) is Literal:
        return f"[{'|'.join(get_args(field.type))}]"
    if field.type is Times:
        return "NAME=TIME,..."
    if field.encode_name in URLS:
        return "URL"
    kinds = get_args(field.type) or (field.type,)
    return next((name for kind, name in METAVARS.items() if kind in kinds), "TEXT")


def describe(config: ServiceConfig) -> str:
    """Return the configuration as `key = value` lines; a password in a URL is hidden."""
    lines = []
    for field in msgspec.structs.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, msgspec.Struct):
            value = ", ".join(f"{key}={item:g}s" for key, item in msgspec.to_builtins(value).items())
        lines.append(f"{field.encode_name} = {_hide(str(value))}")
    return "\n".join(lines)


def _hide(text: str) -> str:
    scheme, separator, rest = text.partition("://")
    credentials, at, place = rest.rpartition("@")
    if not (separator and at):
        return text
    user, colon, _ = credentials.partition(":")
    return f"{scheme}://{user}{colon and ':***'}@{place}"


def execute(name: str, config: Config, run: Service[Config], *, bound: Callable[[float], object] | None = None) -> int:
    """Run a service until it is asked to stop or fails; returns the exit code.

    When the stop begins `bound` is told how many seconds the whole rest of the process may take.
    """
    log = set_up(config.log_level, config.log_format, service=name, node=config.host)
    early: list[int] = []  # a stop that is asked for before the event loop can hear it
    before = {number: signal.signal(number, lambda number, _: early.append(number)) for number in STOPS}
    try:
        asyncio.run(_serve(name, config, run, log, bound, early=early))
    except Exception as error:
        code = exit_code(error)
        ours = all(isinstance(leaf, ReplicatorError) for leaf in _leaves(error))
        log.exception("service_failed", reason=_reason(error), code=code, exc_info=not ours)  # our own texts say all
        return code
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    log.info("service_stopped")
    return 0


def exit_code(error: BaseException) -> int:
    """Choose the exit code: of the permanent error in a group before that of a passing one; 70 for what is not ours."""
    errors = _leaves(error)
    if not all(isinstance(leaf, ReplicatorError) for leaf in errors):
        return 70
    errors.sort(key=lambda leaf: not isinstance(leaf, PermanentError))
    return getattr(errors[0], "exit_code", 70)


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


def _reason(error: BaseException) -> str:
    return "; ".join(str(leaf) or type(leaf).__name__ for leaf in _leaves(error))


async def _serve(
    name: str,
    config: Config,
    run: Service[Config],
    log: Log,
    bound: Callable[[float], object] | None,
    *,
    early: list[int],
) -> None:
    registry = new_registry(name, config.host)
    health = Health(config.times.loop_silent)
    address = config.health_address
    try:
        server = HealthServer(registry, health, address)
    except OSError as error:
        raise BusyError(f"health: {config.health} cannot be bound: {error.strerror}") from error
    bus = ZeroMQBus(log, registry, config.times.linger)
    runtime = Runtime(bus, registry, log, health, server.url)
    for number in STOPS:
        asyncio.get_running_loop().add_signal_handler(number, _stop, runtime, number)
    if early:
        _stop(runtime, early[0])
    beat = asyncio.create_task(_beat(health), name="beat")
    try:
        _write_health(config, name, server.url)
        log.info("service_started", incarnation=runtime.incarnation, health=server.url, version=__version__)
        await _until_stopped(config, run, runtime, bound)
    finally:
        beat.cancel()
        await bus.close()
        server.close()


async def _until_stopped(
    config: Config, run: Service[Config], runtime: Runtime, bound: Callable[[float], object] | None
) -> None:
    service = asyncio.ensure_future(run(config, runtime))
    stop = asyncio.create_task(runtime.stopping.wait(), name="stopping")
    failed = runtime.bus.failed
    try:
        await asyncio.wait((service, stop, failed), return_when=asyncio.FIRST_COMPLETED)
        if runtime.stopping.is_set():
            limit = config.times.drain
            if bound is not None:
                bound(limit + HARD_STOP)
            done, _ = await asyncio.wait((service,), timeout=limit)
            if not done:
                runtime.log.warning("drain_expired", seconds=limit)
    finally:
        stop.cancel()
        if not service.done():
            service.cancel()
            await asyncio.wait((service,), timeout=HARD_STOP)
    if service.done() and not service.cancelled():
        await service  # raises what it raised
    if failed.done() and not failed.cancelled():
        await failed
    if not runtime.stopping.is_set():
        raise ReplicatorError("the service ended without being asked to")


def end_hard_after(seconds: float) -> None:
    """End this process after a while, whatever then still hangs in one of its threads."""
    guard = threading.Timer(seconds, _end_hard)
    guard.daemon = True
    guard.start()


def _end_hard() -> None:
    sys.stderr.flush()
    os._exit(75)


def _stop(runtime: Runtime, number: int) -> None:
    runtime.log.info("stop_requested", signal=signal.Signals(number).name)
    runtime.set_ready("stopping")
    runtime.stopping.set()


async def _beat(health: Health) -> None:
    while True:
        health.beat()
        await asyncio.sleep(BEAT)


def _write_health(config: ServiceConfig, name: str, url: str) -> None:
    """Leave the address of the HTTP thread in the run directory, for `up`, `status` and people."""
    directory = config.run_directory
    if directory is None:
        return
    with suppress(OSError):  # a service that needs the directory says what is wrong with it
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        fresh = directory / f".{name}.health.{os.getpid()}"
        fresh.write_text(f"{url}\n", encoding="utf-8")
        fresh.replace(directory / f"{name}.health")
