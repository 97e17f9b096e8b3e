"""The one table of times. Every wait of the system is a row here, and the rows have an order that is checked.

All values are seconds. A configuration overrides rows in its table `[times]`, with a unit each: `lost = "20s"`.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import msgspec

from checkpoint_replicator.errors import ConfigError

__all__ = ["Times"]

HOUR: Final = 3600.0

_ORDER: Final[tuple[tuple[str, ...], ...]] = (
    ("report_gap", "report", "suspect", "lost"),
    ("orders", "suspect"),
    ("look", "beacon", "beacon_silent", "lost"),
    ("consumed", "rendezvous", "failed", "client"),
    ("empty_yaml", "consumed"),
    ("shape_quarrel", "consumed"),
    ("abandoned_quiet", "abandoned_most", "rendezvous"),
    ("bucket_silent", "rendezvous"),
    ("want_parked", "acknowledged", "stuck"),
    ("linger", "drain"),
    ("retry_least", "retry_most"),
)
"""Chains of rows; each must be smaller than the next."""
_SUMS: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    (("lease_renewed", "lease_margin"), "lease_ttl"),  # else it does nothing between two renewals
    (("beacon_silent", "hosts"), "lost"),  # else who is cut off is lost before its call for help is read
)
"""Rows that follow one another; together they must be smaller than the last."""


class Times(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """Spans in seconds.

    Raises:
        ConfigError: a row is not above zero, or two rows stand in the wrong order.

    Attributes:
        report_gap: shortest time between two NodeReports.
        report: a NodeReport comes at least this often.
        orders: orders and reports between the services of a node are repeated this often.
        suspect: without a report for this long a host is suspect.
        lost: without a report for this long a host is lost.
        stuck: a host that reports but makes no progress for this long is stuck; a watcher ends, to be started anew,
            when its ramdisk refused the same thing for this long with an error other than want of room.
        lease_renewed: how often a coordinator renews its lease.
        lease_ttl: how long a lease lives without a renewal.
        lease_margin: a coordinator does nothing from this long before its lease would end.
        look: shortest time between two looks of a coordinator at all that was reported.
        facts: how often a coordinator writes what people read beside its decisions.
        hosts: how often a coordinator reads which hosts are registered and which silent ones call for help.
        repair: how often a coordinator looks whether Redis still holds what it wrote.
        beacon: how often a coordinator publishes its beacon.
        beacon_silent: without a beacon for this long a node reads Redis.
        scan: time between two scans of the ramdisk.
        stocktake: time between two looks whether all named shards still stand.
        empty_yaml: an empty, closed `replicator.yaml` is bad after this long.
        consumed: a `replicator.yaml` is consumed at the latest this long after it was seen.
        shape_quarrel: open sessions that disagree on the shape fail after this long.
        rendezvous: from the yaml's consumption, how long the other nodes of the job are waited for; then
            `replicator.failed` names who did not come.
        failed: from the yaml's consumption, when `replicator.failed` is written.
        client: the trainer's own time-out.
        abandoned_quiet: after an abandoned epoch the next opens when no new session came for this long.
        abandoned_most: after an abandoned epoch the next opens at the latest after this long.
        bucket_silent: how long a silent backup store is waited for before a restore decision, and before a session is
            given the one that its fellows have.
        wish_unheard: how long an ordered restore waits for silent witnesses before it is taken on trust.
        want_parked: how long a Want for leaves that are not there yet waits before NotYet.
        acknowledged: what a peer did not acknowledge for this long is sent again or asked of another.
        uploader_turn: a backup order that an uploader did not take up goes to the next after this long.
        store_silent: a call to the backup store without bytes for this long is aborted.
        retry_least: shortest delay before trying again what failed for a passing reason.
        retry_most: longest such delay.
        drain: from SIGTERM to the end of the process.
        linger: how long queued messages are still sent when a process ends.
        loop_silent: an event loop that did not move for this long is reported as unhealthy.
        idle: a job without saves, sessions and restores is idle after this long.
    """

    report_gap: float = 0.1
    report: float = 2.0
    orders: float = 1.0
    suspect: float = 6.0
    lost: float = 20.0
    stuck: float = 10.0
    lease_renewed: float = 3.0
    lease_ttl: float = 10.0
    lease_margin: float = 2.0
    look: float = 0.05
    facts: float = 1.0
    hosts: float = 5.0
    repair: float = 30.0
    beacon: float = 1.0
    beacon_silent: float = 5.0
    scan: float = 1.0
    stocktake: float = 10.0
    empty_yaml: float = 10.0
    consumed: float = 60.0
    shape_quarrel: float = 10.0
    rendezvous: float = 240.0
    failed: float = 285.0
    client: float = 300.0
    abandoned_quiet: float = 3.0
    abandoned_most: float = 15.0
    bucket_silent: float = 30.0
    wish_unheard: float = 10.0
    want_parked: float = 2.0
    acknowledged: float = 5.0
    uploader_turn: float = 10.0
    store_silent: float = 60.0
    retry_least: float = 0.2
    retry_most: float = 5.0
    drain: float = 10.0
    linger: float = 1.0
    loop_silent: float = 30.0
    idle: float = 24 * HOUR

    def __post_init__(self) -> None:
        for fault in self._faults():
            raise ConfigError(f"times: {fault}")

    def _faults(self) -> Iterator[str]:
        for name, key in zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                yield f"{key} is {value:g} s, expected more than 0 s"
        key_of = dict(zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True))
        for chain in _ORDER:
            for less, more in pairwise(chain):
                small, large = getattr(self, less), getattr(self, more)
                if not small < large:
                    yield f"{key_of[less]} is {small:g} s, expected less than {key_of[more]} ({large:g} s)"
        for parts, most in _SUMS:
            total, large = sum(getattr(self, part) for part in parts), getattr(self, most)
            if not total < large:
                names = " and ".join(key_of[part] for part in parts)
                yield f"{names} are {total:g} s together, expected less than {key_of[most]} ({large:g} s)"
