"""Configuration of the watcher."""

from checkpoint_replicator.config import NodeConfig

__all__ = ["WatcherConfig"]


class WatcherConfig(NodeConfig, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """What the watcher has beside what every service of a node has.

    Attributes:
        backup: root URL of the backup store, where one is used; must be the same for all services of the job.
        hash_threads: threads that hash one save together; two saves are hashed at once.
    """

    backup: str | None = None
    hash_threads: int = 4
