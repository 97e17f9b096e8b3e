"""The transfer's configuration."""

import os

from checkpoint_replicator.config import NodeConfig, Size
from checkpoint_replicator.errors import ConfigError
from checkpoint_transfer.leaves import CHUNK_BYTES

__all__ = ["TransferConfig"]


class TransferConfig(NodeConfig, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """Keys of the transfer beside those of every service of a node.

    Attributes:
        window: bytes asked of all sources together and not stored yet, over all fetches.
        serve_window: bytes read for all peers together and not acknowledged yet.
        hash_threads: threads that verify and write leaves.
        read_threads: threads that read leaves for peers.
        leaf_sockets: sockets on which this node takes leaves; a peer spreads its messages over them.

    Raises:
        ConfigError: a window is smaller than one message, or a number is below 1.
    """

    window: Size = Size(32 << 20)
    serve_window: Size = Size(32 << 20)
    hash_threads: int = min(4, os.cpu_count() or 1)
    read_threads: int = 2
    leaf_sockets: int = 1

    def __post_init__(self) -> None:
        for key, size in (("window", self.window), ("serve-window", self.serve_window)):
            if size < CHUNK_BYTES:
                raise ConfigError(f"{key}: expected at least {Size(CHUNK_BYTES)}, found {size}")
        for key, count in (
            ("hash-threads", self.hash_threads),
            ("read-threads", self.read_threads),
            ("leaf-sockets", self.leaf_sockets),
        ):
            if count < 1:
                raise ConfigError(f"{key}: expected at least 1, found {count}")
