import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil
import pytest

from checkpoint_replicator.supervisor import Condition, GivenUpError, NotReadyError, Program, State, Supervisor, probe

STAY = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("drained", flush=True)))
print("up", flush=True)
while True:
    signal.pause()
"""
STUBBORN = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); signal.pause()"
FAMILY = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
print(child.pid, flush=True)
input_never_comes = child.wait()
"""


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., Program]:
    def make(code: str, name: str = "one", health: Path | None = None) -> Program:
        return Program(name=name, command=(sys.executable, "-c", code), log=tmp_path / f"{name}.log", health=health)

    return make


class Watcher:
    """Collects the states and waits for one."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[State] = asyncio.Queue()

    async def until(self, condition: Condition) -> State:
        while (state := await self.queue.get()).condition is not condition:
            pass
        return state


def written(log: Path) -> str:
    return log.read_text() if log.exists() else ""


async def first_line(log: Path) -> str:
    while not (text := written(log)).endswith("\n"):  # another process writes it
        await asyncio.sleep(0)
    return text


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: bytes) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(text)
    await writer.drain()
    writer.close()


async def test_a_program_without_health_is_ready_at_once_and_is_drained_by_sigterm(
    program: Callable[..., Program],
) -> None:
    one = program(STAY)
    async with Supervisor([one]) as supervisor:
        supervisor.start()
        await supervisor.ready(deadline=20)
        await first_line(one.log)
        assert await supervisor.stop() == {"one": 0}
    assert one.log.read_text().split() == ["up", "drained"]
    assert supervisor.state("one") == State(
        name="one", condition=Condition.STOPPED, reason="ended with exit code 0", code=0
    )


async def test_a_program_that_ends_is_started_again(program: Callable[..., Program]) -> None:
    watcher = Watcher()
    async with Supervisor([program("raise SystemExit(3)")], watch=watcher.queue.put_nowait) as supervisor:
        supervisor.start()
        waiting = await watcher.until(Condition.WAITING)
        assert (waiting.code, waiting.reason) == (3, "ended with exit code 3, started again in 0.25 s")
        again = await watcher.until(Condition.READY)
        assert again.restarts == 1


async def test_a_wrong_configuration_is_given_up(program: Callable[..., Program], tmp_path: Path) -> None:
    watcher = Watcher()
    bad = program("print('no such key: x'); raise SystemExit(78)", health=tmp_path / "none")
    async with Supervisor([bad], watch=watcher.queue.put_nowait) as supervisor:
        supervisor.start()
        await watcher.until(Condition.GIVEN_UP)
        with pytest.raises(GivenUpError, match=r"one is given up: .* code 78 .*saying 'no such key: x'"):
            await supervisor.ready(deadline=20)


async def test_of_a_log_line_in_json_the_reason_is_said(program: Callable[..., Program]) -> None:
    watcher = Watcher()
    bad = program("""print('{"event": "service_failed", "reason": "no port"}'); raise SystemExit(78)""")
    async with Supervisor([bad], watch=watcher.queue.put_nowait) as supervisor:
        supervisor.start()
        await watcher.until(Condition.GIVEN_UP)
        assert supervisor.said("one") == "no port"
        with pytest.raises(GivenUpError, match=r"code 78 .*saying 'no port' \(log: "):
            await supervisor.ready(deadline=20)


async def test_programs_do_not_inherit_the_variables_of_configuration_keys(
    program: Callable[..., Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHECKPOINT_REDIS", "redis://elsewhere")
    monkeypatch.setenv("OTHER", "stays")
    watcher = Watcher()
    one = program("import os; print(os.environ.get('CHECKPOINT_REDIS'), os.environ['OTHER']); raise SystemExit(78)")
    async with Supervisor([one], watch=watcher.queue.put_nowait) as supervisor:
        supervisor.start()
        await watcher.until(Condition.GIVEN_UP)
        assert supervisor.said("one") == "None stays"


async def test_kill_ends_the_whole_tree_and_it_stays_away_until_started(program: Callable[..., Program]) -> None:
    one = program(FAMILY)
    async with Supervisor([one]) as supervisor:
        supervisor.start()
        child = psutil.Process(int(await first_line(one.log)))
        await supervisor.kill(["one"])
        psutil.wait_procs([child], timeout=20)
        assert not child.is_running()
        assert supervisor.state("one").code == -9
        assert supervisor.state("one").condition is Condition.STOPPED
        supervisor.start(["one"])
        await supervisor.ready(["one"], deadline=20)


async def test_a_program_that_ignores_sigterm_is_killed_after_the_grace(program: Callable[..., Program]) -> None:
    async with Supervisor([program(STUBBORN)]) as supervisor:
        supervisor.start()
        await supervisor.ready(deadline=20)
        assert await supervisor.stop(grace=0.01) in ({"one": -9}, {"one": -15})


async def test_not_ready_names_the_program_its_reason_and_its_log(
    program: Callable[..., Program], tmp_path: Path
) -> None:
    server = await asyncio.start_server(
        lambda r, w: answer(r, w, b"HTTP/1.0 503 Service Unavailable\r\n\r\nno Redis yet\n"), "127.0.0.1", 0
    )
    host, port = server.sockets[0].getsockname()
    health = tmp_path / "health"
    health.write_text("http://127.0.0.1:1\n")  # of an earlier life
    now = iter(range(1000))
    watcher = Watcher()
    async with server:
        one = program(f"open({str(health)!r}, 'w').write('http://{host}:{port}\\n')\n{STAY}", health=health)
        async with Supervisor([one], watch=watcher.queue.put_nowait, clock=lambda: next(now)) as supervisor:
            supervisor.start()
            while (await watcher.until(Condition.STARTING)).reason != "no Redis yet":
                pass
            with pytest.raises(NotReadyError) as caught:
                await supervisor.ready(deadline=1)
    assert str(caught.value) == f"one is starting: no Redis yet (log: {tmp_path / 'one.log'})"


async def test_higher_tiers_are_ended_first(program: Callable[..., Program]) -> None:
    low = program(STAY, name="low")
    high = msgspec.structs.replace(program(STAY, name="high"), tier=1)
    watcher = Watcher()
    async with Supervisor([low, high], watch=watcher.queue.put_nowait) as supervisor:
        supervisor.start()
        for one in (low, high):
            await first_line(one.log)
        await supervisor.stop()
    assert (await watcher.until(Condition.STOPPED)).name == "high"
    assert (await watcher.until(Condition.STOPPED)).name == "low"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"HTTP/1.0 200 OK\r\n\r\nready\n", None),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\nno lease\n", "no lease"),
        (b"HTTP/1.0 500 Oops\r\n\r\n", "answered 500"),
        (b"SSH-2.0-OpenSSH\r\n", "does not speak HTTP"),
        (b"", "does not speak HTTP"),
    ],
)
async def test_probe_reads_readyz(tmp_path: Path, text: bytes, reason: str | None) -> None:
    server = await asyncio.start_server(lambda r, w: answer(r, w, text), "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        (tmp_path / "health").write_text(f"http://{host}:{port}\n")
        found = await probe(tmp_path / "health")
    assert found == reason or (found is not None and reason is not None and reason in found)


async def test_probe_says_that_nobody_listens(tmp_path: Path) -> None:
    assert await probe(tmp_path / "health") == "its health pages are not up yet"
    server = await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    server.close()
    await server.wait_closed()
    (tmp_path / "health").write_text(f"http://{host}:{port}\n")
    assert "does not answer" in str(await probe(tmp_path / "health"))
