"""What is known of backups, what is looked at to make them, and when one is due; pure."""

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from checkpoint_coordinator.chores import Results
from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Address, Host
from checkpoint_replicator.messages import BackupEntry
from checkpoint_replicator.save import Save, Tag
from checkpoint_replicator.session import SessionSpec
from checkpoint_replicator.shape import Shape

__all__ = [
    "CLOSED",
    "BackupRecord",
    "Interval",
    "LastBackup",
    "Listing",
    "Phase",
    "Situation",
    "due",
    "interval_of",
]

DEFAULT_MINUTES: Final = 30.0
"""The contract's default where a yaml names no interval."""


class Phase(StrEnum):
    """How far a backup is."""

    LISTING = "listing"
    RESERVING = "reserving"
    UPLOADING = "uploading"
    SEALING = "sealing"
    CLOSING = "closing"
    COMPLETE = "complete"
    ABANDONED = "abandoned"
    SUPERSEDED = "superseded"
    """People went back behind it, and a later backup of the new line is verified: only an order restores it."""


CLOSED: Final = frozenset({Phase.COMPLETE, Phase.ABANDONED, Phase.SUPERSEDED})
"""Nothing more is done for a backup in these."""


class BackupRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`…:backup:<name>`: one backup, for people and for a coordinator that takes over.

    Attributes:
        name: its directory.
        save: what it holds.
        shape: the save's.
        state: a Phase.
        stamp: under which its name was reserved.
        bytes: of all its objects.
        verified_at: when its manifest stood, in Unix seconds; 0 before.
        reason: why it failed or waits.
    """

    name: str
    save: Save
    shape: Shape
    state: Phase
    stamp: Stamp
    bytes: int = 0
    verified_at: float = 0.0
    reason: str = ""


class LastBackup(msgspec.Struct, frozen=True, kw_only=True):
    """`…:lastbackup`: the last verified one."""

    name: str
    save: Save
    verified_at: float


class Listing(msgspec.Struct, frozen=True):
    """One successful listing of `<root>/<job>/`.

    Attributes:
        asked: when it was ordered, in monotonic seconds.
        entries: the backups.
        forced: what stands in `restore.version`, empty without one; None: its uploader did not look.
    """

    asked: float
    entries: tuple[BackupEntry, ...]
    forced: str | None = None


class Interval(msgspec.Struct, frozen=True):
    """How often the trainers want a backup; None: not by this measure."""

    minutes: float | None
    steps: int | None


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """What the archive looks at.

    Attributes:
        now: monotonic seconds.
        unix: Redis TIME, in seconds; None while it is not known.
        stamp: of decisions made now.
        uploaders: hosts with a backup root and a live uploader, best first.
        results: answers to orders.
        committed: the newest committed save of the running epoch; None without.
        shape: its shape.
        tags: its shards.
        holders: address to the live hosts that hold it.
        interval: what the yamls ask for.
        requested: saves whose directories held `_BACKUP_REQUESTED`.
        hold: people look: nothing is ordered.
    """

    now: float
    unix: float | None
    stamp: Stamp
    uploaders: tuple[Host, ...] = ()
    results: Results = {}
    committed: Save | None = None
    shape: Shape | None = None
    tags: tuple[Tag, ...] = ()
    holders: Mapping[Address, Collection[Host]] = {}
    interval: Interval = Interval(DEFAULT_MINUTES, None)
    requested: Collection[Save] = ()
    hold: bool = False


def interval_of(specs: Collection[SessionSpec]) -> Interval:
    """Return the shortest intervals that any yaml asks for; 30 minutes where none asks for any."""
    minutes = [s.backup_interval_minutes for s in specs if s.backup_interval_minutes is not None]
    steps = [s.backup_interval_steps for s in specs if s.backup_interval_steps is not None]
    if not minutes and not steps:
        return Interval(DEFAULT_MINUTES, None)
    return Interval(min(minutes, default=None), min(steps, default=None))


def due(committed: Save, last: LastBackup | None, unix: float, interval: Interval, requested: Collection[Save]) -> str:
    """Say why a backup of this save is due; empty when it is not."""
    if last is not None and last.save >= committed:
        return ""
    if last is None:
        return "no verified backup yet"
    asked = [save for save in requested if last.save < save <= committed]
    if asked:
        return f"requested with save {max(asked)}"
    age = unix - last.verified_at
    if interval.minutes is not None and (age < 0 or age >= interval.minutes * 60):
        return f"the last verified one is {age / 60:.0f} minutes old"
    if interval.steps is not None:
        behind = committed.step - last.save.step
        if behind >= interval.steps or behind < 0:
            return f"the last verified one is {behind} steps behind"
    return ""
