from pathlib import Path

import pytest
from click.testing import CliRunner

from checkpoint_replicator.cli.redis import format_reply, redis
from checkpoint_replicator.resp import Failure, Reply, Status

GET = (b"GET", b"a")


@pytest.mark.parametrize(
    ("reply", "raw", "typed"),
    [
        (None, b"\n", b"(nil)\n"),
        (3, b"3\n", b"(integer) 3\n"),
        (b"a", b"a\n", b'"a"\n'),
        (b'"\\\n\r\t\a\b\x00\xff', b'"\\\n\r\t\a\b\x00\xff\n', b'"\\"\\\\\\n\\r\\t\\a\\b\\x00\\xff"\n'),
        (Status(b"OK"), b"OK\n", b"OK\n"),
        (Failure(b"ERR no"), b"ERR no\n\n", b"(error) ERR no\n"),
        ([], b"\n", b"(empty array)\n"),
        ([b"a", 1], b"a\n1\n", b'1) "a"\n2) (integer) 1\n'),
        ([b"a", [b"b", [1, 2]]], b"a\nb\n1\n2\n", b'1) "a"\n2) 1) "b"\n   2) 1) (integer) 1\n      2) (integer) 2\n'),
    ],
)
def test_an_answer_is_bare_in_a_pipe_and_typed_on_a_terminal(reply: Reply, raw: bytes, typed: bytes) -> None:
    assert format_reply(reply, GET, raw=True) == raw
    assert format_reply(reply, GET, raw=False) == typed


def test_numbers_are_aligned_to_the_longest() -> None:
    shown = format_reply(list(range(10)), GET, raw=False).splitlines()
    assert (shown[0], shown[9]) == (b" 1) (integer) 0", b"10) (integer) 9")


@pytest.mark.parametrize("words", [(b"INFO",), (b"info", b"server"), (b"CLIENT", b"LIST")])
def test_a_text_for_people_is_printed_as_it_is(words: tuple[bytes, ...]) -> None:
    assert format_reply(b"# Server\r\n", words, raw=False) == b"# Server\r\n"


@pytest.mark.parametrize("url", ["http://x", "redis://x:port", "redis://x/db", "x"])
def test_an_url_of_something_else_is_refused_before_connecting(url: str) -> None:
    result = CliRunner().invoke(redis, ["-u", url, "PING"])
    assert result.exit_code != 0
    assert "--url: expected redis://" in str(result.exception)


def test_a_socket_that_nobody_listens_at_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(redis, ["-u", f"unix://{tmp_path}/none.sock", "PING"])
    assert result.exit_code == 1
    assert result.stderr == f"Could not connect to Redis at {tmp_path}/none.sock: No such file or directory\n"


def test_a_command_is_needed() -> None:
    result = CliRunner().invoke(redis, [])
    assert result.exit_code == 2
    assert "COMMAND" in result.output
