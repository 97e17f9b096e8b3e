"""What people order of a job's coordinator, and what stands in Redis of it.

A command sends a `Wish` to the coordinator that the lease names, again and again until `…:wishes` answers it: only the
coordinator writes a job's keys, so what people ordered bears its stamp and its fence.
"""

from enum import StrEnum
from typing import Final

import msgspec

from checkpoint_replicator.ids import Epoch
from checkpoint_replicator.save import Save

__all__ = [
    "BY_COMMAND",
    "BY_FILE",
    "Branch",
    "Forced",
    "Forgetting",
    "Forgotten",
    "Hold",
    "WishAnswer",
    "WishKind",
    "WishState",
]

BY_COMMAND: Final = "command"
BY_FILE: Final = "restore.version"
"""Who forced a restore, as a decision says it."""


class WishKind(StrEnum):
    """What can be ordered."""

    RESTORE = "restore"
    WITHDRAW = "withdraw"
    """Take an ordered restore back."""
    HOLD = "hold"
    RESUME = "resume"
    """End the hold."""
    FORGET = "forget"


class WishState(StrEnum):
    """How an order of people stands."""

    TAKEN = "taken"
    """It is in force, and not all of its effect is seen yet; the reason names what is waited for."""
    DONE = "done"
    REFUSED = "refused"


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base: frozen, by keyword; defaults are left out of the JSON."""


class WishAnswer(Record, frozen=True, kw_only=True):
    """`…:wishes`, field `<id>`: what became of an order.

    Attributes:
        kind: a WishKind, or whatever was asked.
        state: see WishState.
        reason: for people: the effect, who is waited for, or why it was refused.
        at: when it came into this state, Unix seconds.
    """

    kind: str
    state: WishState
    reason: str = ""
    at: float = 0.0


class Forced(Record, frozen=True, kw_only=True):
    """`…:forced`: a restore that people ordered, exact or an error; it counts for one release.

    Attributes:
        save: restore exactly this one.
        backup: restore exactly the save in this backup.
        none: begin anew although something was committed.
        at: when it was ordered, Unix seconds.
    """

    save: Save | None = None
    backup: str | None = None
    none: bool = False
    at: float = 0.0

    def __str__(self) -> str:
        if self.none:
            return "a fresh start"
        return f"backup {self.backup}" if self.backup is not None else f"save {self.save}"


class Hold(Record, frozen=True, kw_only=True):
    """`…:hold`: people look; nothing is deleted, pruned or ordered to be backed up.

    Attributes:
        reason: theirs.
        since: Unix seconds.
    """

    reason: str = ""
    since: float = 0.0


class Forgetting(Record, frozen=True, kw_only=True):
    """`…:forgetting`: the hosts are removing all that they have of the job; `wish` is the order's id."""

    wish: str
    since: float = 0.0


class Forgotten(Record, frozen=True, kw_only=True):
    """`…:forgotten`: commits up to this save do not count any more as traces of something that was lost."""

    upto: Save
    since: float = 0.0


class Branch(Record, frozen=True, kw_only=True):
    """`…:branch`: a forced restore began a new line of saves; it stands until the first verified backup of that line.

    Attributes:
        epoch: of the first release of the line: its saves have this epoch or a later one.
        save: what was restored; None: a fresh start.
        backup: the backup that was named, if one was.
        by: who ordered it: BY_COMMAND or BY_FILE.
    """

    epoch: Epoch
    save: Save | None = None
    backup: str | None = None
    by: str = BY_COMMAND

    def __str__(self) -> str:
        """Return where the line begins, for people."""
        return f"{f'save {self.save}' if self.save is not None else 'a fresh start'} in epoch {self.epoch}"

    def outdid(self, save: Save) -> bool:
        """Tell whether this save is one that people went back behind."""
        return save.epoch < self.epoch and (self.save is None or save > self.save)

    def bears(self, save: Save) -> bool:
        """Tell whether this save was made on the new line."""
        return save.epoch >= self.epoch
