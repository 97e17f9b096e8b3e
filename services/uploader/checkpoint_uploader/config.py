"""The uploader's configuration."""

from checkpoint_replicator.blobs.location import check_root
from checkpoint_replicator.config import NodeConfig
from checkpoint_replicator.errors import ConfigError

__all__ = ["UploaderConfig"]

_MOST: int = 64


class UploaderConfig(NodeConfig, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """What the uploader has beside a node's other services.

    Raises:
        ConfigError: `backup` cannot be a root, or a number is out of range.

    Attributes:
        backup: root of the backup store, `file:///folder`; without it the uploader answers every order with no.
        uploads: backups worked on at a time.
        calls: calls to the store at a time for one of them.
        reads: reads of the store at a time for a restore.
    """

    backup: str | None = None
    uploads: int = 2
    calls: int = 4
    reads: int = 4

    def __post_init__(self) -> None:
        if self.backup is not None:
            check_root(self.backup)
        for key in ("uploads", "calls", "reads"):
            value = getattr(self, key)
            if not 1 <= value <= _MOST:
                raise ConfigError(f"{key}: expected 1 to {_MOST}, found {value}")
