"""The transfer's metrics."""

from prometheus_client import CollectorRegistry, Counter, Gauge

__all__ = ["Meters"]


class Meters:
    """Counters of one process, in the registry that it is given."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.taken = Counter(
            "checkpoint_replicator_transfer_received_bytes_total",
            "Verified bytes by source: peer or backup",
            ["source"],
            registry=registry,
        )
        self.sent = Counter(
            "checkpoint_replicator_transfer_sent_bytes_total", "Bytes handed to peers' sockets", registry=registry
        )
        self.leaves_sent = Counter(
            "checkpoint_replicator_transfer_sent_leaves_total", "Leaves handed to peers' sockets", registry=registry
        )
        self.corrupt = Counter(
            "checkpoint_replicator_corrupt_leaves_total",
            "Leaves that came with bytes that differ from the tree, by the host that sent them",
            ["source"],
            registry=registry,
        )
        self.corrupt_copies = Counter(
            "checkpoint_replicator_corrupt_copies_total",
            "Copies elsewhere of which leaves came corrupt, by tier: peer or backup",
            ["tier"],
            registry=registry,
        )
        self.corrupt_shards = Counter(
            "checkpoint_replicator_corrupt_shards_total",
            "Shards of this node whose bytes differ from their address",
            registry=registry,
        )
        self.refused = Counter(
            "checkpoint_replicator_copies_refused_total", "Peers' offers that were refused", ["kind"], registry=registry
        )
        self.stored = Counter(
            "checkpoint_replicator_copies_stored_total", "Peers' offers that were stored", registry=registry
        )
        self.failed = Counter(
            "checkpoint_replicator_fetches_failed_total", "Fetches that no source could complete", registry=registry
        )
        self.strange = Counter(
            "checkpoint_replicator_transfer_strange_messages_total",
            "Messages for another process, or of a kind that a transfer does not take",
            registry=registry,
        )
        self.open_fetches = Gauge(
            "checkpoint_replicator_transfer_fetches", "Fetches that are ordered or offered", registry=registry
        )
