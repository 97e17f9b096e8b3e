"""A shard's tree: the list of its directories and files with the digests of their leaves, as one canonical text.

    ckpt-tree 1 blake3 1048576
    d <path>
    f <size> <leaf digests, comma separated, or - for an empty file> <path>

One line an entry, sorted by path bytes, each ended by a newline. Letters, digits and `_.-~/` of a path stand as they
are, every other byte as `%` and two upper-case hex digits. Every directory below the root has a line. A shard that is a
single file has one entry, with the path `.`; an empty directory has none. One content has exactly one text, so the
BLAKE3 of the text, the address, names the content.
"""

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Final, NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes

import msgspec
from blake3 import blake3

from checkpoint_replicator import leaf
from checkpoint_replicator.errors import ProtocolError
from checkpoint_replicator.ids import Address

__all__ = ["MAX_DEPTH", "MAX_ENTRIES", "MAX_PATH", "MAX_SIZE", "MAX_TREE", "ROOT", "Directory", "File", "Leaf", "Tree"]

HEADER: Final = f"ckpt-tree 1 blake3 {leaf.LEAF_SIZE}\n".encode()
ROOT: Final = b"."
"""The path of the one entry of a shard that is a single file."""
MAX_TREE: Final = 256 << 20
"""Largest text in bytes: enough for 4 TiB."""
MAX_ENTRIES: Final = 1 << 20
"""Most files and directories; each costs memory beyond its line."""
MAX_SIZE: Final = 1 << 50
"""Largest shard in bytes."""
MAX_DEPTH: Final = 64
"""Most components of a path."""
MAX_PATH: Final = 4095
"""Longest path in bytes."""
MAX_COMPONENT: Final = 255
_MAX_DIGITS: Final = len(str(MAX_SIZE))
_HEX: Final = 2 * leaf.DIGEST_SIZE


class Directory(msgspec.Struct, frozen=True, order=True):
    """A directory below the root; the path is relative, its components joined by `/`."""

    path: bytes


class File(msgspec.Struct, frozen=True, order=True):
    """A file: size in bytes, and the digests of its leaves one after another."""

    path: bytes
    size: int
    digests: bytes


class Leaf(NamedTuple):
    """One leaf of a tree: where its bytes lie, and their digest."""

    path: bytes
    offset: int
    size: int
    digest: bytes


class Tree:
    """A shard's tree. Leaves are numbered through all files, in the order of the entries."""

    def __init__(self, entries: Iterable[Directory | File]) -> None:
        """Take entries in any order.

        Raises:
            ProtocolError: they are not a tree (see `parse`).
        """
        self.entries = tuple(sorted(entries, key=lambda entry: entry.path))
        _check(self.entries)

    @classmethod
    def parse(cls, text: bytes) -> "Tree":
        """Read the canonical text.

        Raises:
            ProtocolError: another format; a path that is absolute, has an empty, `.` or `..` component or a NUL, stands
                twice, out of order, or below something that is no directory of this tree; a wrong number of digests;
                a limit passed; or the same content in another spelling.
        """
        if len(text) > MAX_TREE:
            raise ProtocolError(f"tree has {len(text)} bytes, expected at most {MAX_TREE}")
        if not text.startswith(HEADER):
            raise ProtocolError(f"tree begins with {text[: len(HEADER)]!r}, expected {HEADER!r}")
        if not text.endswith(b"\n"):
            raise ProtocolError("tree ends in the middle of a line")
        if (count := text.count(b"\n") - 1) > MAX_ENTRIES:
            raise ProtocolError(f"tree has {count} entries, expected at most {MAX_ENTRIES}")
        tree = cls.__new__(cls)
        tree.entries = tuple(_parse_line(number, line) for number, line in enumerate(_lines(text), start=2))
        _check(tree.entries)
        return tree

    def encode(self) -> bytes:
        """Return the canonical text."""
        return HEADER + b"".join(_line(entry) for entry in self.entries)

    @cached_property
    def address(self) -> Address:
        """The BLAKE3 of the text in hex, with `D` before it for a directory."""
        digest: str = blake3(self.encode()).hexdigest()
        return Address(f"D{digest}" if self.is_directory else digest)

    @property
    def is_directory(self) -> bool:
        """Whether the shard is a directory, and not a single file."""
        return not (len(self.entries) == 1 and self.entries[0].path == ROOT)

    @cached_property
    def files(self) -> tuple[File, ...]:
        """The files, in the order in which their leaves are numbered."""
        return tuple(entry for entry in self.entries if isinstance(entry, File))

    @cached_property
    def directories(self) -> tuple[Directory, ...]:
        """The directories below the root, parents first."""
        return tuple(entry for entry in self.entries if isinstance(entry, Directory))

    @cached_property
    def paths(self) -> frozenset[bytes]:
        """The paths of all entries."""
        return frozenset(entry.path for entry in self.entries)

    @cached_property
    def size(self) -> int:
        """Sum of the files' sizes in bytes."""
        return sum(file.size for file in self.files)

    @cached_property
    def _firsts(self) -> tuple[int, ...]:
        """For each file the number of its first leaf, and at the end the number of leaves in all."""
        return tuple(itertools.accumulate((leaf.count(file.size) for file in self.files), initial=0))

    @property
    def leaves(self) -> int:
        """Number of leaves of the whole shard."""
        return self._firsts[-1]

    def leaf(self, number: int) -> Leaf:
        """Return a leaf by its number.

        Raises:
            ProtocolError: there is no such leaf; numbers come from peers.
        """
        if not 0 <= number < self.leaves:
            raise ProtocolError(f"leaf {number} was asked for, expected 0 to {self.leaves - 1}")
        place = bisect_right(self._firsts, number) - 1
        file, index = self.files[place], number - self._firsts[place]
        offset, size = leaf.span(file.size, index)
        start = index * leaf.DIGEST_SIZE
        return Leaf(file.path, offset, size, file.digests[start : start + leaf.DIGEST_SIZE])

    def leaves_of(self, path: bytes) -> range:
        """Return the numbers of a file's leaves; empty for a path that is no file of this tree."""
        place = self._places.get(path)
        return range(0) if place is None else range(self._firsts[place], self._firsts[place + 1])

    @cached_property
    def _places(self) -> dict[bytes, int]:
        return {file.path: place for place, file in enumerate(self.files)}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tree) and self.entries == other.entries

    def __hash__(self) -> int:
        return hash(self.address)

    def __repr__(self) -> str:
        return f"<Tree {self.address:.13} {len(self.entries)} entries, {self.size} bytes>"


def _lines(text: bytes) -> Iterator[bytes]:
    """Yield the lines after the header, each with its newline, without a second copy of the whole text."""
    start = len(HEADER)
    while start < len(text):
        end = text.index(b"\n", start) + 1
        yield text[start:end]
        start = end


def _line(entry: Directory | File) -> bytes:
    path = quote_from_bytes(entry.path, safe="/").encode()
    if isinstance(entry, Directory):
        return b"d %b\n" % path
    digests = entry.digests.hex(",", leaf.DIGEST_SIZE).encode() or b"-"
    return b"f %d %b %b\n" % (entry.size, digests, path)


def _parse_line(number: int, line: bytes) -> Directory | File:
    entry: Directory | File
    match line[:-1].split(b" "):
        case [b"d", path]:
            entry = Directory(unquote_to_bytes(path))
        case [b"f", size, digests, path] if size.isdigit() and len(size) <= _MAX_DIGITS:
            try:
                raw = b"" if digests == b"-" else bytes.fromhex(digests.replace(b",", b"").decode("ascii"))
            except ValueError as error:
                raise ProtocolError(f"tree line {number} has a digest that is not hex: {error}") from error
            entry = File(unquote_to_bytes(path), int(size), raw)
        case _:
            raise ProtocolError(
                f"tree line {number} is {line[:80]!r}, expected `d <path>` or `f <size> <digests> <path>`"
            )
    if _line(entry) != line:
        raise ProtocolError(f"tree line {number} is {line[:80]!r}, which is not the canonical spelling")
    return entry


def _check(entries: tuple[Directory | File, ...]) -> None:
    """Refuse what is not a tree; entries must be sorted."""
    parents: set[bytes] = {b""}
    last: bytes | None = None
    total = 0
    for entry in entries:
        path = entry.path
        if not (path == ROOT and isinstance(entry, File) and len(entries) == 1):
            _check_path(path)
            if path.rpartition(b"/")[0] not in parents:
                raise ProtocolError(f"tree names {path!r}, which does not lie in a directory of this tree")
        if last is not None and path <= last:
            raise ProtocolError(f"tree names {path!r} after {last!r}, expected each path once and in byte order")
        last = path
        if isinstance(entry, Directory):
            parents.add(path)
            continue
        if not 0 <= entry.size <= MAX_SIZE or (total := total + entry.size) > MAX_SIZE:
            raise ProtocolError(f"tree has a file of {entry.size} bytes, expected at most {MAX_SIZE} in all")
        expected = leaf.count(entry.size) * leaf.DIGEST_SIZE
        if len(entry.digests) != expected:
            raise ProtocolError(
                f"tree has {len(entry.digests)} bytes of digests for {path!r} of {entry.size} bytes, "
                f"expected {expected}"
            )


def _check_path(path: bytes) -> None:
    components = path.split(b"/")
    if len(path) > MAX_PATH or len(components) > MAX_DEPTH:
        raise ProtocolError(
            f"tree has a path of {len(path)} bytes and {len(components)} components, "
            f"expected at most {MAX_PATH} and {MAX_DEPTH}"
        )
    for component in components:
        if component in {b"", b".", b".."} or len(component) > MAX_COMPONENT or b"\0" in component:
            raise ProtocolError(
                f"tree has the path {path!r}, expected a relative path without empty, `.` or `..` components"
            )
