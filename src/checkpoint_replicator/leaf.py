"""A leaf: 1 MiB of one file, or the shorter last piece; the unit of hashing, sending and repair."""

from typing import Final

from blake3 import blake3

__all__ = ["DIGEST_SIZE", "LEAF_SIZE", "count", "digest", "span"]

LEAF_SIZE: Final = 1 << 20
"""Bytes of every leaf of a file but the last."""
DIGEST_SIZE: Final = 32
"""Bytes of a leaf's digest."""


def count(size: int) -> int:
    """Return how many leaves a file of `size` bytes has; an empty file has none."""
    return -(-size // LEAF_SIZE)


def span(size: int, index: int) -> tuple[int, int]:
    """Return offset and length in bytes of a file's leaf; `size` is the file's, `index` counts from 0."""
    offset = index * LEAF_SIZE
    return offset, min(LEAF_SIZE, size - offset)


def digest(data: bytes | bytearray | memoryview) -> bytes:
    """Return the BLAKE3 of a leaf's bytes; the interpreter lock is free meanwhile."""
    return blake3(data).digest()
