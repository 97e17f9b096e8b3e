"""Which saves nodes keep and which they may let go: the keep list; pure."""

import msgspec

from checkpoint_coordinator.commit import Crew, SaveState
from checkpoint_coordinator.desk import Desk
from checkpoint_coordinator.saves import Saves
from checkpoint_coordinator.witness import trace
from checkpoint_replicator.keep import View, keep_list, says_the_same
from checkpoint_replicator.records import Outcome
from checkpoint_replicator.save import Save

__all__ = ["Retention"]


class Retention:
    """The keep list of one job."""

    def __init__(self, desk: Desk, saves: Saves) -> None:
        self._desk = desk
        self._saves = saves

    def freeze(self) -> None:
        """While people look, the list that stands lets nothing go, whoever reads it only now."""
        desk = self._desk
        before = desk.state.keep
        if desk.state.hold is not None and before is not None and not before.hold:
            stamp = desk.next_stamp()
            desk.state.keep = msgspec.structs.replace(before, stamp=stamp, drop=(), hold=True)
            desk.note("keep_list_frozen", upto=str(before.upto or ""))

    def advance(self, crew: Crew) -> None:
        """Write a list where it says something new, and only from a complete view."""
        desk = self._desk
        gaps = [f"rank {member.rank}" for member in crew.members if not self._complete(member.rank)]
        if desk.common_fault:
            gaps.append("more than a third of the hosts fell silent together")
        committed = self._saves.committed()
        held = {line.save for line in desk.stock.lines}
        epoch = desk.state.epoch
        given = {
            save
            for save, record in desk.state.saves.items()
            if record.state is SaveState.ABANDONED and epoch is not None and save.epoch == epoch.number
        }
        flying = self._saves.flying(above=committed)
        view = View(
            gaps=gaps,
            committed=committed,
            in_flight=flying,
            failed=self._saves.short(flying),
            held=held | self._saves.reported(),
            needed=self._saves.needed(),
            abandoned=given | self._leftovers(crew, committed),
            hold=desk.state.hold is not None,
        )
        keep = keep_list(view, desk.stamp)
        before = desk.state.keep
        if keep is None:
            return
        if before is not None and before.stamp.token == desk.stamp.token and says_the_same(keep, before):
            return  # under a new lease it is said anew: nodes delete on the present coordinator's word alone
        stamp = desk.next_stamp()
        desk.state.keep = msgspec.structs.replace(keep, stamp=stamp)
        desk.note("keep_list_written", upto=str(keep.upto or ""), drop=" ".join(map(str, keep.drop)))

    def _leftovers(self, crew: Crew, committed: Save | None) -> set[Save]:
        """Return newer saves of older epochs where room is short: the job went on without them.

        Not while nobody remembers what was restored: then they may be all that there is.
        """
        desk, epoch, record = self._desk, self._desk.state.epoch, self._desk.state.restore
        if record is None or (committed is None and record.outcome is not Outcome.NONE):
            return set()
        voices = [desk.voice(member) for member in crew.members]
        rooms = [voice.report.room for voice in voices if voice is not None and voice.report.room is not None]
        if epoch is None or all(room.free >= room.reserve for room in rooms):
            return set()
        older = {line.save for line in desk.stock.lines if line.save.epoch < epoch.number}
        last = trace(desk) if committed is None else None  # begun anew by order: one committed save outlives the start
        return {save for save in older if save != last and (committed is None or save > committed)}

    def _complete(self, rank: int) -> bool:
        member = next((one for one in self._desk.members if one.rank == rank), None)
        voice = self._desk.voice(member) if member is not None else None
        return voice is not None and voice.report.complete
