from prometheus_client import CollectorRegistry

from checkpoint_transfer.meters import Meters


def test_every_metric_stands_in_the_registry_that_was_given() -> None:
    registry = CollectorRegistry()
    meters = Meters(registry)
    meters.corrupt.labels("a").inc(2)
    meters.taken.labels("peer").inc(5)
    assert registry.get_sample_value("checkpoint_replicator_corrupt_leaves_total", {"source": "a"}) == 2
    assert registry.get_sample_value("checkpoint_replicator_transfer_received_bytes_total", {"source": "peer"}) == 5
    assert all(metric.name.startswith("checkpoint_replicator_") for metric in registry.collect())
