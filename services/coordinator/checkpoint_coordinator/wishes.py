"""Orders of people: each is taken up once, and what became of it stands in `…:wishes`; pure.

An order is refused where it is known that it cannot be done, taken where its effect is still to be seen on the hosts,
and done. What people ordered is a decision like any other: it bears this coordinator's stamp.
"""

from typing import Final

from checkpoint_coordinator.desk import Desk
from checkpoint_coordinator.restore import ordered_fault
from checkpoint_coordinator.witness import silent, trace
from checkpoint_replicator.backup import is_backup_name
from checkpoint_replicator.fence import ZERO
from checkpoint_replicator.messages import Wish
from checkpoint_replicator.session import SessionState
from checkpoint_replicator.wishes import (
    Forced,
    Forgetting,
    Forgotten,
    Hold,
    WishAnswer,
    WishKind,
    WishState,
)

__all__ = ["Wishes"]

MOST_ANSWERS: Final = 16
"""So many answers stay; the oldest goes."""
MOST_WAITING: Final = 16
MOST_ID: Final = 64
MOST_REASON: Final = 200
LATEST: Final = 1.0
"""Seconds before the end of a wish at which it is decided at the latest."""
MOST_NAMED: Final = 4
FOUND: Final = "found on the hosts after Redis lost its data"


class Wishes:
    """The orders of one job."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._waiting: dict[str, tuple[Wish, float]] = {}
        self._given: tuple[Forced | Forgetting, ...] = ()
        """What this process took up itself; what Redis or another process told of is never one of these objects."""
        self._found: Hold | None = None
        """A hold that hosts told of."""

    def take(self, wish: Wish, now: float) -> None:
        """Hear an order, which is repeated until it is answered."""
        if not 0 < len(wish.id) <= MOST_ID or wish.id in self._desk.state.wishes or wish.id in self._waiting:
            return
        if len(self._waiting) < MOST_WAITING:
            self._waiting[wish.id] = (wish, now)

    def advance(self, now: float) -> None:
        """Take up what waits, and look how far the hosts are with what was taken."""
        desk = self._desk
        if desk.unix is None:
            return  # whether an order is too late is not known yet
        for wish, since in list(self._waiting.values()):
            if desk.wall(now) > wish.until:
                del self._waiting[wish.id]
                desk.note("wish_too_late", wish=wish.id, kind=wish.kind[:MOST_ID])
            elif self._take_up(wish, since, now):
                del self._waiting[wish.id]
        self._confirm_hold(now)

    def find_hold(self, now: float) -> None:
        """Take up a hold that Redis lost: nodes remember whether the last keep list that they obeyed was one.

        The latest list that any of them obeyed tells, as long as none of ours is later.
        """
        desk = self._desk
        known = desk.state.keep.stamp if desk.state.keep is not None else ZERO
        if known.token == desk.stamp.token:
            return  # a list of this lease is later than any that a host tells of
        reports = [voice.report for voice in desk.hearing.voices.values() if voice.fresh]
        latest = max((report.keep for report in reports), default=ZERO)
        if latest <= known:
            return
        held = any(report.hold for report in reports if report.keep == latest)
        if held and desk.state.hold is None:
            self._found = desk.state.hold = Hold(reason=FOUND, since=desk.moment(now))
            desk.note("hold_found", reason=f"hosts obey {latest}, which lets nothing go, and Redis lost it")
        elif not held and desk.state.hold is not None and desk.state.hold is self._found:
            self._found = desk.state.hold = None
            desk.note("hold_ended", reason=f"it had ended: hosts obey {latest} since")

    def answer(self, ident: str, kind: str, state: WishState, reason: str, now: float) -> None:
        """Say what became of an order."""
        wishes = self._desk.state.wishes
        before = wishes.pop(ident, None)
        same = before is not None and (before.state, before.reason) == (state, reason)
        at = before.at if same and before is not None else self._desk.moment(now)
        wishes[ident] = WishAnswer(kind=kind, state=state, reason=reason, at=at)
        while len(wishes) > MOST_ANSWERS:
            del wishes[min(wishes, key=lambda one: wishes[one].at)]
        if not same:
            self._desk.next_stamp()

    def doubt(self) -> bool:
        """Drop what may have been done or withdrawn meanwhile: Redis came back with older data.

        What people ordered of this very process stands: it knows what became of that. Returns whether any was dropped.
        """
        state = self._desk.state
        doubted = [order for order in (state.forced, state.forgetting) if order is not None and not self._gave(order)]
        if state.forced in doubted:
            state.forced = None
        if state.forgetting in doubted:
            state.forgetting = None
        return bool(doubted)

    def _gave(self, order: Forced | Forgetting) -> bool:
        return any(order is given for given in self._given)

    # ---- taking up

    def _take_up(self, wish: Wish, since: float, now: float) -> bool:
        """Return whether it is answered now."""
        match wish.kind:
            case WishKind.RESTORE:
                return self._restore(wish, since, now)
            case WishKind.WITHDRAW:
                self._withdraw(wish, now)
            case WishKind.HOLD:
                self._hold(wish, now)
            case WishKind.RESUME:
                self._resume(wish, now)
            case WishKind.FORGET:
                return self._forget(wish, now)
            case other:
                self._refuse(wish, f"{other[:MOST_ID]!r} cannot be ordered, expected {', '.join(WishKind)}", now)
        return True

    def _refuse(self, wish: Wish, reason: str, now: float) -> None:
        self._desk.note("wish_refused", wish=wish.id, kind=wish.kind[:MOST_ID], reason=reason)
        self.answer(wish.id, wish.kind[:MOST_ID], WishState.REFUSED, reason, now)

    def _restore(self, wish: Wish, since: float, now: float) -> bool:
        """Exact or an error: what nobody holds is refused here already, as far as everybody can be asked."""
        desk = self._desk
        named = sum((wish.save is not None, wish.backup is not None, wish.none))
        if named != 1 or (wish.backup is not None and not is_backup_name(wish.backup)):
            self._refuse(wish, "expected a save, or the name of a backup, or none", now)
            return True
        forced = Forced(save=wish.save, backup=wish.backup, none=wish.none, at=desk.moment(now))
        fault = ""
        unheard: tuple[str, ...] = ()
        if not forced.none:
            if desk.roots() and desk.archive.listed_since(since) is None:
                desk.archive.want_listing(since)
            unheard = silent(desk, since, now)
            # A wish with a short deadline is taken on trust rather than not at all.
            if unheard and now - since < desk.times.wish_unheard and desk.wall(now) < wish.until - LATEST:
                return False
            fault = ordered_fault(forced, desk.full_stock())
        if fault and not unheard:
            self._refuse(wish, f"{forced}: {fault}", now)
            return True
        desk.state.forced = forced
        self._given = (*self._given[-1:], forced)
        epoch = desk.state.epoch
        deciding = epoch is not None and epoch.members and not epoch.released
        when = (
            f"now, in epoch {epoch.number}" if deciding and epoch is not None else "at the next start of all trainers"
        )
        trust = f"; taken on trust, without an answer of {', '.join(unheard[:MOST_NAMED])}" if fault else ""
        done = "made" if forced.none else "restored"
        desk.note("restore_ordered", wish=wish.id, reason=f"{forced}, {when}{trust}")
        self.answer(wish.id, wish.kind, WishState.DONE, f"{forced} is {done} {when}{trust}", now)
        return True

    def _withdraw(self, wish: Wish, now: float) -> None:
        desk = self._desk
        if desk.state.forced is None:
            self._refuse(wish, "no restore is ordered", now)
            return
        reason = f"{desk.state.forced} is not restored any more"
        desk.state.forced = None
        desk.note("restore_withdrawn", wish=wish.id, reason=reason)
        self.answer(wish.id, wish.kind, WishState.DONE, reason, now)

    def _hold(self, wish: Wish, now: float) -> None:
        desk = self._desk
        if desk.state.forgetting is not None:
            self._refuse(wish, "the job is being forgotten, the hosts remove what they have", now)
            return
        if desk.state.hold is None:
            desk.state.hold = Hold(reason=wish.reason[:MOST_REASON], since=desk.moment(now))
            desk.note("held", wish=wish.id, reason=desk.state.hold.reason)
        self.answer(wish.id, wish.kind, WishState.TAKEN, "waiting for the hosts", now)

    def _resume(self, wish: Wish, now: float) -> None:
        desk = self._desk
        if desk.state.hold is None:
            self._refuse(wish, "nothing is held", now)
            return
        desk.state.hold = None
        desk.note("resumed", wish=wish.id)
        self.answer(wish.id, wish.kind, WishState.DONE, "deleting, pruning and backups go on", now)

    def _confirm_hold(self, now: float) -> None:
        """A hold is done when no host obeys a list any more that lets something go."""
        desk = self._desk
        pending = [
            ident
            for ident, answer in desk.state.wishes.items()
            if answer.kind == WishKind.HOLD and answer.state is WishState.TAKEN
        ]
        if not pending or desk.state.hold is None:
            return
        keep = desk.state.keep
        if keep is not None and not keep.hold:
            return  # it is written in this round
        stamp = keep.stamp if keep is not None else None
        reports = {host: desk.hearing.voices[host].report for host in desk.live}
        behind = {host for host, report in reports.items() if stamp is not None and report.obeyed < stamp}
        late = sorted(desk.unheard() | behind)
        for ident in pending:
            if late:
                reason = f"waiting for {', '.join(late[:MOST_NAMED])}"
                self.answer(ident, WishKind.HOLD, WishState.TAKEN, reason, now)
            else:
                reason = f"nothing is deleted, pruned or backed up ({len(desk.live)} hosts obey)"
                self.answer(ident, WishKind.HOLD, WishState.DONE, reason, now)

    # ---- forgetting

    def _forget(self, wish: Wish, now: float) -> bool:
        """Nothing is taken for the absence of data, or of trainers, before every host was heard that may have some."""
        desk = self._desk
        unheard = sorted(desk.unheard())
        if unheard and desk.wall(now) < wish.until - LATEST:
            return False
        reason = self._busy(wish)
        if not reason and unheard:
            reason = f"{', '.join(unheard[:MOST_NAMED])} did not report yet; order it again"
        if reason:
            self._refuse(wish, reason, now)
            return True
        newest = trace(desk)
        holders = sorted(h for h in desk.live if desk.holds_anything(h))
        if wish.ramdisks or not holders:
            desk.state.forgetting = Forgetting(wish=wish.id, since=desk.moment(now))
            self._given = (*self._given[-1:], desk.state.forgetting)
            desk.note("forgetting", wish=wish.id, hosts=" ".join(holders))
            self.answer(wish.id, wish.kind, WishState.TAKEN, "waiting for the hosts", now)
            return True
        if newest is not None:
            desk.state.forgotten = Forgotten(upto=newest, since=desk.moment(now))
        desk.state.saves.clear()
        desk.state.keep = desk.state.forced = desk.state.branch = None
        desk.archive.forget()
        desk.note("job_forgotten", wish=wish.id, upto=str(newest or ""))
        kept = f"{', '.join(holders[:MOST_NAMED])}{' and more' if len(holders) > MOST_NAMED else ''}"
        reason = f"what was committed does not count as lost any more; {kept} still hold its session or data"
        self.answer(wish.id, wish.kind, WishState.DONE, reason, now)
        return True

    def _busy(self, wish: Wish) -> str:
        """Say why the job must not be forgotten; empty when it may be."""
        desk = self._desk
        if desk.state.hold is not None:
            return "the job is held, so nothing is deleted; end the hold first: hold --release"
        seats = [seat for seat in desk.membership.seats.values() if seat.host in desk.live]
        waiting = [seat for seat in seats if seat.session.state is SessionState.OPEN]
        if waiting:
            return f"rank {waiting[0].rank} on {waiting[0].host} waits for its restore; end the trainers first"
        running = [seat for seat in seats if seat.session.state is SessionState.RUNNING]
        if running and not wish.force and not desk.idle:
            ranks = f"rank {running[0].rank} on {running[0].host}"
            more = f" and {len(running) - 1} more" if len(running) > 1 else ""
            return f"{ranks}{more} may still train; end the trainers, then order it with --force"
        return ""
