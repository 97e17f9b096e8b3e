"""The figures that people page on, out of a machine's state."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from checkpoint_coordinator.commit import SaveState
from checkpoint_coordinator.machine import CoordinatorMachine
from checkpoint_replicator.ids import Job

__all__ = ["Gauges"]


class Gauges:
    """Metrics of one coordinator process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.reports = Counter(
            "checkpoint_replicator_reports_total", "NodeReports by what became of them", ["result"], registry=registry
        )
        self.events = Counter(
            "checkpoint_replicator_coordinator_events_total", "What happened, by event", ["event"], registry=registry
        )
        self.store_failures = Counter(
            "checkpoint_replicator_store_failures_total", "Requests that Redis did not answer", registry=registry
        )
        self._lease = Gauge("checkpoint_replicator_lease_held", "1: this process decides", ["job"], registry=registry)
        self._backup = Gauge(
            "checkpoint_replicator_backup_age_seconds", "Age of the last verified backup", ["job"], registry=registry
        )
        self._copies = Gauge(
            "checkpoint_replicator_copies_min",
            "Copies beside the own one of the newest committed save",
            ["job"],
            registry=registry,
        )
        self._unprotected = Gauge(
            "checkpoint_replicator_unprotected_seconds",
            "Since when no other host has a copy",
            ["job"],
            registry=registry,
        )
        self._hosts = Gauge(
            "checkpoint_replicator_hosts", "Hosts by how they live", ["job", "state"], registry=registry
        )

    def show(self, job: Job, machine: CoordinatorMachine, now: float) -> None:
        """Set all gauges of one job; a stand-by shows only that it has no lease."""
        self._lease.labels(job).set(machine.active)
        if not machine.active:
            return
        desk = machine.desk
        wall = desk.wall(now)
        if desk.state.last_backup is not None:
            self._backup.labels(job).set(max(0.0, wall - desk.state.last_backup.verified_at))
        committed = [record for record in desk.state.saves.values() if record.state is SaveState.COMMITTED]
        if committed:
            newest = max(committed, key=lambda record: record.save)
            self._copies.labels(job).set(newest.copies)
            self._unprotected.labels(job).set(max(0.0, wall - newest.since) if newest.unprotected else 0.0)
        lives = [str(desk.hearing.life(host, now)) for host in desk.hearing.voices]
        for state in ("ok", "suspect", "lost"):
            self._hosts.labels(job, state).set(lives.count(state))
