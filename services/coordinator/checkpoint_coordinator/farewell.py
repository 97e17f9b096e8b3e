"""Forgetting a job: the hosts remove what they have, then its keys go, then its name; pure.

A host is done when it reports no session, no shard, no commit and no stamp. The fence in Redis stays: an old order to
forget must never be newer than a later job of the same name.
"""

from typing import Final

from checkpoint_coordinator.desk import Desk
from checkpoint_coordinator.wishes import Wishes
from checkpoint_replicator.ids import Host
from checkpoint_replicator.records import Orders
from checkpoint_replicator.session import SessionState
from checkpoint_replicator.wishes import WishKind, WishState

__all__ = ["Farewell"]

MOST_NAMED: Final = 4


class Farewell:
    """The end of one job, while `desk.state.forgetting` stands.

    Attributes:
        complete: no live host has anything of the job any more.
    """

    def __init__(self, desk: Desk, wishes: Wishes) -> None:
        self._desk = desk
        self._wishes = wishes
        self.complete = False

    def advance(self, now: float) -> None:
        """Order the hosts that have something, and see whether all are done."""
        desk, forgetting = self._desk, self._desk.state.forgetting
        self.complete = False
        if forgetting is None:
            return
        reason = self._comes_back()
        if reason:
            desk.state.forgetting = None
            desk.note("forget_refused", reason=reason)
            self._wishes.answer(forgetting.wish, WishKind.FORGET, WishState.REFUSED, reason, now)
            return
        self._order()
        late = self._late()
        if late:
            more = f" and {len(late) - MOST_NAMED} more" if len(late) > MOST_NAMED else ""
            waited = f"waiting for {', '.join(late[:MOST_NAMED])}{more}"
            self._wishes.answer(forgetting.wish, WishKind.FORGET, WishState.TAKEN, waited, now)
            return
        self.complete = True

    def _late(self) -> list[Host]:
        """Name live hosts that have something, and registered ones that were not heard yet and are not lost."""
        desk = self._desk
        return sorted(desk.unheard() | {host for host in desk.live if desk.holds_anything(host)})

    def _comes_back(self) -> str:
        """Say whose trainer wants the job again; empty when nobody's."""
        desk = self._desk
        for seat in desk.membership.seats.values():
            if seat.host in desk.live and seat.session.state is SessionState.OPEN:
                return f"rank {seat.rank} on {seat.host} has a new session: the job goes on"
        return ""

    def _order(self) -> None:
        """Say it under the present lease: hosts delete on the present coordinator's word alone."""
        desk = self._desk
        token = desk.stamp.token
        said = {h: o for h, o in desk.state.orders.items() if h in desk.live and o.forget and o.stamp.token == token}
        if said.keys() == desk.live and said.keys() == desk.state.orders.keys():
            return
        stamp = desk.next_stamp()
        desk.state.orders = {host: said.get(host, Orders(stamp=stamp, forget=True)) for host in sorted(desk.live)}
