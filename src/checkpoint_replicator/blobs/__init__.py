"""The backup store as the uploader sees it: create-only objects under names with `/`.

`DirectoryBlobStore` is a folder (`file://`), `MemoryBlobStore` serves tests; both pass `tests/contract/test_blobs.py`.
Methods block: the uploader calls them in its own bounded threads.
"""

from collections.abc import Iterator
from typing import BinaryIO, Protocol

import msgspec

__all__ = ["Blob", "BlobStore"]


class Blob(msgspec.Struct, frozen=True):
    """An object as a listing shows it; crc32c is base64 of the big-endian sum, as in Cloud Storage."""

    name: str
    size: int
    crc32c: str


class BlobStore(Protocol):
    """Objects that are written once.

    Every method raises `UnreachableError` when the store does not answer and `PermanentError` when it forbids.
    """

    root: str
    """The URL, for people and for comparing roots between nodes."""

    def put_new(self, name: str, source: BinaryIO, size: int, crc32c: str) -> bool:
        """Create the object from `size` bytes of the source; visible only whole.

        Returns False when an object of that name with this size and crc32c is there already (a repeated write).

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
        """Yield every object below the prefix, by name."""
        ...

    def delete(self, name: str) -> None:
        """Remove the object; absence is success."""
        ...
