"""`checkpoint-replicator redis`: one command to the server, its answer as `redis-cli` prints it."""

import os
import socket
import ssl
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import BinaryIO, Final
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

import click

from checkpoint_replicator.errors import ConfigError, ReplicatorError
from checkpoint_replicator.resp import Failure, Reply, Status, encode, read_reply

__all__ = ["format_reply", "redis"]

CONNECT: Final = 5.0
"""Seconds to connect. An answer is waited for without limit, as its command may ask for: Ctrl-C ends it."""
PORT: Final = 6379
ESCAPES: Final = {ord(char): f"\\{name}" for char, name in zip('\\"\n\r\t\a\b', '\\"nrtab', strict=True)}
PRINTABLE: Final = range(0x20, 0x7F)
STREAMS: Final = frozenset({b"subscribe", b"psubscribe", b"ssubscribe", b"monitor"})
"""Commands that answer again and again."""
VERBATIM: Final = frozenset(
    {
        (b"info",),
        (b"lolwut",),
        (b"debug", b"htstats"),
        (b"debug", b"htstats-key"),
        (b"memory", b"malloc-stats"),
        (b"memory", b"doctor"),
        (b"cluster", b"nodes"),
        (b"cluster", b"info"),
        (b"client", b"list"),
        (b"client", b"info"),
        (b"latency", b"graph"),
        (b"latency", b"doctor"),
    }
)
"""Commands whose answer is a text for people."""


@click.command(
    short_help="Send one command to Redis.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option(
    "-u",
    "--url",
    envvar="CHECKPOINT_REDIS",
    metavar="URL",
    default=f"redis://127.0.0.1:{PORT}/0",
    show_default=True,
    show_envvar=True,
    help="The server.",
)
@click.option("--raw/--no-raw", default=None, help="Bare texts, or texts with their types; by default as stdout is.")
@click.option("-e", "exit_code", is_flag=True, help="An error as answer goes to stderr and ends with exit code 1.")
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="COMMAND [ARGUMENT]...")
def redis(url: str, words: tuple[str, ...], *, raw: bool | None, exit_code: bool) -> None:
    """Send one command to Redis and print the answer, as redis-cli does."""
    if raw is None:
        raw = not sys.stdout.isatty()
    output = sys.stdout.buffer
    try:
        with ExitStack() as stack:
            connection = _connect(url, stack)
            _talk(connection, [os.fsencode(word) for word in words], output, raw=raw, exit_code=exit_code)
    except ConfigError:
        raise
    except ReplicatorError as error:
        _fail(f"Error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


def format_reply(reply: Reply, words: Sequence[bytes], *, raw: bool) -> bytes:
    """Return what `redis-cli` prints for this answer to this command."""
    if _is_text(words):
        return _raw(reply)
    return _raw(reply) + b"\n" if raw else _typed(reply, b"")


def _talk(connection: socket.socket, words: Sequence[bytes], output: BinaryIO, *, raw: bool, exit_code: bool) -> None:
    source = connection.makefile("rb")
    streams = words[0].lower() in STREAMS
    if streams and words[0].lower() != b"monitor" and not raw:
        output.write(b"Reading messages... (press Ctrl-C to quit)\n")
    connection.sendall(encode(words))
    while True:
        reply = read_reply(source)
        if exit_code and isinstance(reply, Failure):
            _fail(reply.text.decode(errors="replace"))
        output.write(format_reply(reply, words, raw=raw))
        output.flush()
        if not streams or isinstance(reply, Failure):
            return


def _connect(url: str, stack: ExitStack) -> socket.socket:
    parts = urlsplit(url)
    try:
        host, port = parts.hostname or "127.0.0.1", parts.port or PORT
        number = parse_qs(parts.query).get("db", ["0"])[0] if parts.scheme == "unix" else parts.path.strip("/")
        database = int(number or 0)
    except ValueError as error:
        raise ConfigError(f"--url: expected redis://[user:password@]host[:port][/db], found {error}") from error
    if parts.scheme not in {"redis", "rediss", "unix"}:
        raise ConfigError(f"--url: expected redis://, rediss:// or unix://, found {parts.scheme or 'none'}")
    local = parts.scheme == "unix"
    try:
        if local:
            connection = stack.enter_context(socket.socket(socket.AF_UNIX))
            connection.settimeout(CONNECT)
            connection.connect(parts.path)
        else:
            connection = stack.enter_context(socket.create_connection((host, port), timeout=CONNECT))
        if parts.scheme == "rediss":
            context = ssl.create_default_context()
            connection = stack.enter_context(context.wrap_socket(connection, server_hostname=host))
        connection.settimeout(None)
    except OSError as error:
        name = parts.path if local else f"{host}:{port}"
        _fail(f"Could not connect to Redis at {name}: {error.strerror or error}")
    source = connection.makefile("rb")
    for words in _greetings(parts, database):
        connection.sendall(encode(words))
        reply = read_reply(source)
        if isinstance(reply, Failure):
            _fail(f"{words[0].decode()} failed: {reply.text.decode(errors='replace')}")
    return connection


def _greetings(parts: SplitResult, database: int) -> list[list[bytes]]:
    greetings: list[list[bytes]] = []
    if parts.password is not None:
        user = [unquote(parts.username).encode()] if parts.username else []
        greetings.append([b"AUTH", *user, unquote(parts.password).encode()])
    if database:
        greetings.append([b"SELECT", str(database).encode()])
    return greetings


def _fail(text: str) -> None:
    click.echo(text, err=True)
    sys.exit(1)


def _is_text(words: Sequence[bytes]) -> bool:
    lower = tuple(word.lower() for word in words)
    return lower[:1] in VERBATIM or lower[:2] in VERBATIM


def _raw(reply: Reply) -> bytes:
    match reply:
        case None:
            return b""
        case int():
            return b"%d" % reply
        case bytes():
            return reply
        case Status(text=text):
            return text
        case Failure(text=text):
            return text + b"\n"
        case _:
            return b"\n".join(map(_raw, reply))


def _typed(reply: Reply, indent: bytes) -> bytes:
    match reply:
        case None:
            return b"(nil)\n"
        case int():
            return b"(integer) %d\n" % reply
        case bytes():
            return _quoted(reply) + b"\n"
        case Status(text=text):
            return text + b"\n"
        case Failure(text=text):
            return b"(error) " + text + b"\n"
        case []:
            return b"(empty array)\n"
        case _:
            return _numbered(reply, indent)


def _numbered(replies: Sequence[Reply], indent: bytes) -> bytes:
    """Number the elements; what is nested stands to the right of its number."""
    width = len(str(len(replies)))
    inner = indent + b" " * (width + 2)
    lines = [b"%*d) " % (width, number) + _typed(reply, inner) for number, reply in enumerate(replies, start=1)]
    return indent.join(lines)


def _quoted(text: bytes) -> bytes:
    return b'"' + b"".join(map(_escaped, text)) + b'"'


def _escaped(byte: int) -> bytes:
    if (name := ESCAPES.get(byte)) is not None:
        return name.encode()
    return bytes([byte]) if byte in PRINTABLE else b"\\x%02x" % byte
