import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import structlog
from click.testing import CliRunner

from checkpoint_replicator import process
from checkpoint_replicator.bus import Received
from checkpoint_replicator.config import NodeConfig, ServiceConfig
from checkpoint_replicator.errors import BusyError, ConfigError, CorruptError, UnreachableError
from checkpoint_replicator.metrics import new_registry
from checkpoint_replicator.process import Runtime, describe, execute, exit_code, service_command
from checkpoint_replicator.times import Times
from support.factories import envelope

Run = Callable[[ServiceConfig, Runtime], Awaitable[None]]


class Sample(NodeConfig, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    backup: str | None = None


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    structlog.reset_defaults()


async def stop_at_once(_config: ServiceConfig, runtime: Runtime) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    await runtime.stopping.wait()


def events(text: str) -> list[str]:
    return [json.loads(line)["event"] for line in text.splitlines() if line.startswith("{")]


def test_a_service_that_is_asked_to_stop_ends_with_0() -> None:
    assert execute("sample", ServiceConfig(), stop_at_once) == 0


def test_s71_a_stop_that_is_asked_for_before_the_service_runs_ends_it_with_0(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_arguments: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)  # as soon as anybody can know of the process

    monkeypatch.setattr(process, "_write_health", started)
    assert execute("sample", ServiceConfig(), wait_for_the_stop) == 0


def test_s71_a_stop_before_the_event_loop_is_there_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(name: str, host: str) -> object:
        os.kill(os.getpid(), signal.SIGTERM)
        return new_registry(name, host)

    monkeypatch.setattr("checkpoint_replicator.process.new_registry", made)
    assert execute("sample", ServiceConfig(), wait_for_the_stop) == 0


async def wait_for_the_stop(_config: ServiceConfig, runtime: Runtime) -> None:
    await runtime.stopping.wait()


def test_a_service_that_does_not_drain_is_ended_at_its_deadline() -> None:
    cancelled = []

    async def hang(_config: ServiceConfig, _runtime: Runtime) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    times = Times(linger=0.01, drain=0.05)
    bounds: list[float] = []
    assert execute("sample", ServiceConfig(times=times), hang, bound=bounds.append) == 0
    assert cancelled
    assert bounds == [0.05 + process.HARD_STOP]


def test_a_thread_that_hangs_does_not_keep_the_process() -> None:
    code = "import threading, checkpoint_replicator.process as p; p.end_hard_after(0.01); threading.Event().wait()"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=30).returncode == 75


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnreachableError("Redis is away"), 75),
        (ConfigError("bad"), 78),
        (ValueError("ours"), 70),
        (ExceptionGroup("tasks", [UnreachableError("x"), CorruptError("y")]), 65),
        (ExceptionGroup("tasks", [UnreachableError("x"), KeyError("y")]), 70),
    ],
)
def test_an_error_ends_the_process_with_its_code(error: Exception, code: int) -> None:
    async def fail(_config: ServiceConfig, _runtime: Runtime) -> None:
        await asyncio.sleep(0)
        raise error

    assert exit_code(error) == code
    assert execute("sample", ServiceConfig(), fail) == code


@pytest.mark.parametrize(("error", "traced"), [(ConfigError("bad"), False), (ValueError("ours"), True)])
def test_only_an_unexpected_error_is_logged_with_its_trace(
    error: Exception, traced: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fail(_config: ServiceConfig, _runtime: Runtime) -> None:
        await asyncio.sleep(0)
        raise error

    execute("sample", ServiceConfig(), fail)
    line = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert (line["event"], line["reason"]) == ("service_failed", str(error))
    assert ("exception" in line) is traced


def test_a_service_that_ends_by_itself_is_a_failure() -> None:
    async def end(_config: ServiceConfig, _runtime: Runtime) -> None:
        await asyncio.sleep(0)

    assert execute("sample", ServiceConfig(), end) == 70


def test_a_receiver_that_fails_ends_the_process(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/s"

    async def receive(_received: Received) -> None:
        await asyncio.sleep(0)
        raise UnreachableError("no ear")

    async def listen(_config: ServiceConfig, runtime: Runtime) -> None:
        await runtime.bus.pull(endpoint, receive)
        sender = runtime.bus.push(endpoint)
        while not sender.send(envelope()):
            await asyncio.sleep(0.01)
        await runtime.stopping.wait()

    assert execute("sample", ServiceConfig(), listen) == 75


def test_the_command_has_a_flag_for_each_key() -> None:
    result = CliRunner().invoke(service_command("sample", Sample, stop_at_once), ["--help"])
    for flag in ("--config", "--check", "--ramdisk-size", "--log-level", "--backup", "--times", "--version"):
        assert flag in result.output


def test_the_help_of_a_key_says_what_it_means_its_variable_and_its_default() -> None:
    result = CliRunner().invoke(service_command("sample", Sample, stop_at_once), ["-h"])
    text = " ".join(result.output.split())
    assert "--redis URL URL of Redis. [env var: CHECKPOINT_REDIS; default: redis://127.0.0.1:6379/0]" in text
    assert (
        "--ramdisk PATH The directory that trainer and services share. [env var: CHECKPOINT_RAMDISK; required]" in text
    )
    assert "--ramdisk-size SIZE" in text
    assert "--log-level [debug|info|warning|error]" in text


def test_check_prints_the_configuration_and_starts_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text('ramdisk = "/r"\nredis = "redis://user:secret@host:1/0"')
    command = service_command("sample", Sample, stop_at_once)
    result = CliRunner().invoke(command, ["--config", str(path), "--check", "--ramdisk-size", "64MiB"])
    assert result.exit_code == 0
    assert "ramdisk-size = 64MiB" in result.output
    assert "redis = redis://user:***@host:1/0" in result.output
    assert "lost=20s" in result.output


@pytest.mark.parametrize("arguments", [[], ["--ramdisk", "/r", "--health", "x"], ["--ramdisk", "/r", "--times", "a=1"]])
def test_a_wrong_configuration_ends_with_78_and_one_line(arguments: list[str]) -> None:
    result = CliRunner().invoke(service_command("sample", Sample, stop_at_once), arguments)
    assert result.exit_code == 78
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("checkpoint-sample: ")


def test_the_environment_is_read() -> None:
    command = service_command("sample", Sample, stop_at_once)
    result = CliRunner().invoke(command, ["--check"], env={"CHECKPOINT_RAMDISK": "/from/environment"})
    assert "ramdisk = /from/environment" in result.output


def test_the_health_address_is_left_in_the_run_directory(tmp_path: Path) -> None:
    assert execute("sample", NodeConfig(ramdisk=tmp_path), stop_at_once) == 0
    assert (tmp_path / ".replicator/run/sample.health").read_text().startswith("http://127.0.0.1:")


def test_a_change_of_readiness_is_logged_once(capsys: pytest.CaptureFixture[str]) -> None:
    async def run(config: ServiceConfig, runtime: Runtime) -> None:
        for reason in ("Redis is away", "Redis is away", None, None):
            runtime.set_ready(reason)
        await stop_at_once(config, runtime)

    execute("sample", ServiceConfig(), run)
    assert events(capsys.readouterr().err) == [
        "service_started",
        "service_not_ready",
        "service_ready",
        "stop_requested",
        "service_not_ready",
        "service_stopped",
    ]


def test_a_health_port_that_is_taken_is_said() -> None:
    codes = []

    async def outer(_config: ServiceConfig, runtime: Runtime) -> None:
        taken = runtime.health_url.removeprefix("http://")
        codes.append(await asyncio.to_thread(_inner, taken))
        os.kill(os.getpid(), signal.SIGTERM)
        await runtime.stopping.wait()

    def _inner(taken: str) -> int:
        with pytest.raises(BusyError, match="cannot be bound"):
            asyncio.run(
                process._serve(
                    "inner", ServiceConfig(health=taken), stop_at_once, structlog.get_logger(), None, early=[]
                )
            )
        return 75

    assert execute("sample", ServiceConfig(), outer) == 0
    assert codes == [75]


def test_a_description_hides_passwords_only() -> None:
    assert "redis = redis://host/0" in describe(ServiceConfig(redis="redis://host/0"))
    assert "redis = redis://:***@host/0" in describe(ServiceConfig(redis="redis://:secret@host/0"))
