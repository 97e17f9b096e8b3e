"""While an epoch runs: commits, protection, backups, the keep list and every host's orders; pure."""

from checkpoint_coordinator.backups import Situation, interval_of
from checkpoint_coordinator.commit import Crew
from checkpoint_coordinator.desk import Desk
from checkpoint_coordinator.ordering import Ordering
from checkpoint_coordinator.rendezvous import Rendezvous
from checkpoint_coordinator.restore import whole
from checkpoint_coordinator.retention import Retention
from checkpoint_coordinator.saves import Saves
from checkpoint_replicator.ids import Address, Host
from checkpoint_replicator.save import Save, Tag
from checkpoint_replicator.shape import Shape
from checkpoint_replicator.wishes import BY_FILE

__all__ = ["Safekeeping"]


class Safekeeping:
    """The saves of one job, their backups, and what is ordered for them."""

    def __init__(self, desk: Desk, rendezvous: Rendezvous) -> None:
        self._desk = desk
        self._saves = Saves(desk, rendezvous)
        self._retention = Retention(desk, self._saves)
        self._ordering = Ordering(desk, self._saves, rendezvous)

    def advance(self, now: float) -> None:
        """Judge every save, go on with backups, write keep list and orders."""
        crew = self._desk.crew()
        if crew is not None:
            self._saves.advance(crew, now)
        self._back_up(crew, now)
        self._retention.freeze()
        if crew is not None:
            self._retention.advance(crew)
        self._ordering.advance(crew)
        self._saves.forget()

    def _back_up(self, crew: Crew | None, now: float) -> None:
        desk = self._desk
        save = self._saves.committed() if crew is not None else None
        tags, shape = self._content(save)
        situation = Situation(
            now=now,
            unix=desk.wall(now) if desk.unix is not None else None,
            stamp=desk.stamp,
            uploaders=desk.uploaders(now),
            results=desk.results(),
            committed=save if tags else None,
            shape=shape,
            tags=tags,
            holders={tag.address: self._holders(tag.address) for tag in (*tags, *desk.archive.tags)},
            interval=interval_of(tuple(desk.specs().values())),
            requested={save for voice in desk.hearing.voices.values() for save in voice.report.backup_requested},
            hold=desk.state.hold is not None,
        )
        desk.archive.advance(situation)
        self._grow(situation)
        for note in desk.archive.notes:
            desk.note(note["event"], **{key: text for key, text in note.items() if key != "event"})
        desk.archive.notes.clear()
        desk.state.backups = dict(desk.archive.records)
        desk.state.last_backup = desk.archive.last

    def _grow(self, situation: Situation) -> None:
        """With the first verified backup of a new line, what people went back behind counts no more."""
        desk = self._desk
        archive, branch = desk.archive, desk.state.branch
        if branch is None or archive.last is None or not branch.bears(archive.last.save):
            return
        names = archive.supersede(branch)
        if names:
            desk.note("backups_superseded", backups=" ".join(names[:8]), backup=archive.last.name)
        if branch.by == BY_FILE and not archive.remove_order(branch.backup or "", situation):
            return
        desk.state.branch = None
        desk.note("branch_established", epoch=str(branch.epoch), save=str(archive.last.save))

    def _content(self, save: Save | None) -> tuple[tuple[Tag, ...], Shape | None]:
        """Return the shards of a save that stand whole on live hosts, and its shape."""
        if save is None:
            return (), None
        for found in self._desk.stock.of(save):
            if not found.missing() and found.line.shape.framework:
                return tuple(whole(found).values()), found.line.shape
        return (), None

    def _holders(self, address: Address) -> frozenset[Host]:
        return frozenset(copy.host for copy in self._desk.stock.holders.get(address, ()))
