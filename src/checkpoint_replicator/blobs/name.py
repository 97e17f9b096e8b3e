"""Which object names are fit for every store: a folder and a bucket."""

from typing import Final

from checkpoint_replicator.errors import ProtocolError

__all__ = ["MAX_NAME", "OWN_FOLDER", "is_name_part", "name_fault", "name_parts"]

MAX_NAME: Final = 1024
"""Longest object name in UTF-8 bytes, the limit of Cloud Storage."""
MAX_PART: Final = 255
"""Longest part between two `/`, the limit of file systems."""
OWN_FOLDER: Final = ".blobs"
"""What `DirectoryBlobStore` keeps for itself below its root; no object may lie there."""


def name_fault(name: str) -> str | None:
    """Say why this cannot be the name of an object, or None."""
    try:
        raw = name.encode()
    except UnicodeEncodeError:
        return "is not UTF-8"
    if len(raw) > MAX_NAME:
        return f"has {len(raw)} bytes, expected at most {MAX_NAME}"
    if any(letter < " " for letter in name):
        return "has a control character"
    parts = name.split("/")
    for part in parts:
        if part in {"", ".", ".."}:
            return f"has the part {part!r}, expected a relative, normalized path"
        if len(part.encode()) > MAX_PART:
            return f"has a part of {len(part.encode())} bytes, expected at most {MAX_PART}"
    if parts[0] == OWN_FOLDER:
        return f"begins with {OWN_FOLDER}, which the store keeps for itself"
    return None


def is_name_part(text: str) -> bool:
    """Tell whether a name of an object may have this between two `/`."""
    return "/" not in text and name_fault(f"x/{text}") is None


def name_parts(name: str) -> tuple[str, ...]:
    """Split a name at `/`.

    Raises:
        ProtocolError: it cannot be the name of an object.
    """
    if fault := name_fault(name):
        raise ProtocolError(f"object name {name!r} {fault}")
    return tuple(name.split("/"))
