"""What all parts of one job's machine share: what was heard, what was decided, and the next stamp."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from checkpoint_coordinator.archive import Archive
from checkpoint_coordinator.chores import Results
from checkpoint_coordinator.commit import Crew
from checkpoint_coordinator.hearing import Hearing, Voice
from checkpoint_coordinator.index import State
from checkpoint_coordinator.inventory import Inventory, take_stock
from checkpoint_coordinator.membership import Membership
from checkpoint_coordinator.replication import placements
from checkpoint_replicator.fence import ZERO, Stamp
from checkpoint_replicator.ids import Epoch, Host, Incarnation, Job, Rank
from checkpoint_replicator.liveness import Life
from checkpoint_replicator.messages import BackupEntry, Held, Service
from checkpoint_replicator.records import EpochState, HostRecord, Member, Peer
from checkpoint_replicator.session import SessionSpec
from checkpoint_replicator.times import Times

__all__ = ["Desk", "Options"]

MOST_EVENTS = 256
NOT_READ = "not read yet"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What people configured.

    Attributes:
        backup: root URL in the coordinator's own configuration: a witness that backups exist.
        fresh_start: begin anew where everything committed is lost.
    """

    backup: str | None = None
    fresh_start: bool = False


class Desk:
    """One job.

    Attributes:
        state: every decision that stands.
        stamp: the highest that was given to a decision or seen in Redis.
        since: when the lease was taken: complete views count from here.
        unix: seconds between the Unix epoch and the zero of the monotonic clock, by Redis TIME.
        stock: what lies where, as of the last look.
        live: hosts that are not lost, as of the last look.
        common_fault: so many members fell silent together that store or network must be at fault, as of the last look.
        patient: the lease was taken so lately that who is silent may still speak, as of the last look.
        registered: hosts that Redis names.
        decisions: what Redis shows of the restore decisions, by epoch, oldest first.
        hosts_fault: why it is not known which hosts are registered; empty when it is.
        events: for the stream of the job, in order.
    """

    def __init__(self, job: Job, times: Times, options: Options, new_id: Callable[[], str]) -> None:
        self.job = job
        self.times = times
        self.options = options
        self.hearing = Hearing(times)
        self.membership = Membership(times)
        self.archive = Archive(times, new_id)
        self.state = State()
        self.stamp: Stamp = ZERO
        self.since = float("-inf")
        self.unix: float | None = None
        self.stock = Inventory()
        self.live: frozenset[Host] = frozenset()
        self.common_fault = False
        self.patient = True
        self.registered: Mapping[Host, HostRecord] = {}
        self.decisions: Sequence[tuple[int, Mapping[str, str]]] = ()
        self.hosts_fault = NOT_READ
        self._appeared: dict[Host, tuple[Incarnation, float]] = {}
        self.events: list[dict[str, str]] = []
        self._crew: tuple[object, Crew] | None = None
        """The last crew, and of what it was made."""

    def look(self, now: float) -> None:
        """Judge who lives."""
        self.live = self.hearing.live(now)
        self.common_fault = self.hearing.common_fault([member.host for member in self.members], now)
        self.patient = now - self.since < self.times.lost

    def begin(self, now: float) -> None:
        """The lease was taken: what is known of hosts counts from here."""
        self.since, self.patient = now, True
        self.registered, self.hosts_fault = {}, NOT_READ
        self._appeared.clear()
        self.hearing.stale()

    def take_hosts(self, hosts: Mapping[Host, HostRecord], now: float) -> None:
        """Take up which hosts are registered; each is waited for from its appearance."""
        self.registered, self.hosts_fault = hosts, ""
        self._appeared = {
            host: seen
            if (seen := self._appeared.get(host)) is not None and seen[0] == record.incarnation
            else (record.incarnation, now)
            for host, record in hosts.items()
        }

    def appeared(self, host: Host) -> float:
        """Return since when a report of a host is waited for, in monotonic seconds."""
        return max(self.since, self._appeared.get(host, (None, self.since))[1])

    def next_stamp(self, epoch: Epoch | None = None) -> Stamp:
        """Return a stamp above all before, for one decision."""
        number = self.stamp.epoch if epoch is None else max(epoch, self.stamp.epoch)
        self.stamp = Stamp(self.stamp.token, number, self.stamp.number + 1)
        return self.stamp

    def note(self, event: str, **fields: str) -> None:
        """Say what happened, for the stream, the log and the status page."""
        self.events.append({"event": event, **fields})
        del self.events[:-MOST_EVENTS]

    def wall(self, now: float) -> float:
        """Return Redis TIME in seconds, 0 while it is not known."""
        return now + self.unix if self.unix is not None else 0.0

    def moment(self, now: float) -> float:
        """Return Redis TIME for people to read: in seconds, to the millisecond."""
        return round(self.wall(now), 3)

    def voice(self, member: Member) -> Voice | None:
        """Return a member's voice if it was heard since the lease was taken and still speaks for that session."""
        voice = self.hearing.voices.get(member.host)
        if voice is None or not voice.fresh or voice.report.session is None:
            return None
        return voice if voice.report.session.id == member.session else None

    @property
    def members(self) -> tuple[Member, ...]:
        """The members of the epoch."""
        return self.state.epoch.members if self.state.epoch is not None else ()

    @property
    def running(self) -> bool:
        """Whether an epoch is released."""
        epoch = self.state.epoch
        return epoch is not None and epoch.released and epoch.state in {EpochState.RUNNING, EpochState.IDLE}

    @property
    def idle(self) -> bool:
        """Whether the job has been at rest for so long that it counts as ended."""
        return self.state.epoch is not None and self.state.epoch.state is EpochState.IDLE

    def listed(self) -> set[Host]:
        """Return the hosts whose registration says that they have data of the job."""
        return {host for host, record in self.registered.items() if self.job in record.jobs}

    def unheard(self) -> set[Host]:
        """Return the hosts that may have something of the job, are not lost, and were not heard under this lease."""
        late = {host for host in self.live if not self.hearing.voices[host].fresh}
        if self.patient:
            late |= ({member.host for member in self.members} | self.listed()) - self.hearing.voices.keys()
        return late

    def reports(self) -> dict[Host, tuple[tuple[Held, ...], Peer | None]]:
        """Return what live hosts hold, and how they are reached."""
        found = ((host, self.hearing.voices[host].report) for host in self.live)
        return {host: (report.held, report.transfer) for host, report in found}

    def entries(self) -> tuple[BackupEntry, ...]:
        """Return the listed backups but those superseded ones that nobody ordered."""
        listing = self.archive.listing
        if listing is None:
            return ()
        superseded = self.archive.superseded
        if not superseded:
            return listing.entries
        forced, record = self.state.forced, self.state.restore
        ordered = {
            forced.backup if forced is not None else None,
            record.backup if record is not None else None,
            (listing.forced or "").strip(),
        }
        return tuple(entry for entry in listing.entries if entry.name not in superseded or entry.name in ordered)

    def full_stock(self) -> Inventory:
        """Return what lies where, whatever was superseded."""
        listing = self.archive.listing
        return take_stock(self.reports(), listing.entries if listing is not None else ())

    def holds_anything(self, host: Host) -> bool:
        """Tell whether a host reports anything of the job that would have to be removed."""
        report = self.hearing.voices[host].report
        return bool(report.held or report.saving or report.session or report.newest_committed or report.obeyed > ZERO)

    def specs(self) -> dict[Rank, SessionSpec]:
        """Return what the members' yamls say, as far as it was heard."""
        found: dict[Rank, SessionSpec] = {}
        for member in self.members:
            seat = self.membership.seats.get(member.rank)
            if seat is not None and seat.session.id == member.session:
                found[member.rank] = seat.session.spec
        return found

    def crew(self) -> Crew | None:
        """Return who saves together; None while an epoch is not released or a member's yaml was not heard of.

        Of a member that is lost the yaml is not waited for: its fellows' saves need their copies all the more.
        """
        epoch = self.state.epoch
        if epoch is None or epoch.shape is None or not self.running or len(epoch.members) < epoch.shape.nodes:
            return None
        specs = self.specs()
        if any(one.rank not in specs and (self.patient or one.host in self.live) for one in epoch.members):
            return None
        known = (epoch.shape, epoch.members, specs, self.live, self.common_fault)
        if self._crew is None or self._crew[0] != known:
            # Under a common fault copies stay placed where they were: the silent hosts are as good as there.
            lost = frozenset(one.host for one in epoch.members if one.host not in self.live and not self.common_fault)
            placed = placements(epoch.members, specs, lost)
            self._crew = known, Crew(shape=epoch.shape, members=epoch.members, placements=placed, live=self.live)
        return self._crew[1]

    def peers(self) -> dict[Host, Peer | None]:
        """Return how each live host's transfer is reached."""
        return {host: self.hearing.voices[host].report.transfer for host in self.live}

    def uploaders(self, now: float) -> tuple[Host, ...]:
        """Return the hosts that can reach the backup store."""
        return tuple(
            host
            for host in sorted(self.live)
            if self.hearing.life(host, now) is Life.OK
            and (report := self.hearing.voices[host].report).backup_root is not None
            and any(health.service is Service.UPLOADER and health.alive for health in report.services)
        )

    def results(self) -> Results:
        """Return what uploaders answered."""
        return {
            result.id: (host, result)
            for host, voice in self.hearing.voices.items()
            if voice.fresh
            for result in voice.report.backup
        }

    def roots(self) -> frozenset[str]:
        """Return every backup root that anybody has in its configuration.

        That of a lost host counts where nobody else has one: it says that there may be backups.
        """
        voices = self.hearing.voices.items()
        living = {voice.report.backup_root for host, voice in voices if host in self.live} | {self.options.backup}
        found = living if any(living) else {voice.report.backup_root for _, voice in voices}
        return frozenset(root.rstrip("/") for root in found if root)
