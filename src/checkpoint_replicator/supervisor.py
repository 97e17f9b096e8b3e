"""Local mode: start programs, start them again when they end, and leave none behind.

Programs do not inherit `CHECKPOINT_` variables: those are this shell's, and would win over a program's own file.
Each program runs in a session of its own and on a leash (`leash.py`): the end of the supervisor, `kill -9` included,
is its end too. Programs are ended by pid only, with all that they started (psutil walks the tree). For production use
systemd or Kubernetes instead.
"""

import asyncio
import contextlib
import json
import os
import signal
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import SplitResult, urlsplit

import msgspec
import psutil

from checkpoint_replicator.config import PREFIX
from checkpoint_replicator.errors import ConfigError, PermanentError, TransientError, UnreachableError
from checkpoint_replicator.leash import leashed
from checkpoint_replicator.restarts import Restarts, exit_text

__all__ = ["Condition", "GivenUpError", "NotReadyError", "Program", "State", "Supervisor", "probe", "send"]

PROBE_INTERVAL: Final = 0.1
PROBE_DEADLINE: Final = 2.0
GRACE: Final = 15.0
"""Seconds between SIGTERM and SIGKILL; a service drains within 10."""
MAX_ANSWER: Final = 65536
MAX_LINE: Final = 65536
"""Bytes of a log's end that are looked at for its last line."""


class NotReadyError(TransientError):
    """A program was not ready by its deadline."""


class GivenUpError(PermanentError):
    """A program ended in a way that starting it again cannot help; as a rule its configuration is wrong."""

    exit_code = ConfigError.exit_code


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """One program to run.

    Attributes:
        name: how people call it, `node-0-watcher`.
        command: the first element is a path.
        log: file that takes stdout and stderr; appended to.
        health: file in which the program leaves the URL of its health pages; None: ready as soon as it runs.
        tier: programs of a higher tier are ended before those of a lower one.
    """

    name: str
    command: tuple[str, ...]
    log: Path
    health: Path | None = None
    tier: int = 0


class Condition(StrEnum):
    """Where a program stands."""

    STOPPED = "stopped"
    """Not wanted now."""
    STARTING = "starting"
    READY = "ready"
    WAITING = "waiting"
    """Ended; started again after a delay."""
    GIVEN_UP = "given up"
    """Ended in a way that a restart cannot help."""


class State(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a program; `code` is of its last end."""

    name: str
    condition: Condition
    reason: str = ""
    pid: int | None = None
    restarts: int = 0
    code: int | None = None


Watch = Callable[[State], None]


class Supervisor:
    """Keeps programs running. Use as `async with Supervisor(programs) as supervisor`; at exit everything is ended.

    Args:
        programs: in the order in which they are started.
        watch: called at every change of a program's state.
        restart: whether a program that ends by itself is started again.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        programs: Iterable[Program],
        *,
        watch: Watch = lambda _: None,
        restart: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.programs: Mapping[str, Program] = {program.name: program for program in programs}
        self._watch = watch
        self._restart = restart
        self._clock = clock
        self._states = {name: State(name=name, condition=Condition.STOPPED) for name in self.programs}
        self._changed = asyncio.Event()
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._processes: dict[str, Process] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def states(self) -> tuple[State, ...]:
        """All programs, in their order."""
        return tuple(self._states.values())

    def state(self, name: str) -> State:
        """One program."""
        return self._states[name]

    def start(self, names: Iterable[str] | None = None) -> None:
        """Have these programs run (all when None); those that are wanted already are left alone."""
        for name in self.programs if names is None else names:
            keeper = self._keepers.get(name)
            if keeper is None or keeper.done():
                self._keepers[name] = asyncio.create_task(self._keep(self.programs[name]), name=f"keep {name}")

    async def ready(self, names: Iterable[str] | None = None, *, deadline: float) -> None:
        """Wait until these programs (all when None) answer `/readyz` with 200.

        Raises:
            GivenUpError: one was given up; names each and its reason.
            NotReadyError: one does not within `deadline` seconds; names each and its reason.
        """
        wanted = tuple(self.programs if names is None else names)
        ends = self._clock() + deadline
        while True:
            self._changed.clear()
            missing = [self._states[name] for name in wanted if self._states[name].condition is not Condition.READY]
            if not missing:
                return
            hopeless = [state for state in missing if state.condition is Condition.GIVEN_UP]
            if hopeless:
                raise GivenUpError(self._sentences(hopeless))
            left = ends - self._clock()
            if left <= 0:
                raise NotReadyError(self._sentences(missing))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)

    def said(self, name: str) -> str:
        """What the program wrote last: a line, or the reason that stands in it."""
        return _last_line(self.programs[name].log)

    def _sentences(self, states: Iterable[State]) -> str:
        return "; ".join(_sentence(state, self.programs[state.name].log) for state in states)

    async def kill(self, names: Iterable[str]) -> None:
        """`kill -9` these programs and all that they started; they stay away until `start`."""
        await self._end(tuple(names), grace=0.0)

    async def stop(self, names: Iterable[str] | None = None, *, grace: float = GRACE) -> dict[str, int | None]:
        """End these programs (all when None) with SIGTERM, after `grace` seconds with SIGKILL.

        Returns the exit code of each; None for one that did not run.
        """
        chosen = tuple(self.programs if names is None else names)
        codes: dict[str, int | None] = {}
        for tier in sorted({self.programs[name].tier for name in chosen}, reverse=True):
            codes |= await self._end([name for name in chosen if self.programs[name].tier == tier], grace=grace)
        return codes

    async def _end(self, names: Sequence[str], *, grace: float) -> dict[str, int | None]:
        ended = await asyncio.gather(*(self._end_one(name, grace) for name in names))
        return dict(zip(names, ended, strict=True))

    async def _end_one(self, name: str, grace: float) -> int | None:
        process = self._processes.get(name)
        keeper = self._keepers.pop(name, None)
        if keeper is not None:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
        code = None if process is None else await _end_tree(process, grace)
        self._processes.pop(name, None)
        if self._states[name].condition is not Condition.STOPPED:
            self._change(name, Condition.STOPPED, "" if code is None else exit_text(code), code=code)
        return code

    async def _keep(self, program: Program) -> None:
        restarts = Restarts()
        while True:
            process = await self._spawn(program, restarts.count)
            born = self._clock()
            prober = asyncio.create_task(
                self._prove(program, process.pid, restarts.count), name=f"probe {program.name}"
            )
            try:
                code = await process.wait()
            finally:
                prober.cancel()
                await asyncio.gather(prober, return_exceptions=True)
            self._processes.pop(program.name, None)
            delay = restarts.ended(code, self._clock() - born) if self._restart else None
            if delay is None:
                self._change(program.name, Condition.GIVEN_UP, exit_text(code), restarts=restarts.count, code=code)
                return
            reason = f"{exit_text(code)}, started again in {delay:g} s"
            self._change(program.name, Condition.WAITING, reason, restarts=restarts.count, code=code)
            await asyncio.sleep(delay)

    async def _spawn(self, program: Program, restarts: int) -> Process:
        if program.health is not None:
            program.health.unlink(missing_ok=True)  # an earlier life's address
        with program.log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *leashed(program.command),
                stdin=DEVNULL,
                env={key: value for key, value in os.environ.items() if not key.startswith(PREFIX)},
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C in a terminal reaches the supervisor alone, which ends them in order
            )
        self._processes[program.name] = process
        condition = Condition.READY if program.health is None else Condition.STARTING
        self._change(program.name, condition, "", pid=process.pid, restarts=restarts)
        return process

    async def _prove(self, program: Program, pid: int, restarts: int) -> None:
        """Follow `/readyz` for one life of a program."""
        if program.health is None:
            return
        while True:
            reason = await probe(program.health)
            condition = Condition.READY if reason is None else Condition.STARTING
            self._change(program.name, condition, reason or "", pid=pid, restarts=restarts)
            await asyncio.sleep(PROBE_INTERVAL if reason else 10 * PROBE_INTERVAL)

    def _change(
        self,
        name: str,
        condition: Condition,
        reason: str,
        *,
        pid: int | None = None,
        restarts: int = 0,
        code: int | None = None,
    ) -> None:
        code = self._states[name].code if code is None else code
        state = State(name=name, condition=condition, reason=reason, pid=pid, restarts=restarts, code=code)
        if state != self._states[name]:
            self._states[name] = state
            self._changed.set()
            self._watch(state)


async def probe(health: Path) -> str | None:
    """Ask `/readyz` at the URL in this file: None means ready, a text says why not."""
    url = _health_url(health)
    if url is None:
        return "its health pages are not up yet"
    try:
        async with asyncio.timeout(PROBE_DEADLINE):
            status, body = await _get(url.hostname or "", url.port or 0, "/readyz")
    except TimeoutError:
        return f"{url.netloc} did not answer within {PROBE_DEADLINE:g} s"
    except UnreachableError as error:
        return str(error)
    return None if status == HTTPStatus.OK else body.strip() or f"{url.netloc} answered {status}"


def _health_url(health: Path) -> SplitResult | None:
    try:
        return urlsplit(health.read_text(encoding="utf-8").strip())
    except FileNotFoundError:
        return None


async def _get(host: str, port: int, path: str) -> tuple[int, str]:
    address = f"{host}:{port}"
    try:
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(f"GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n".encode())
            answer = b""
            while len(answer) < MAX_ANSWER and (more := await reader.read(MAX_ANSWER)):
                answer += more
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
    except OSError as error:
        raise UnreachableError(f"{address} does not answer: {error.strerror or error}") from error
    head, _, body = answer.decode(errors="replace").partition("\r\n\r\n")
    protocol, _, rest = head.partition(" ")
    if not protocol.startswith("HTTP/") or not rest[:3].isdigit():
        raise UnreachableError(f"{address} does not speak HTTP: {head[:40]!r}")
    return int(rest[:3]), body


def send(process: Process, number: signal.Signals) -> None:
    """Send a signal to a child that may have ended.

    Not `process.send_signal`: that polls, and so may take the exit code away from asyncio, which then reports 255.
    """
    if process.returncode is None:
        with contextlib.suppress(psutil.NoSuchProcess):  # psutil compares start times: a reused pid is not hit
            psutil.Process(process.pid).send_signal(number)


async def _end_tree(process: Process, grace: float) -> int:
    """End a process and all that it started; returns the exit code of the process itself."""
    tree = _tree(process)
    if grace > 0:
        send(process, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), grace)
        tree += [child for child in _tree(process) if child not in tree]
    for member in tree:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    return await process.wait()


def _tree(process: Process) -> list[psutil.Process]:
    if process.returncode is not None:
        return []  # the pid may be somebody else's by now
    try:
        root = psutil.Process(process.pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _sentence(state: State, log: Path) -> str:
    said = f", saying {_last_line(log)!r}" if state.condition is Condition.GIVEN_UP else ""
    return f"{state.name} is {state.condition}: {state.reason or 'no answer yet'}{said} (log: {log})"


def _last_line(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - MAX_LINE))
        lines = file.read(MAX_LINE).decode(errors="replace").split("\n")
    return _reason(next((line for line in reversed(lines) if line.strip()), "nothing"))


def _reason(line: str) -> str:
    """Take the reason out of a log line in JSON; another line is its own reason."""
    try:
        found = json.loads(line)
    except ValueError:
        return line
    reason = found.get("reason") if isinstance(found, dict) else None
    return reason if isinstance(reason, str) else line
