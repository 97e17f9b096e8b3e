"""The backup store as the uploader sees it: create-only objects under names with `/`.

`DirectoryBlobStore` is a folder (`file://`), `MemoryBlobStore` serves tests; both pass `tests/contract/test_blobs.py`.
Methods block: the uploader calls them in its own bounded threads.
"""

from collections.abc import Iterator
from typing import BinaryIO, Protocol

import msgspec

__all__ = ["Blob", "BlobStore"]


class Blob(msgspec.Struct, frozen=True):
    """An object as a listing shows it.

    Attributes:
        crc32c: base64 of the big-endian sum, as in Cloud Storage; empty in a listing of a store that would have to
            read the object to know it. `stat` always gives it.
    """

    name: str
    size: int
    crc32c: str


class BlobStore(Protocol):
    """Objects that are written once.

    Every method raises `UnreachableError` when the store does not answer, `NoRoomError` when it is full,
    `PermanentError` when it forbids and `ProtocolError` when the name cannot be that of an object. A root that is not
    there does not answer: it is never taken for an empty one.
    """

    root: str
    """The URL, for people and for comparing roots between nodes."""

    def put_new(self, name: str, source: BinaryIO, size: int, crc32c: str) -> bool:
        """Create the object from `size` bytes of the source; visible only whole.

        Returns False when an object of that name with this size and crc32c is there already (a repeated write).
        What the source raises comes out unchanged; then nothing is left.

        Raises:
            RefusedError: an object of that name with other content is there.
            CorruptError: the source did not give `size` bytes with this crc32c; nothing is left.
        """
        ...

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes from `offset`.

        Raises:
            FileNotFoundError: no such object.
            CorruptError: it is shorter.
        """
        ...

    def stat(self, name: str) -> Blob | None:
        """Return the object's size and sum, or None."""
        ...

    def list(self, prefix: str) -> Iterator[Blob]:
        """Yield every object whose name begins with the prefix, by name."""
        ...

    def delete(self, name: str) -> None:
        """Remove the object; absence is success."""
        ...
