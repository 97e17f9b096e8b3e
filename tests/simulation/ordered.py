"""What people ordered of one job, and what may be said of it: nobody else's loss, and exactly theirs."""

from typing import TYPE_CHECKING, Final

from checkpoint_replicator.messages import Wish
from checkpoint_replicator.records import KeepList, Outcome, RestoreRecord
from checkpoint_replicator.save import Save
from checkpoint_replicator.wishes import BY_COMMAND, BY_FILE, WishAnswer, WishKind, WishState

if TYPE_CHECKING:
    from checkpoint_replicator.ids import Host
    from simulation.laws import Laws

__all__ = ["Ordered"]

LATE: Final = 16.0
"""Seconds after which an order that was not answered is not taken up any more."""
RESTORES: Final = frozenset({WishKind.RESTORE, WishKind.WITHDRAW, WishKind.FORGET})
HOLDS: Final = frozenset({WishKind.HOLD, WishKind.RESUME})


class Ordered:
    """The truth about orders.

    Attributes:
        let_go: saves up to this one may go: people had the job forgotten.
        may_hold: a hold was ordered, and nobody heard that it ended.
    """

    def __init__(self, laws: "Laws") -> None:
        self._laws = laws
        self.let_go: Save | None = None
        self.may_hold = False
        self._holds: frozenset[tuple[Host, int]] = frozenset()
        """Machines that obeyed the hold when it was said to be done."""
        self._holding = False
        self._losses = 0
        """How often Redis had lost something when the restore that stands was answered."""
        self._restores: list[Wish] = []
        self._files: list[str] = []
        self._standing: Wish | None = None
        """A restore that was taken up, and not done, withdrawn or replaced since."""
        self._released = 0
        self._begun: dict[str, int] = {}
        self._said: dict[str, tuple[str, float]] = {}
        """What was said, in order: its kind and when."""
        self._heard: set[str] = set()

    @property
    def _lost(self) -> int:
        hits = self._laws.world.hits
        return hits["redis flushed"] + hits["redis went back"]

    # ---- what people say and hear

    def said(self, wish: Wish) -> None:
        """A command is about to say this."""
        self._said[wish.id] = (wish.kind, self._laws.world.now)
        match wish.kind:
            case WishKind.RESTORE:
                self._restores.append(wish)
                self._begun[wish.id] = self._released
                self._standing = None
            case WishKind.WITHDRAW:
                self._standing = None
            case WishKind.HOLD:
                self.may_hold = True
            case WishKind.RESUME:
                self._holding = False
            case _:
                self._standing = None
                self.let_all_go()

    def heard(self, wish: Wish, answer: WishAnswer) -> None:
        """A command read what became of it."""
        self._heard.add(wish.id)
        done = answer.state is WishState.DONE
        match wish.kind:
            case WishKind.RESTORE if done and self._begun[wish.id] == self._released and self._last(wish, RESTORES):
                self._standing, self._losses = wish, self._lost
            case WishKind.HOLD if done and self._last(wish, HOLDS):
                self._holding = self.may_hold = True
                self._holds = frozenset(self._obeying())
            case WishKind.RESUME:
                self.may_hold = False
            case _:
                pass

    def _last(self, wish: Wish, kinds: frozenset[WishKind]) -> bool:
        """Whether nothing that was said since, or may still be taken up, takes it back."""
        said = list(self._said)
        place, now = said.index(wish.id), self._laws.world.now
        for number, (ident, (kind, at)) in enumerate(self._said.items()):
            pending = ident not in self._heard and now - at < LATE
            if ident != wish.id and kind in kinds and (number > place or pending):
                return False
        return True

    def _obeying(self) -> "list[tuple[Host, int]]":
        world, job = self._laws.world, self._laws.job
        found = []
        for node in world.hosts.values():
            authority = node.watching.machine.authorities.get(job) if node.watching.running else None
            keep = authority.keep if authority is not None else None
            if keep is not None and keep.hold:
                found.append((node.host, node.replaced))
        return found

    def wrote(self, name: str) -> None:
        """`restore.version` says this now; empty: it is gone."""
        self._files.append(name)

    def let_all_go(self) -> None:
        """All that was saved until now may go."""
        self.let_go = max((save for save, _ in self._laws.truth), default=self.let_go)

    def gone(self, save: Save | None) -> bool:
        """Tell whether people let this save go."""
        return save is not None and self.let_go is not None and save <= self.let_go

    # ---- what must be

    def decided(self, record: RestoreRecord) -> str:
        """Say what is wrong with a decision; empty where nothing is."""
        world = self._laws.world
        if self._standing is not None and self._losses == self._lost and record.forced != BY_COMMAND:
            return f"{record.outcome} {record.save} was decided although people ordered {_text(self._standing)}"
        if record.forced == BY_COMMAND:
            wishes = self._restores
            if record.outcome is Outcome.NONE and not any(wish.none for wish in wishes):
                return "a fresh start was decided by an order that nobody gave"
            if record.outcome is Outcome.RESTORE:
                by_save = any(wish.save is not None and wish.save == record.save for wish in wishes)
                by_name = any(wish.backup is not None and self._holds_save(wish.backup, record) for wish in wishes)
                if not by_save and not by_name:
                    return f"{record.save} was decided by an order that nobody gave"
                world.hits["ordered save decided" if by_save else "ordered backup decided"] += 1
            if record.outcome is Outcome.NONE:
                world.hits["ordered fresh start decided"] += 1
        if record.forced == BY_FILE and record.outcome is Outcome.RESTORE:
            if not any(name and self._holds_save(name, record) for name in self._files):
                return f"{record.save} was decided by a restore.version that nobody wrote"
            world.hits["restore.version obeyed"] += 1
        return ""

    def _holds_save(self, name: str, record: RestoreRecord) -> bool:
        return self._laws.save_of(f"{self._laws.job}/{name}") == record.save

    def released(self, record: RestoreRecord | None) -> None:
        """An epoch was released: an order counts for one."""
        if record is not None and record.forced == BY_COMMAND:
            self._released += 1
            self._standing = None

    def kept(self, keep: KeepList) -> str:
        """Say what is wrong with a new keep list; empty where nothing is."""
        if self._holding and not keep.hold:
            return f"a keep list {keep.stamp} that lets saves go, although the job is held"
        return ""

    def dropping(self, machine: "tuple[Host, int]") -> str:
        """Say what is wrong with dropping saves on a machine; empty where nothing is."""
        if self._holding and machine in self._holds:
            return f"{machine[0]} drops although the job is held"
        return ""


def _text(wish: Wish) -> str:
    if wish.none:
        return "a fresh start"
    return f"backup {wish.backup}" if wish.backup is not None else f"save {wish.save}"
