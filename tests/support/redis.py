"""A real server for tests: one for the whole run, emptied before each test that asks for it."""

import os
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from checkpoint_replicator.embedded import EmbeddedRedis


def command(url: str, *words: str) -> bytes:
    """Send one command past every layer of ours and return the raw answer (up to 64 KiB)."""
    host, port = url.removeprefix("redis://").split("/")[0].split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        parts = [word.encode() for word in words]
        head = b"*%d\r\n" % len(parts)
        connection.sendall(head + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts))
        return connection.recv(1 << 16)


def until(true: Callable[[], bool], seconds: float = 20) -> None:
    """Wait, blocking, for a server to come so far."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"not true within {seconds} s"
        time.sleep(0.002)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    """One embedded server for the run; a test that stops it starts it again."""
    with EmbeddedRedis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_url(redis_server: EmbeddedRedis) -> str:
    """The URL of an empty database."""
    assert command(redis_server.url, "FLUSHALL") == b"+OK\r\n"
    return redis_server.url


def absent(what: str) -> None:
    """Skip a test whose program is not installed; where CI runs it is a failure."""
    if os.environ.get("CI"):
        pytest.fail(f"{what} is not installed, and CI must have it")
    pytest.skip(f"{what} is not installed")


__all__ = ["absent", "command", "redis_server", "redis_url", "until"]
