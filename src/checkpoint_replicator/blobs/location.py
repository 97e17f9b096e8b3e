"""The backup root as people write it, `file:///folder` or `gs://bucket/prefix`, and the store behind it."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from checkpoint_replicator.blobs import BlobStore
from checkpoint_replicator.blobs.directory import DirectoryBlobStore
from checkpoint_replicator.errors import ConfigError

__all__ = ["check_root", "open_root", "root_folder"]


def check_root(url: str) -> str:
    """Return the URL without a slash at its end, so that equal roots are equal texts.

    Raises:
        ConfigError: no backup store can have this URL.
    """
    root_folder(url)
    return url.rstrip("/")


def open_root(url: str) -> BlobStore:
    """Return the store with this root; nothing is read or written yet.

    Raises:
        ConfigError: no backup store can have this URL.
    """
    return DirectoryBlobStore(root_folder(url), check_root(url))


def root_folder(url: str) -> Path:
    """Return the folder behind the URL.

    Raises:
        ConfigError: no backup store can have this URL.
    """
    parts = urlsplit(url)
    if parts.scheme == "gs":
        raise ConfigError(f"backup root {url!r}: gs:// is not supported yet, expected file:///folder")
    if parts.scheme != "file":
        raise ConfigError(f"backup root {url!r}: expected file:///folder")
    if parts.netloc not in {"", "localhost"}:
        raise ConfigError(f"backup root {url!r}: expected a folder of this machine, found host {parts.netloc!r}")
    if parts.query or parts.fragment:
        raise ConfigError(f"backup root {url!r}: expected neither '?' nor '#'")
    path = Path(unquote(parts.path))
    if not path.is_absolute() or path == Path("/") or ".." in path.parts or "\0" in str(path):
        raise ConfigError(f"backup root {url!r}: expected an absolute, normalized path below /")
    return path
