import contextlib
import random
import socket
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from checkpoint_replicator import embedded
from checkpoint_replicator.embedded import EmbeddedRedis, free_ports, redis_command
from checkpoint_replicator.errors import ConfigError, UnreachableError
from support.redis import command, until


def test_free_ports_are_different_and_can_be_bound() -> None:
    ports = free_ports(20, random.Random(1))
    assert len(set(ports)) == 20
    for port in ports:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))


def test_a_port_in_use_is_passed_over() -> None:
    [port] = free_ports(1, random.Random(1))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        assert free_ports(1, random.Random(1)) != (port,)


def test_too_many_ports_are_an_error_with_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "HIGH", embedded.LOW + 2)
    with pytest.raises(ConfigError, match=r"expected 3 free TCP ports on 127.0.0.1 from 20000 to 20002, found [012]"):
        free_ports(3, random.Random(1))


def test_the_embedded_server_is_a_program_that_runs_here(tmp_path: Path) -> None:
    words = redis_command(20_000, tmp_path)
    done = subprocess.run([words[0], "--version"], capture_output=True, check=True)
    assert b"v=" in done.stdout
    assert words[1:].index("noeviction") == words[1:].index("--maxmemory-policy") + 1


def test_the_server_runs_between_start_and_stop_and_forgets(tmp_path: Path) -> None:
    server = EmbeddedRedis(tmp_path / "made when missing")
    with server:
        assert psutil.Process(server.pid).is_running()
        assert command(server.url, "SET", "a", "1") == b"+OK\r\n"
        port, pid = server.port, server.pid
    assert pid is not None
    assert not psutil.pid_exists(pid)
    with server:
        assert server.port == port
        assert command(server.url, "GET", "a") == b"$-1\r\n"


def test_a_server_that_persists_has_its_data_again_after_a_kill(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path, persist=True) as server:
        command(server.url, "SET", "a", "1")
        server.kill()
        server.start()
        assert command(server.url, "GET", "a") == b"$1\r\n1\r\n"


def test_a_server_never_evicts(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path) as server:
        assert b"noeviction" in command(server.url, "CONFIG", "GET", "maxmemory-policy")


def test_a_paused_server_can_be_stopped(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path) as server:
        server.pause()


def test_a_given_port_that_another_server_has_is_an_error_with_its_log(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path / "a") as first:
        second = EmbeddedRedis(tmp_path / "b", port=first.port)
        with pytest.raises(UnreachableError, match=rf"port {first.port} did not start: (?s:.*)already in use"):
            second.start()
        assert second.pid is None


def test_the_port_of_a_server_that_never_started_is_not_known(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="never was"):
        _ = EmbeddedRedis(tmp_path).port


def test_a_server_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    program = (
        "import os, pathlib, sys; from checkpoint_replicator.embedded import EmbeddedRedis\n"
        "server = EmbeddedRedis(pathlib.Path(sys.argv[1])); server.start()\n"
        "print(server.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, check=False)
    assert done.returncode == -9
    until(lambda: not psutil.pid_exists(int(done.stdout)) or psutil.Process(int(done.stdout)).status() == "zombie")


@pytest.mark.parametrize("damage", ["garbage", "folder", "torn"])
def test_a_state_that_somebody_damaged_is_named_and_not_overwritten(tmp_path: Path, damage: str) -> None:
    with EmbeddedRedis(tmp_path, persist=True) as server:
        command(server.url, "SET", "key", "x" * 10_000)
        command(server.url, "SAVE")
    parts = sorted((tmp_path / "appendonlydir").iterdir())
    for part in parts:
        match damage:
            case "garbage":
                part.write_bytes(b"\xffgarbage" * 100)
            case "torn":
                part.write_bytes(part.read_bytes()[:20])
            case _:
                part.unlink()
                part.mkdir()
    before = [part.stat().st_ino for part in parts]
    with pytest.raises(UnreachableError, match=r"the embedded server on port \d+ did not start: .+"):
        EmbeddedRedis(tmp_path, persist=True).start()
    assert [part.stat().st_ino for part in parts] == before


def test_a_stranger_who_talks_for_ever_on_the_port_is_not_our_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:

        def talk() -> None:
            connection, _ = stranger.accept()
            with connection, contextlib.suppress(OSError):
                while True:
                    connection.sendall(b"x" * (1 << 16))

        talker = threading.Thread(target=talk)
        talker.start()
        assert not embedded._answers(stranger.getsockname()[1], 1)
        talker.join(10)
        assert not talker.is_alive()
