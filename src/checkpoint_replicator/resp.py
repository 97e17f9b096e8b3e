"""The protocol of Redis, version 2, as people's answers are read from it: what `redis-cli` tells apart stays apart."""

import re
from collections.abc import Sequence
from typing import Final, Protocol, TypeAlias

import msgspec

from checkpoint_replicator.errors import ProtocolError, UnreachableError

__all__ = ["Failure", "Reply", "Source", "Status", "encode", "read_reply"]

MAX_LINE: Final = 1 << 16
"""Longest line; an error message may be long."""
MAX_BULK: Final = 512 << 20
"""Longest string that a server may hold by default."""
MAX_DEPTH: Final = 32
_NUMBER: Final = re.compile(rb"[+-]?[0-9]{1,19}")


class Status(msgspec.Struct, frozen=True):
    """A short word of success, as `OK`."""

    text: bytes


class Failure(msgspec.Struct, frozen=True):
    """An error that the server answered."""

    text: bytes


Reply: TypeAlias = "Status | Failure | int | bytes | list[Reply] | None"


class Source(Protocol):
    """What bytes are read from: a buffered binary file, as `socket.makefile("rb")` gives."""

    def readline(self, size: int = -1, /) -> bytes:
        """Return a line with its end, or less at the end of the stream."""
        ...

    def read(self, size: int = -1, /) -> bytes:
        """Return so many bytes, or less at the end of the stream."""
        ...


def encode(words: Sequence[bytes]) -> bytes:
    """Return a command as the server reads it."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def read_reply(source: Source, depth: int = 0) -> Reply:
    """Read one whole answer.

    Raises:
        UnreachableError: the connection ended before it was whole.
        ProtocolError: it is no answer of protocol version 2.
    """
    line = source.readline(MAX_LINE)
    if not line.endswith(b"\r\n"):
        if len(line) == MAX_LINE:
            raise ProtocolError(f"expected a line of at most {MAX_LINE} bytes, found {line[:40]!r}…")
        raise UnreachableError("Server closed the connection")
    kind, text = line[:1], line[1:-2]
    match kind:
        case b"+":
            return Status(text)
        case b"-":
            return Failure(text)
        case b":":
            return _number(text)
        case b"$":
            size = _number(text)
            return None if size == -1 else _bulk(source, size)
        case b"*" if depth < MAX_DEPTH:
            size = _number(text)
            if size < -1:
                raise ProtocolError(f"expected an array of 0 or more elements, found {size}")
            return None if size == -1 else [read_reply(source, depth + 1) for _ in range(size)]
        case _:
            raise ProtocolError(f"expected an answer of protocol 2, found {line[:40]!r}")


def _bulk(source: Source, size: int) -> bytes:
    if not 0 <= size <= MAX_BULK:
        raise ProtocolError(f"expected a string of at most {MAX_BULK} bytes, found {size}")
    data = source.read(size + 2)
    if len(data) < size + 2:
        raise UnreachableError("Server closed the connection")
    if data[size:] != b"\r\n":
        raise ProtocolError(f"expected the end of a string of {size} bytes, found {data[size:]!r}")
    return data[:size]


def _number(text: bytes) -> int:
    if _NUMBER.fullmatch(text) is None:
        raise ProtocolError(f"expected a number, found {text[:40]!r}")
    return int(text)
