"""What every host said last, and for how long it has been silent; pure.

A host has one voice for a job: its watcher. Of two incarnations the one taken up later counts; the earlier is never
heard again. (While both speak, the machine takes up what Redis has registered: words of an earlier life may come late.)
Ages are judged by the coordinator's own clock.
"""

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from checkpoint_coordinator.border import Checked
from checkpoint_replicator.ids import Host, Incarnation
from checkpoint_replicator.liveness import Life, Progress, is_common_fault, life, moved
from checkpoint_replicator.messages import NodeReport, Party
from checkpoint_replicator.records import Help
from checkpoint_replicator.times import Times

__all__ = ["Hearing", "Voice"]

MOST_OLD: Final = 4096
"""So many superseded incarnations are remembered."""
MOST_HOSTS: Final = 1 << 16
MOST_SHARDS: Final = 1 << 22
"""Shards that all hosts together may report; each costs about a KiB. 1,000 hosts with 1,000 shards are a quarter."""


class Voice(msgspec.Struct):
    """A host's last report.

    Attributes:
        host: who.
        incarnation: of its watcher.
        report: what it said.
        at: when it was taken up, in monotonic seconds.
        progress: bytes of the restore that it works on.
        fresh: heard since this coordinator took the lease.
    """

    host: Host
    incarnation: Incarnation
    report: NodeReport
    at: float
    progress: Progress | None = None
    fresh: bool = True


class Hearing:
    """All voices of a job.

    Attributes:
        voices: what counts of each host.
        doubts: what a second voice of a host said last, checked, until it is known which of the two is the later.
    """

    def __init__(self, times: Times) -> None:
        self.voices: dict[Host, Voice] = {}
        self.doubts: dict[Host, tuple[Party, Checked]] = {}
        self._times = times
        self._old: dict[Incarnation, Host] = {}
        self._shards = 0
        """So many shards all reports together name."""
        self._calls: dict[Host, tuple[float, str]] = {}
        """Hosts that told Redis that they cannot reach us: when that was read, and why."""

    def repeats(self, sender: Party, report: NodeReport, now: float) -> NodeReport | None:
        """Return what its host said last, where a report says the same again and the host was not silent since.

        Only the number of the report is another one.
        """
        voice = self.voices.get(sender.host)
        if voice is None or not voice.fresh or voice.incarnation != sender.incarnation:
            return None
        if now - voice.at >= self._times.suspect or report.version < voice.report.version:
            return None
        same = msgspec.structs.replace(voice.report, version=report.version)
        return same if same == report else None

    def take(self, sender: Party, report: NodeReport, now: float) -> bool:
        """Take up a report; False when a later one of its host was taken up before."""
        if sender.incarnation in self._old:
            return False
        before = self.voices.get(sender.host)
        if before is None and len(self.voices) >= MOST_HOSTS:
            return False
        more = len(report.held) - (len(before.report.held) if before is not None else 0)
        if more > 0 and self._shards + more > MOST_SHARDS:
            return False
        if before is not None and before.incarnation == sender.incarnation:
            if report.version < before.report.version:
                return False
        elif before is not None:
            self.supersede(sender.host, before.incarnation)
        progress = None
        if report.restore is not None:
            same = before is not None and before.report.restore is not None
            same = same and before.report.restore.stamp == report.restore.stamp  # type: ignore[union-attr]
            progress = moved(
                before.progress if same and before else None, report.restore.have, report.restore.size, now
            )
        self.voices[sender.host] = Voice(sender.host, sender.incarnation, report, now, progress)
        self._shards += more
        self._calls.pop(sender.host, None)
        return True

    def supersede(self, host: Host, incarnation: Incarnation) -> None:
        """Never hear this life of a host's watcher again."""
        self._old[incarnation] = host
        while len(self._old) > MOST_OLD:
            self._old.pop(next(iter(self._old)))

    def is_old(self, incarnation: Incarnation) -> bool:
        """Tell whether a later life of its host was taken up."""
        return incarnation in self._old

    def superseded(self) -> dict[Host, list[Incarnation]]:
        """Return the lives that are never heard again, the latest last."""
        found: dict[Host, list[Incarnation]] = {}
        for incarnation, host in self._old.items():
            found.setdefault(host, []).append(incarnation)
        return found

    def called(self, calls: Mapping[Host, Help], now: float) -> None:
        """Take up who told Redis to live and not to reach us."""
        for host, cry in calls.items():
            if cry.incarnation not in self._old and len(self._calls) < MOST_HOSTS:
                self._calls[host] = (now, cry.reason)

    def call(self, host: Host, now: float) -> str:
        """Say why a host cannot reach us; empty where it does not say so."""
        at, reason = self._calls.get(host, (float("-inf"), ""))
        return reason if now - at < 2 * self._times.hosts else ""

    def silence(self, host: Host, now: float) -> float:
        """Return the seconds since the host's last report; endless for one that never spoke."""
        voice = self.voices.get(host)
        return now - voice.at if voice else float("inf")

    def life(self, host: Host, now: float) -> Life:
        """Judge a host; one that calls for help lives, and is not replaced."""
        found = life(self.silence(host, now), self._times)
        return Life.SUSPECT if found is Life.LOST and self.call(host, now) else found

    def live(self, now: float) -> frozenset[Host]:
        """Return the hosts that are not lost."""
        return frozenset(host for host in self.voices if self.life(host, now) is not Life.LOST)

    def common_fault(self, hosts: Collection[Host], now: float) -> bool:
        """Tell whether so many of these fell silent together that store or network must be at fault."""
        return is_common_fault([self.silence(host, now) for host in hosts if host in self.voices], self._times)

    def stale(self) -> None:
        """Ask for full reports: what was heard before a new lease is not a complete view any more."""
        for voice in self.voices.values():
            voice.fresh = False
        self.doubts.clear()

    def taken(self) -> dict[str, int]:
        """Return which report of each watcher was taken up, for the beacon."""
        return {voice.incarnation: voice.report.version for voice in self.voices.values()}

    def forget_silent(self, now: float, age: float) -> None:
        """Forget hosts that said nothing for so long."""
        for host in [host for host in self.voices if self.silence(host, now) > age]:
            self._shards -= len(self.voices.pop(host).report.held)
