"""What the uploader counts."""

from prometheus_client import CollectorRegistry, Counter, Gauge

__all__ = ["UploaderMetrics"]


class UploaderMetrics:
    """The uploader's metrics in a registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.uploaded = Counter(
            "checkpoint_replicator_backup_uploaded_bytes_total",
            "Bytes of shards read from the ramdisk, verified and sent to the backup store",
            registry=registry,
        )
        self.downloaded = Counter(
            "checkpoint_replicator_backup_downloaded_bytes_total",
            "Bytes of shards read from the backup store for a restore",
            registry=registry,
        )
        self.results = Counter(
            "checkpoint_replicator_backup_orders_total",
            "Tries of backup orders, by kind and by how they ended: done, failed, again (tried once more or cancelled)",
            ["kind", "outcome"],
            registry=registry,
        )
        self.active = Gauge(
            "checkpoint_replicator_backup_orders_active_count", "Backup orders being worked on", registry=registry
        )
        self.strange = Counter(
            "checkpoint_replicator_uploader_strange_messages_total",
            "Messages that are neither orders of the node's watcher nor Wants of its transfer",
            registry=registry,
        )
        self.absent = Counter(
            "checkpoint_replicator_backup_absent_total",
            "Wants of the local transfer that a backup could not serve",
            registry=registry,
        )
