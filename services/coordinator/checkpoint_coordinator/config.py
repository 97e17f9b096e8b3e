"""Configuration of the coordinator."""

from typing import Literal

from checkpoint_coordinator.desk import Options
from checkpoint_replicator.config import ServiceConfig
from checkpoint_replicator.errors import ConfigError

__all__ = ["CoordinatorConfig"]

MOST_PORT = 65535


class CoordinatorConfig(ServiceConfig, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """What a coordinator has beside what every service has.

    Attributes:
        reports_port: TCP port that takes the nodes' reports; 0 is chosen by the system.
        beacons_port: TCP port that wakes the nodes; 0 is chosen by the system.
        backup: root URL of the backups, where the coordinator is to insist that they are looked at.
        fresh_start: `allowed` begins anew where everything that was committed is lost, with an event; `refused` lets
            the trainers fail and say what is missing.
        jobs: most jobs that one process takes on.
    """

    reports_port: int = 0
    beacons_port: int = 0
    backup: str | None = None
    fresh_start: Literal["refused", "allowed"] = "refused"
    jobs: int = 256

    def __post_init__(self) -> None:
        for key, port in (("reports-port", self.reports_port), ("beacons-port", self.beacons_port)):
            if not 0 <= port <= MOST_PORT:
                raise ConfigError(f"{key}: expected a port from 0 to {MOST_PORT}, found {port}")
        if self.jobs < 1:
            raise ConfigError(f"jobs: expected at least 1, found {self.jobs}")

    @property
    def options(self) -> Options:
        """What the machines need of it."""
        return Options(backup=self.backup, fresh_start=self.fresh_start == "allowed")
