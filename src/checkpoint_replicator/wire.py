"""Frames to messages and back; the one door to msgpack.

A message is `[b"ckpt/<version> <type>"] [header] [body…]`. The header is an `Envelope` in msgpack; body frames are raw
bytes and never pass through msgpack. Whatever comes from outside ends as an `Envelope` or as a `ProtocolError`.

Headers are read straight into the messages' types: what has no place in them is skipped and never built, so a header of
a few MiB that unfolds into gigabytes of empty maps costs nothing.
"""

from collections.abc import Sequence
from typing import Final

import msgpack
import msgspec

from checkpoint_replicator.errors import ProtocolError
from checkpoint_replicator.messages import PROTOCOL_VERSION, Envelope
from checkpoint_replicator.quote import quote

__all__ = ["BODY_FRAMES_LIMIT", "BODY_LIMIT", "FRAME_LIMIT", "HEADER_LIMIT", "check_body", "decode", "encode"]

HEADER_LIMIT: Final = 32 << 20
"""Bytes of a header. A node's report of 10,000 shards has about 3 MiB."""
FRAME_LIMIT: Final = 32 << 20
"""Bytes of any frame; the bus drops the connection of a peer that sends more."""
BODY_FRAMES_LIMIT: Final = 4096
"""Body frames of one message."""
BODY_LIMIT: Final = 256 << 20
"""Bytes of a message's body frames together: the largest tree."""

_MAGIC: Final = b"ckpt/"
_PREFIX: Final = b"ckpt/%d " % PROTOCOL_VERSION
_PROTOCOL_LIMIT: Final = 64
_decoder: Final = msgspec.msgpack.Decoder(Envelope)


def encode(envelope: Envelope) -> list[bytes]:
    """Return the two frames that stand before the body.

    Texts may hold file names that are no UTF-8; what cannot be sent of them is spelled out.

    Raises:
        ProtocolError: the header would be longer than any reader takes, or a number does not fit into one.
    """
    name = type(envelope.message).__name__
    try:
        builtins = msgspec.to_builtins(envelope, builtin_types=(bytes,))
        packed: bytes = msgpack.packb(builtins, unicode_errors="backslashreplace")
    except (ValueError, OverflowError) as error:
        raise ProtocolError(f"{name}: cannot be packed: {quote(str(error))}") from error
    if len(packed) > HEADER_LIMIT:
        raise ProtocolError(f"{name}: header has {len(packed)} bytes, expected at most {HEADER_LIMIT}")
    return [_PREFIX + name.encode(), packed]


def check_body(body: Sequence[bytes | memoryview]) -> None:
    """Hold a message's body frames to all limits; both who sends and who reads them asks.

    Raises:
        ProtocolError: they are too many, one is too large, or all together are.
    """
    if len(body) > BODY_FRAMES_LIMIT:
        raise ProtocolError(f"expected at most {BODY_FRAMES_LIMIT} body frames, found {len(body)}")
    sizes = [len(frame) for frame in body]
    if (largest := max(sizes, default=0)) > FRAME_LIMIT:
        raise ProtocolError(f"expected frames of at most {FRAME_LIMIT} bytes, found one of {largest}")
    if (size := sum(sizes)) > BODY_LIMIT:
        raise ProtocolError(f"expected a body of at most {BODY_LIMIT} bytes, found {size}")


def decode(frames: Sequence[bytes | memoryview]) -> tuple[Envelope, tuple[memoryview, ...]]:
    """Return the message and views of its body frames.

    Nesting is bounded by the parser's own stack, everything else by HEADER_LIMIT and `check_body`.

    Raises:
        ProtocolError: anything else than a message of this protocol version.
    """
    if len(frames) < 2:  # noqa: PLR2004 - protocol and header
        raise ProtocolError(f"expected at least 2 frames, found {len(frames)}")
    check_body(frames[2:])
    name = _type(bytes(frames[0][:_PROTOCOL_LIMIT]))
    header = frames[1]
    if len(header) > HEADER_LIMIT:
        raise ProtocolError(f"{name}: header has {len(header)} bytes, expected at most {HEADER_LIMIT}")
    try:
        envelope = _decoder.decode(header)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"{name}: {quote(str(error) or type(error).__name__)}") from error
    found = type(envelope.message).__name__
    if found != name:
        raise ProtocolError(f"expected {name} as the first frame says, found {found}")
    return envelope, tuple(memoryview(frame) for frame in frames[2:])


def _type(protocol: bytes) -> str:
    if not protocol.startswith(_PREFIX):
        if protocol.startswith(_MAGIC):
            version = protocol[len(_MAGIC) :].split(b" ")[0]
            raise ProtocolError(f"expected protocol version {PROTOCOL_VERSION}, found {version!r}")
        raise ProtocolError(f"expected a frame that begins with {_MAGIC!r}, found {protocol[:8]!r}")
    return protocol[len(_PREFIX) :].decode("ascii", "backslashreplace")
