"""The watcher's figures."""

from prometheus_client import CollectorRegistry

from checkpoint_watcher.effects import Announce
from checkpoint_watcher.meters import Meters
from support.watcher_shell import ModelRamdisk, WatcherShell
from support.watcher_story import run_fresh


def test_announcements_are_counted_and_corrupt_copies_by_where_they_lay() -> None:
    registry = CollectorRegistry()
    meters = Meters(registry)
    for _ in range(2):
        meters.announced(Announce("corrupt_copy_found", {"tier": "own"}))
    meters.scanned(0.5)
    assert registry.get_sample_value("checkpoint_replicator_corrupt_copies_total", {"tier": "own"}) == 2
    labels = {"event": "corrupt_copy_found"}
    assert registry.get_sample_value("checkpoint_replicator_watcher_events_total", labels) == 2
    assert registry.get_sample_value("checkpoint_replicator_scans_total") == 1
    assert registry.get_sample_value("checkpoint_replicator_scan_seconds_total") == 0.5


def test_gauges_show_what_the_machine_knows() -> None:
    registry = CollectorRegistry()
    shell = WatcherShell(ModelRamdisk()).start()
    run_fresh(shell)
    shell.disk.save(1)
    shell.scan()
    Meters(registry).measure(shell.machine)
    assert registry.get_sample_value("checkpoint_replicator_held_shards") == 1
    assert registry.get_sample_value("checkpoint_replicator_saves_on_the_way") == 0
    bytes_of = "checkpoint_replicator_ramdisk_bytes"
    assert registry.get_sample_value(bytes_of, {"what": "free"}) == 1 << 40
    assert registry.get_sample_value(bytes_of, {"what": "reserve"}) == 5
    assert registry.get_sample_value(bytes_of, {"what": "needed"}) == 15
    assert (registry.get_sample_value("checkpoint_replicator_ramdisk_generations") or 0) > 2
