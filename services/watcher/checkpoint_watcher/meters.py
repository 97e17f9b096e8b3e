"""The watcher's figures for people and alarms."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from checkpoint_watcher.effects import Announce
from checkpoint_watcher.machine import WatcherMachine

__all__ = ["Meters"]


class Meters:
    """Counters that events drive, and gauges that show the machine's state."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"checkpoint_replicator_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"checkpoint_replicator_{name}", text, registry=registry)

        self.overflows = counter("inotify_overflow_total", "Times the kernel lost events")
        self.strange = counter(
            "watcher_strange_messages_total", "Messages that are neither of the node's own services nor a beacon"
        )
        self._events = counter("watcher_events_total", "What the watcher announced", "event")
        self._scans = counter("scans_total", "Scans of the ramdisk")
        self._scan_seconds = counter("scan_seconds_total", "Time that scans took")
        self._corrupt = counter("corrupt_copies_total", "Copies found corrupt", "tier")
        self._held = gauge("held_shards", "Shards that stand here")
        self._on_the_way = gauge("saves_on_the_way", "Finished saves that are not named yet")
        self._foreign = gauge("foreign_names", "Names in the ramdisk that are none of ours")
        self._room = Gauge(
            "checkpoint_replicator_ramdisk_bytes", "Bytes of the ramdisk, by what", ["what"], registry=registry
        )
        self._generations = gauge("ramdisk_generations", "Saves with the copies for others that fit; two are needed")
        self._committed = gauge("last_committed_step", "Newest committed step")

    def announced(self, effect: Announce) -> None:
        """Count what the machine announced."""
        self._events.labels(effect.event).inc()
        if effect.event == "corrupt_copy_found":
            self._corrupt.labels(str(effect.fields.get("tier", "own"))).inc()

    def scanned(self, seconds: float) -> None:
        """Count a scan."""
        self._scans.inc()
        self._scan_seconds.inc(seconds)

    def measure(self, machine: WatcherMachine) -> None:
        """Show the state."""
        node = machine.node
        self._held.set(len(node.held))
        self._on_the_way.set(len(machine.saves.on_the_way(node.job)))
        if node.snapshot is not None:
            self._foreign.set(node.snapshot.foreign)
            room = machine.reporter.room()
            if room is not None:
                for what in ("size", "free", "reserve", "needed", "comfortable"):
                    self._room.labels(what).set(getattr(room, what))
                self._generations.set(room.generations)
        authority = machine.authorities.get(node.job) if node.job is not None else None
        if authority is not None and authority.committed is not None:
            self._committed.set(authority.committed.step)
