"""Who is in the job, and when an epoch opens; pure.

A seat is a rank's session. Of two sessions of a rank the one taken up later wins; a superseded session never wins
again, its host or process may. Only open sessions are gathered and compared.
"""

from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from checkpoint_replicator.ids import Epoch, Host, Rank, SessionId
from checkpoint_replicator.records import EpochRecord, Member
from checkpoint_replicator.session import Session, SessionState
from checkpoint_replicator.shape import Shape
from checkpoint_replicator.times import Times

__all__ = ["NO_SESSION", "Abandon", "Join", "Membership", "Open", "Seat", "Wait", "ranks_text"]

MOST_REMEMBERED: Final = 1024
"""So many superseded and refused sessions are remembered, the latest."""
MOST_NAMED: Final = 8
NO_SESSION: Final = "no open session"


class Seat(msgspec.Struct):
    """The session that holds a rank.

    Attributes:
        rank: which.
        host: where it runs.
        session: as last reported.
        at: when it was taken up, in monotonic seconds.
    """

    rank: Rank
    host: Host
    session: Session
    at: float


class Wait(msgspec.Struct, frozen=True):
    """Nothing to change; the reason is for people."""

    reason: str


class Open(msgspec.Struct, frozen=True):
    """The rendezvous is complete: the next epoch opens with these."""

    shape: Shape
    members: tuple[Member, ...]


class Abandon(msgspec.Struct, frozen=True):
    """The epoch cannot be released any more: it is given up for all."""

    reason: str


class Join(msgspec.Struct, frozen=True):
    """New sessions join the released epoch: these are all members now."""

    members: tuple[Member, ...]
    joined: tuple[Rank, ...]


Step = Wait | Open | Abandon | Join


def ranks_text(ranks: Collection[int]) -> str:
    """Name ranks for people, the first few of them."""
    order = sorted(ranks)
    named = ", ".join(map(str, order[:MOST_NAMED]))
    more = f" and {len(order) - MOST_NAMED} more" if len(order) > MOST_NAMED else ""
    return f"rank {named}" if len(order) == 1 else f"ranks {named}{more}"


class Membership:
    """The seats of a job.

    Attributes:
        seats: the session that holds each rank.
        refused: sessions that must fail, with the text for their `replicator.failed`.
        superseded: sessions that never win again, with the rank that they had.
    """

    def __init__(self, times: Times) -> None:
        self.seats: dict[Rank, Seat] = {}
        self.refused: dict[SessionId, str] = {}
        self.superseded: dict[SessionId, Rank] = {}
        self._times = times
        self._known: dict[SessionId, Rank] = {}
        """Sessions that Redis names, of which no report came yet: whoever comes instead is later."""
        self._newest = float("-inf")
        self._quarrel: float | None = None
        self._abandoned: float | None = None

    def recall(self, known: Iterable[tuple[Rank, SessionId]], superseded: Iterable[tuple[Rank, SessionId]]) -> None:
        """Take up what an earlier coordinator wrote: who held each rank, and who must not win again."""
        for rank, session in known:
            if rank not in self.seats:
                self._known[session] = rank
        for rank, session in superseded:
            self._supersede(session, rank)

    def take(self, host: Host, session: Session | None, now: float) -> tuple[str, ...]:
        """Take up a report's session; returns what people should know."""
        self._vacate(host, session)
        if session is None or session.id in self.superseded:
            return ()
        spec = session.spec
        if not 0 <= spec.rank < spec.shape.nodes:
            return self._refuse(
                session.id,
                f"rank {spec.rank} is out of range: the job has {spec.shape.nodes} nodes, "
                f"expected 0 to {spec.shape.nodes - 1}",
            )
        if session.id in self.refused and session.state is SessionState.OPEN:
            return ()
        seat = self.seats.get(spec.rank)
        if seat is not None and seat.session.id == session.id:
            if seat.host == host:
                seat.session = session
            return ()
        notes: tuple[str, ...] = ()
        if seat is not None and seat.session.state is not SessionState.CLOSED:
            if session.state is SessionState.CLOSED:
                return ()
            notes = self._replace(seat, host)
        for known in [known for known, rank in self._known.items() if rank == spec.rank and known != session.id]:
            del self._known[known]
            self._supersede(known, spec.rank)
        self._known.pop(session.id, None)
        self.seats[spec.rank] = Seat(spec.rank, host, session, now)
        if session.state is SessionState.OPEN:
            self._newest = now
        return notes

    def step(
        self,
        record: EpochRecord | None,
        live: Collection[Host],
        now: float,
        *,
        saved: bool,
        barred: str = "",
        settled: float = float("inf"),
        failing: bool = False,
        lost_decision: bool = False,
    ) -> Step:
        """Say what becomes of the rendezvous.

        Args:
            record: the last epoch.
            live: hosts that are not lost.
            now: monotonic seconds.
            saved: a save of the last epoch was reported.
            barred: why the last epoch's restore decision cannot be given to a session that joins; empty: it can.
            settled: sessions taken up until then may join; of later ones it is not known yet.
            failing: the last epoch's decision makes its sessions fail: it stands until the last has read it.
            lost_decision: the last epoch was restoring, and its decision is gone: the same sessions open the next.
        """
        fault = self._abandonment(record, live, failing=failing)
        if fault:
            self._abandoned = now
            return Abandon(fault)
        open_seats = self._gatherable(record, live)
        if not open_seats:
            self._quarrel = None
            return Wait(self._running_text(record))
        shapes = {seat.session.spec.shape for seat in open_seats}
        if len(shapes) > 1:
            return self._quarrelling(open_seats, now)
        self._quarrel = None
        shape = shapes.pop()
        missing = [rank for rank in range(shape.nodes) if not any(seat.rank == rank for seat in open_seats)]
        if not missing:
            fresh = lost_decision or not self._all_in(record, open_seats)
            return self._open(shape, open_seats, now) if fresh else Wait("")
        joined = self._joining(record, open_seats, saved=saved, barred=barred, settled=settled)
        if joined is not None:
            return joined
        why = "and saved already" if saved else barred and f"({barred})"
        return Wait(self._missing_text(record, shape, missing, live, why))

    def coming(self, record: EpochRecord | None, live: Collection[Host]) -> tuple[Seat, ...]:
        """Return the sessions that can only join: they fit the released epoch, and not all their fellows come anew."""
        if record is None or not record.released or record.shape is None:
            return ()
        seats = self._gatherable(record, live)
        fitting = tuple(seat for seat in seats if seat.session.spec.shape == record.shape)
        return fitting if len({seat.rank for seat in seats}) < record.shape.nodes else ()

    def next_moment(self) -> float | None:
        """Return when `step` may say something else although nothing was reported."""
        moments = []
        if self._quarrel is not None:
            moments.append(self._quarrel + self._times.shape_quarrel)
        if self._abandoned is not None:
            quiet = self._newest + self._times.abandoned_quiet
            moments.append(min(quiet, self._abandoned + self._times.abandoned_most))
        return min(moments, default=None)

    def opened(self) -> None:
        """The epoch that `Open` asked for stands: abandonments before it are history."""
        self._abandoned = None

    def _vacate(self, host: Host, session: Session | None) -> None:
        """A host has one session: what it had under another rank or id is over."""
        for seat in list(self.seats.values()):
            if seat.host == host and (session is None or seat.session.id != session.id):
                del self.seats[seat.rank]
                if session is not None:  # without one the host may be about to resume it
                    self._supersede(seat.session.id, seat.rank)

    def _replace(self, seat: Seat, host: Host) -> tuple[str, ...]:
        text = f"rank {seat.rank} was taken over by a later session on host {host}"
        self._supersede(seat.session.id, seat.rank)
        return self._refuse(seat.session.id, text)

    def _supersede(self, session: SessionId, rank: Rank) -> None:
        self.superseded[session] = rank
        while len(self.superseded) > MOST_REMEMBERED:
            self.superseded.pop(next(iter(self.superseded)))

    def _refuse(self, session: SessionId, text: str) -> tuple[str, ...]:
        if self.refused.get(session) == text:
            return ()
        self.refused[session] = text
        while len(self.refused) > MOST_REMEMBERED:
            self.refused.pop(next(iter(self.refused)))
        return (text,)

    def _abandonment(self, record: EpochRecord | None, live: Collection[Host], *, failing: bool) -> str:
        """Say why an epoch that is not released cannot be any more."""
        if record is None or record.released or not record.members:
            return ""
        patient = failing and any(self._stands(member, live) for member in record.members)
        for member in record.members:
            seat = self.seats.get(member.rank)
            if seat is None:
                if member.session in self.superseded:
                    return f"the session of rank {member.rank} on {member.host} ended"
                continue  # not heard of yet, after a take-over
            if seat.session.id != member.session:
                return f"rank {member.rank} has a new session on {seat.host}"
            if seat.session.state is SessionState.CLOSED and not patient:
                return f"rank {member.rank} on {seat.host} closed its session"
        return ""

    def _stands(self, member: Member, live: Collection[Host]) -> bool:
        seat = self.seats.get(member.rank)
        return (
            seat is not None
            and seat.session.id == member.session
            and seat.session.state is SessionState.OPEN
            and seat.host in live
        )

    def _gatherable(self, record: EpochRecord | None, live: Collection[Host]) -> list[Seat]:
        """Return the seats with open sessions on live hosts; who was released is as good as running."""
        released = {m.session for m in record.members} if record is not None and record.released else set()
        return [
            seat
            for _, seat in sorted(self.seats.items())
            if seat.session.state is SessionState.OPEN
            and seat.session.id not in released
            and seat.session.id not in self.refused
            and seat.host in live
        ]

    def _all_in(self, record: EpochRecord | None, seats: Collection[Seat]) -> bool:
        members = {member.session for member in record.members} if record is not None else set()
        return all(seat.session.id in members for seat in seats)

    def _open(self, shape: Shape, seats: Collection[Seat], now: float) -> Step:
        if self._abandoned is not None:
            quiet = now - self._newest >= self._times.abandoned_quiet
            if not quiet and now - self._abandoned < self._times.abandoned_most:
                return Wait("an epoch was abandoned; waiting until no new session comes")
        members = tuple(Member(rank=seat.rank, host=seat.host, session=seat.session.id) for seat in seats)
        return Open(shape, members)

    def _joining(
        self, record: EpochRecord | None, seats: Collection[Seat], *, saved: bool, barred: str, settled: float
    ) -> Join | Wait | None:
        """A session of a rank whose fellows run takes part in their epoch, as long as that has no save."""
        if record is None or not record.released or saved or barred:
            return None
        coming = {seat.rank: seat for seat in seats if seat.session.spec.shape == record.shape}
        if not coming:
            return None
        coming = {rank: seat for rank, seat in coming.items() if seat.at <= settled}
        if not coming:
            return Wait("waiting for the backup store, which may hold a restore.version")
        members = tuple(
            Member(rank=m.rank, host=coming[m.rank].host, session=coming[m.rank].session.id) if m.rank in coming else m
            for m in record.members
        )
        return Join(members, tuple(sorted(coming)))

    def _quarrelling(self, seats: Collection[Seat], now: float) -> Wait:
        by_shape: dict[Shape, list[int]] = {}
        for seat in seats:
            by_shape.setdefault(seat.session.spec.shape, []).append(seat.rank)
        sides = [f"{ranks_text(ranks)} of {shape}" for shape, ranks in sorted(by_shape.items())]
        text = f"the nodes disagree on the shape of the job: {'; '.join(sides)}"
        if self._quarrel is None:
            self._quarrel = now
        if now - self._quarrel >= self._times.shape_quarrel:
            self._quarrel = None
            for seat in seats:
                self._refuse(seat.session.id, text)
        return Wait(text)

    def _missing_text(
        self, record: EpochRecord | None, shape: Shape, missing: Collection[int], live: Collection[Host], why: str
    ) -> str:
        running = [
            rank
            for rank in missing
            if (seat := self.seats.get(Rank(rank))) and seat.session.state is SessionState.RUNNING
        ]
        gone = [rank for rank in missing if (seat := self.seats.get(Rank(rank))) and seat.host not in live]
        absent = [rank for rank in missing if rank not in running and rank not in gone]
        parts = []
        if absent:
            parts.append(f"{ranks_text(absent)} did not come")
        if gone:
            names = ", ".join(sorted(self.seats[Rank(rank)].host for rank in gone))
            parts.append(f"{ranks_text(gone)} on {names}: no report any more")
        still = [rank for rank in running if rank not in gone]
        if still:
            number = record.number if record is not None else Epoch(0)
            parts.append(f"{ranks_text(still)} still running in epoch {number}{why and f' {why}'}")
        return f"waiting for {len(missing)} of {shape.nodes} nodes: {'; '.join(parts)}"

    @staticmethod
    def _running_text(record: EpochRecord | None) -> str:
        if record is None or record.released or record.members:
            return ""
        return NO_SESSION
