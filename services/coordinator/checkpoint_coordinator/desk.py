"""What all parts of one job's machine share: what was heard, what was decided, and the next stamp."""

from collections.abc import Callable, Collection, Mapping, Sequence

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
from checkpoint_replicator.ids import Epoch, Host, Job, Rank
from checkpoint_replicator.liveness import Life
from checkpoint_replicator.messages import Service
from checkpoint_replicator.records import EpochState, HostRecord, Member, Peer
from checkpoint_replicator.session import SessionSpec
from checkpoint_replicator.times import Times

__all__ = ["Desk", "Options"]

MOST_EVENTS = 256


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
        registered: hosts that Redis names.
        decisions: what Redis shows of the restore decisions, by epoch, oldest first.
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
        self.registered: Mapping[Host, HostRecord] = {}
        self.decisions: Sequence[tuple[int, Mapping[str, str]]] = ()
        self.events: list[dict[str, str]] = []

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

    def stocktake(self) -> Inventory:
        """Return what lies where: on live hosts, and in the backups but those superseded ones that nobody ordered."""
        forced, record, listing = self.state.forced, self.state.restore, self.archive.listing
        ordered = {
            forced.backup if forced is not None else None,
            record.backup if record is not None else None,
            (listing.forced or "").strip() if listing is not None else None,
        }
        return self._stocktake(self.archive.superseded - ordered)

    def full_stock(self) -> Inventory:
        """Return what lies where, whatever was superseded."""
        return self._stocktake(frozenset())

    def _stocktake(self, hidden: Collection[str]) -> Inventory:
        reports = {
            host: (self.hearing.voices[host].report.held, self.hearing.voices[host].report.transfer)
            for host in self.live
        }
        listing = self.archive.listing
        return take_stock(reports, (e for e in listing.entries if e.name not in hidden) if listing is not None else ())

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
        """Return who saves together; None while an epoch is not released or a member's yaml was not heard of."""
        epoch = self.state.epoch
        if epoch is None or epoch.shape is None or not self.running:
            return None
        specs = self.specs()
        if len(specs) < epoch.shape.nodes:
            return None
        lost = frozenset(member.host for member in epoch.members if member.host not in self.live)
        return Crew(
            shape=epoch.shape, members=epoch.members, placements=placements(epoch.members, specs, lost), live=self.live
        )

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
        """Return every backup root that anybody has in its configuration."""
        found = {voice.report.backup_root for voice in self.hearing.voices.values()} | {self.options.backup}
        return frozenset(root.rstrip("/") for root in found if root)
