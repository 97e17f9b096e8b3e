"""`checkpoint-replicator redis` prints what Debian's `redis-cli` prints, byte for byte."""

import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from checkpoint_replicator.cli import main
from checkpoint_replicator.cli.redis import redis
from checkpoint_replicator.embedded import EmbeddedRedis
from support.redis import absent, command

OURS = (sys.executable, "-c", "from checkpoint_replicator.cli import main; main()", "redis")
CONTENT: Sequence[Sequence[str]] = (
    ("SET", "text", "plain"),
    ("SET", "empty", ""),
    ("SET", "odd", 'back\\slash "quote" \n\r\t\a\b \x01 \x7f ü'),
    ("HSET", "ckpt:{job}:epoch", "number", "3", "reason", "rank 2 is silent", "shape", '{"nodes":4}'),
    ("ZADD", "ckpt:{job}:steps", "1", "1.1", "2.5", "1.2", "3", "1.3"),
    ("SADD", "ckpt:jobs", "job"),
    ("RPUSH", "list", *map(str, range(12))),
    ("XADD", "ckpt:{job}:events", "1-1", "event", "committed", "step", "3"),
    ("XADD", "ckpt:{job}:events", "1-2", "event", "released"),
)
COMMANDS: Sequence[Sequence[str]] = (
    ("PING",),
    ("ECHO", "a  b"),
    ("GET", "text"),
    ("GET", "empty"),
    ("GET", "odd"),
    ("GET", "none"),
    ("EXISTS", "text", "none"),
    ("TTL", "none"),
    ("HGETALL", "ckpt:{job}:epoch"),
    ("HGETALL", "none"),
    ("HMGET", "ckpt:{job}:epoch", "number", "none"),
    ("ZRANGE", "ckpt:{job}:steps", "0", "-1", "WITHSCORES"),
    ("SMEMBERS", "ckpt:jobs"),
    ("LRANGE", "list", "0", "-1"),
    ("LRANGE", "list", "0", "8"),
    ("XRANGE", "ckpt:{job}:events", "-", "+"),
    ("XREAD", "STREAMS", "ckpt:{job}:events", "0"),
    ("XREAD", "STREAMS", "none", "0"),
    ("EVAL", "return {1,{2,{3,'x',{}}},{},false,'',redis.status_reply('FINE')}", "0"),
    ("EVAL", "return {{{}}}", "0"),
    ("EVAL", "return redis.error_reply('ERR of ours')", "0"),
    ("EVAL", "return {redis.error_reply('ERR inside'), 1}", "0"),
    ("TYPE", "text"),
    ("GET", "list"),
    ("NONSENSE", "x"),
    ("CLUSTER", "INFO"),
    ("MEMORY", "DOCTOR"),
    ("LATENCY", "DOCTOR"),
    ("COMMAND", "COUNT"),
    ("SLOWLOG", "GET", "-1", "junk"),
    ("CONFIG", "GET", "maxmemory*"),
    ("SET", "-dash", "-value"),
    ("GET", "-dash"),
)


def outcome(program: Sequence[str], *words: str) -> tuple[int, bytes, bytes]:
    done = subprocess.run([*program, *words], capture_output=True, check=False, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout, done.stderr


def on_terminal(program: Sequence[str], *words: str) -> bytes:
    """Run with a pseudo-terminal as stdout and return what it got."""
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen:
        child = subprocess.Popen([*program, *words], stdout=theirs, stdin=subprocess.DEVNULL)
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = screen.read(1 << 16)
            except OSError:  # Linux says EIO when the other side is closed
                break
            if not part:
                break
            shown += part
        assert child.wait(20) == 0
    return shown


@pytest.fixture
def theirs() -> str:
    found = shutil.which("redis-cli")
    if found is None:
        absent("redis-cli (Debian package redis-tools)")
        raise AssertionError
    return found


@pytest.fixture
def url(redis_server: EmbeddedRedis, redis_url: str) -> str:
    del redis_server
    for words in CONTENT:
        assert not command(redis_url, *words).startswith(b"-")
    return redis_url


@pytest.mark.parametrize("form", ["--raw", "--no-raw"])
def test_every_kind_of_answer_is_printed_as_redis_cli_prints_it(form: str, theirs: str, url: str) -> None:
    for words in COMMANDS:
        code, out, error = outcome((theirs, "-u", url, form), *words)
        ours = CliRunner().invoke(redis, ["-u", url, form, *words])
        assert (words, ours.exit_code, ours.stdout_bytes, ours.stderr_bytes) == (words, code, out, error)


def test_a_pipe_gets_bare_texts_and_a_terminal_types(theirs: str, url: str) -> None:
    words = ("HGETALL", "ckpt:{job}:epoch")
    assert outcome(OURS, "-u", url, *words) == outcome((theirs, "-u", url), *words)
    assert on_terminal(OURS, "-u", url, *words) == on_terminal((theirs, "-u", url), *words)


def test_an_error_ends_with_exit_code_one_when_asked(theirs: str, url: str) -> None:
    assert outcome(OURS, "-u", url, "-e", "NONSENSE") == outcome((theirs, "-u", url, "-e"), "NONSENSE")
    assert outcome(OURS, "-u", url, "-e", "PING") == outcome((theirs, "-u", url, "-e"), "PING")


def test_a_server_that_is_away_is_told_as_redis_cli_tells_it(theirs: str) -> None:
    nowhere = "redis://127.0.0.1:1"
    assert outcome(OURS, "-u", nowhere, "PING") == outcome((theirs, "-u", nowhere), "PING")


def test_database_user_and_password_of_the_url_are_used(theirs: str, url: str) -> None:
    assert command(url, "ACL", "SETUSER", "me", "on", ">sec:ret", "~*", "+@all") == b"+OK\r\n"
    own = url.replace("redis://", "redis://me:sec%3Aret@").replace("/0", "/3")
    try:
        assert outcome(OURS, "-u", own, "SET", "there", "1")[1] == b"OK\n"
        assert outcome((theirs, "-u", own), "GET", "there")[1] == b"1\n"
        assert outcome((theirs, "-u", url), "GET", "there")[1] == b"\n"
        code, _, error = outcome(OURS, "-u", own.replace("ret@", "wrong@"), "PING")
        assert (code, error.startswith(b"AUTH failed: WRONGPASS")) == (1, True)
    finally:
        command(url, "ACL", "DELUSER", "me")


def test_a_server_is_reached_by_its_socket(tmp_path: Path) -> None:
    path = tmp_path / "redis.sock"
    with EmbeddedRedis(tmp_path / "data", extra=("--unixsocket", str(path))):
        own = f"unix://{path}?db=3"
        assert CliRunner().invoke(redis, ["-u", own, "--raw", "SET", "there", "1"]).stdout == "OK\n"
        assert CliRunner().invoke(redis, ["-u", own, "--raw", "GET", "there"]).stdout == "1\n"
        assert CliRunner().invoke(redis, ["-u", f"unix://{path}", "--raw", "GET", "there"]).stdout == "\n"
        shown = CliRunner().invoke(main, ["status", "--redis", f"unix://{path}"])
        assert (shown.exit_code, shown.stdout) == (0, "no job yet; hosts: none\n")
