from prometheus_client import CollectorRegistry

from checkpoint_coordinator.gauges import Gauges
from support.coordination import JOB, Bench
from support.fake_nodes import Bucket


def test_the_figures_that_people_page_on() -> None:
    registry = CollectorRegistry()
    gauges = Gauges(registry)
    bench = Bench(bucket=Bucket())
    coordinator = bench.coordinator()
    gauges.show(JOB, coordinator.machine, bench.clock.now)
    assert registry.get_sample_value("checkpoint_replicator_lease_held", {"job": JOB}) == 0
    nodes = bench.cluster(2)
    bench.run(10, bench.all_running)
    for node in nodes:
        node.save(1)
    bench.run(20)
    gauges.show(JOB, coordinator.machine, bench.clock.now)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"checkpoint_replicator_{name}", {"job": JOB, **labels})

    assert value("lease_held") == 1
    assert value("copies_min") == 1
    assert value("unprotected_seconds") == 0
    assert value("hosts", state="ok") == 2
    age = value("backup_age_seconds")
    assert age is not None
    assert 0 < age < 30
