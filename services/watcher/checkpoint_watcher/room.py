"""Room on the ramdisk, for the trainer's next save first: what is kept free, what fits, and what must go for it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import ceil
from typing import Final

from checkpoint_replicator.generations import RESERVE, Generations, generations
from checkpoint_replicator.ids import Address, Job
from checkpoint_replicator.messages import Fault, Room, Saving
from checkpoint_replicator.save import Save, Tag
from checkpoint_replicator.session import SessionSpec, SessionState
from checkpoint_watcher.effects import DropForeign
from checkpoint_watcher.node import Node

__all__ = ["RoomKeeper"]

SMALL_FILES: Final = 8
"""Inodes that names, trees and sidecars of a shard take beside it."""
LEAST_ENTRIES: Final = 16
"""Entries that a shard is taken to have while none was counted."""
FOREIGN: Final = "foreign"
UNDERSIZED: Final = "undersized"


@dataclass(slots=True)
class RoomKeeper:
    """Knows the sizes of this node's saves.

    Attributes:
        coming: finished saves of a job that are not named yet.
        entries: files and directories of shards that were counted.
        lacking: bytes that the transfer lacked for a shard of the session's job.
    """

    node: Node
    coming: Callable[[Job | None], tuple[Saving, ...]]
    entries: dict[Address, int] = field(default_factory=dict)
    lacking: int = 0
    _dropping: bool = False
    _again: float = 0.0

    # ---- the trainer's next save

    @property
    def largest(self) -> int:
        """Bytes of the largest save of this node that is known: saved here, on its way, or restored here."""
        sizes: dict[Save, int] = {}
        for tag in self._own():
            sizes[tag.save] = sizes.get(tag.save, 0) + tag.size
        for saving in self.coming(self.node.job):
            sizes[saving.save] = sizes.get(saving.save, 0) + saving.size
        return max(sizes.values(), default=0)

    @property
    def reserve(self) -> int:
        """Bytes to keep free for the trainer's next save."""
        return int(RESERVE * self.largest)

    @property
    def reserve_inodes(self) -> int:
        """Inodes to keep free for it."""
        if not self.largest:
            return 0
        return ceil(RESERVE * self._inodes)

    @property
    def saving(self) -> bool:
        """Whether a trainer saves here."""
        return self.node.session is not None and self.node.session.state is SessionState.RUNNING

    # ---- what fits

    @property
    def fit(self) -> Generations | None:
        """How many generations fit, by bytes; None while no save's size is known."""
        spec = self.node.session.spec if self.node.session is not None else None
        room, own = self._room, self.largest
        if spec is None or room is None or not own:
            return None
        return generations(room.size, own, copies_of(spec))

    def judge(self) -> None:
        """Say that the ramdisk is too small for two generations, as soon as that is known."""
        spec = self.node.session.spec if self.node.session is not None else None
        room, fit = self._room, self.fit
        name = (UNDERSIZED, None, None)
        if spec is None or room is None or fit is None:
            return
        copies = copies_of(spec)
        inodes = generations(room.inodes, self._inodes, copies)
        if fit.needed > room.size:
            what, have, need, comfortable = "bytes", room.size, fit.needed, fit.comfortable
        elif room.inodes and inodes.needed > room.inodes:
            what, have, need, comfortable = "inodes", room.inodes, inodes.needed, inodes.comfortable
        else:
            self.node.faults.pop(name, None)
            return
        reason = (
            f"the ramdisk has {have} {what}; two saves and {copies} copies for others of each need {need}, "
            f"three, which is comfortable, {comfortable}"
        )
        if self.node.blame(Fault(kind=UNDERSIZED, reason=reason)):
            self.node.announce("ramdisk_undersized", needed=need, comfortable=comfortable, size=have, reason=reason)
            self.node.complain(reason)

    # ---- what goes for it

    @property
    def yielding(self) -> int:
        """Bytes that other jobs' data would give."""
        return sum(_sizes(self._foreign()).values())

    def make(self, now: float) -> None:
        """Drop other jobs' oldest saves while this job lacks room."""
        lack = self._lack()
        if lack <= 0 or self._dropping or now < self._again:
            return
        tags: list[Tag] = []
        addresses: set[Address] = set()
        freed = 0
        for tag in sorted(self._foreign(), key=lambda tag: (tag.save, tag.job, tag.key)):
            if freed >= lack:
                break
            tags.append(tag)
            if tag.address not in addresses:
                addresses.add(tag.address)
                freed += tag.size
        if not tags:
            return
        self._dropping = True
        for job, save in sorted({(tag.job, tag.save) for tag in tags}):
            size = sum(tag.size for tag in tags if (tag.job, tag.save) == (job, save))
            reason = f"step {save.step} of job {job} ({size} bytes) goes from here: job {self.node.job} lacks {lack}"
            self.node.announce("foreign_save_dropped", job=job, step=save.step, size=size, reason=reason)
            self.node.blame(Fault(kind=FOREIGN, reason=reason))
            self.node.complain(reason)
        self.node.emit(DropForeign(tuple(tags)))

    def made(self, now: float) -> None:
        """What was to go is gone, or is being read; the room shows with a later scan."""
        self._dropping = False
        self._again = now + 2 * self.node.times.scan

    # ---- inside

    @property
    def _room(self) -> Room | None:
        return self.node.snapshot.room if self.node.snapshot is not None else None

    def _lack(self) -> int:
        room = self._room
        if room is None or self.node.job is None:
            return 0
        return max(self.reserve - room.free if self.saving else 0, self.lacking)

    def _own(self) -> Iterable[Tag]:
        session = self.node.session
        rank = session.spec.rank if session is not None and session.spec is not None else None
        for held in self.node.held.values():
            if held.tag.job == self.node.job and (held.own or held.tag.key.rank == rank):
                yield held.tag

    @property
    def _inodes(self) -> int:
        """Inodes of the save that has most."""
        counts: dict[Save, int] = {}
        for tag in self._own():
            entries = self.entries.get(tag.address, LEAST_ENTRIES)
            counts[tag.save] = counts.get(tag.save, 0) + entries + SMALL_FILES
        return max(counts.values(), default=LEAST_ENTRIES + SMALL_FILES)

    def _foreign(self) -> list[Tag]:
        """Shards that only other jobs name, none of which people look at, as far as Redis was read."""
        if self.node.job is None:
            return []
        give = self.node.read - self.node.frozen - {self.node.job}
        stay: set[Address] = set()
        others: list[Tag] = []
        for tag in self.node.held:
            if tag.job in give:
                others.append(tag)
            else:
                stay.add(tag.address)
        return [tag for tag in others if tag.address not in stay]


def copies_of(spec: SessionSpec) -> int:
    """How many nodes have their copies here: as many as hold this node's."""
    asked = len(spec.peer_ranks) if spec.peer_ranks is not None else spec.peers_per_node or 0
    return max(0, min(asked, spec.shape.nodes - 1))


def _sizes(tags: Iterable[Tag]) -> dict[Address, int]:
    return {tag.address: tag.size for tag in tags}
