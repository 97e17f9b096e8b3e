"""Judges the laws by what lies on the disks, in the backup store and in Redis. It believes no service.

What services say (committed, replicated, backed up) is a claim; the bytes that trainers saved are the truth. Each
breach is a sentence that begins with its law.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec

from crash.content import Saved
from crash.evidence import Backup, Disk, Index, Line

__all__ = ["Auditor", "Evidence"]

RANKS = (0, 1)


class Evidence(msgspec.Struct):
    """All there is at one moment, while every service stands still.

    Attributes:
        undone: what people went back behind: saves above the first line, up to the second.
        forgotten: people ordered that what was committed up to this save does not count.
    """

    disks: Sequence[Disk]
    backups: Sequence[Backup]
    index: Index
    undone: tuple[Line, Line] | None = None
    forgotten: Line | None = None

    def counts(self, save: Line) -> bool:
        """Tell whether people did not go back behind a save."""
        return self.undone is None or not self.undone[0] < save <= self.undone[1]

    def whole(self, save: Line) -> bool:
        """Tell whether every shard of a save is on some disk, or all of it in one backup."""
        on_disks = all(any(disk.holds(save, rank) for disk in self.disks) for rank in RANKS)
        return on_disks or any(is_whole(backup) and backup.order == save for backup in self.backups)

    @property
    def newest(self) -> Line | None:
        """The newest whole save: what a restart must bring back."""
        saves = {one.save for disk in self.disks for one in disk.named.values()}
        saves |= {backup.order for backup in self.backups if backup.order is not None}
        return max((save for save in saves if self.counts(save) and self.whole(save)), default=None)

    def bytes_of(self, save: Line, rank: int) -> Saved | None:
        """Say whose bytes somebody would be given for this shard."""
        found = [disk.holds(save, rank) for disk in self.disks]
        found += [backup.holds(rank) for backup in self.backups if is_whole(backup) and backup.order == save]
        return next(filter(None, found), None)

    @property
    def committed(self) -> Line | None:
        """The newest save that anybody ever called committed, whoever it is, as long as people let it count."""
        claims = [self.index.upto, *(disk.committed for disk in self.disks)]
        claims += [save for save, fields in self.index.steps.items() if fields.get("state") == "committed"]
        claims += [one.save for disk in self.disks for one in disk.named.values() if one.committed]
        return max((claim for claim in claims if claim and not self.excused(claim)), default=None)

    def excused(self, save: Line) -> bool:
        """Tell whether people ordered that this save need not be there although it was committed."""
        return not self.counts(save) or (self.forgotten is not None and save <= self.forgotten)


class Auditor:
    """Follows one cluster from one look to the next.

    What the test itself took away or changed it must tell, or be blamed on the services.
    """

    def __init__(self) -> None:
        self._before: Evidence | None = None
        self._wiped: set[int] = set()
        self._harmed: set[int] = set()
        self._forgiven: set[tuple[Line, int]] = set()
        self._lives: dict[Line, int] = {}
        self._emptied = False
        self.undone: tuple[Line, Line] | None = None
        self.forgotten: Line | None = None

    def go_back(self, to: Line) -> None:
        """People order that this save is restored, whatever was saved since."""
        assert self._before is not None
        self.undone = to, max(one.save for disk in self._before.disks for one in disk.named.values())

    def forget(self, *, ramdisks: bool) -> None:
        """People order that the job is forgotten: as the word of what was lost, or with all that its hosts hold."""
        assert self._before is not None
        self.forgotten = max(one.save for disk in self._before.disks for one in disk.named.values())
        self._emptied = ramdisks
        self.undone = None  # what people went back behind is forgotten too

    def forgot(self) -> None:
        """The job was forgotten and began anew: whatever goes from now on goes by the laws."""
        self._emptied = False

    def wiped(self, node: int) -> None:
        """The test emptied this node: what stood there may be gone, and lack as a copy."""
        self._wiped.add(node)
        if self._before is not None:
            saves = {one.save for disk in self._before.disks for one in disk.named.values()}
            self._forgiven |= {(save, node) for save in saves}

    def harm(self, node: int) -> None:
        """The test changes bytes on this node, until it calls them healed."""
        self.wiped(node)
        self._harmed.add(node)

    def healed(self, node: int) -> None:
        """What the test changed on this node must be gone or good again."""
        self._harmed.discard(node)

    def look(self, now: Evidence) -> list[str]:
        """Return every breach of a law that this evidence shows."""
        found = [
            *self._bytes(now),
            *self._lines(now),
            *self._crash(now),
            *self._acknowledged(now),
            *self._fence(now),
            *self._backups(now),
        ]
        if self._before is not None:
            found += self._deleted(self._before, now)
            found += self._went_back(self._before, now)
        self._before = now
        self._wiped = set(self._harmed)
        return found

    def quiet(self, now: Evidence) -> list[str]:
        """Return what still differs from rest: all is protected, nothing is left over, and Redis tells the truth."""
        found = [
            f"law 6: node-{node} still has {left}"
            for node, disk in enumerate(now.disks)
            for left in disk.left
            if not _waits(left, now)
        ]
        newest, index = now.newest, now.index
        if index.epoch.get("state") != "running" or index.epoch.get("released") != "true":
            found.append(f"law 6: the epoch is {index.epoch.get('state')}: {index.epoch.get('reason')}")
        if newest is not None:
            found += [
                f"law 4: at rest node-{node} has no copy of n{rank} of {newest}"
                for node, disk in enumerate(now.disks)
                for rank in RANKS
                if disk.holds(newest, rank) is None
            ]
        if index.upto is not None and newest is not None and index.upto < newest and newest in index.steps:
            found.append(f"law 6: {newest} is whole, and {index.upto} is still the newest committed")
        for rank, told in index.inventory.items():
            really = frozenset(one.address for one in now.disks[rank].named.values())
            if told != really:
                found.append(f"law 6: Redis says that rank {rank} holds {sorted(told)}, it holds {sorted(really)}")
        return found

    # ---- laws

    def _bytes(self, now: Evidence) -> Iterator[str]:
        """Visible means complete: every public name stands for bytes that a trainer saved under it."""
        for node, disk in enumerate(now.disks):
            for address, whose in disk.contents.items():
                if whose is None and node not in self._harmed:
                    yield f"law 9: node-{node} shows {address:.13}.data with bytes that nobody saved"
            for name, address in disk.metas.items():
                if address not in disk.contents:
                    yield f"law 9: node-{node} shows {name}.meta of {address:.13}, which is not there"
            for path, one in disk.named.items():
                bytes_ = disk.contents.get(one.address)
                if bytes_ is not None and (bytes_.step, bytes_.rank) != (one.save[1], one.rank):
                    yield f"law 1: node-{node} names {path}, its bytes are of {bytes_}"

    def _lines(self, now: Evidence) -> Iterator[str]:
        """Shards of different lives never form one save, and the first draft of a step is the one that counts."""
        # Epoch 0 is what nobody knows the epoch of: its step may be one of many lives, one after another.
        self._lives = {save: life for save, life in self._lives.items() if save[0]}
        for disk in now.disks:
            for one in disk.named.values():
                whose = disk.contents.get(one.address)
                if whose is None:
                    continue
                life = self._lives.setdefault(one.save, whose.life)
                if whose.life != life:
                    yield f"law 1: save {one.save} has bytes of life {whose.life} and of life {life}"
                if whose.draft:
                    yield f"law 1: save {one.save} has bytes of a later draft: {whose}"

    def _crash(self, now: Evidence) -> Iterator[str]:
        """After the first commit some committed save can be restored; nothing but it, or a newer one, will do."""
        if now.committed is not None and not now.whole(now.committed):
            yield f"law 3: {now.committed} was committed and is not whole anywhere; the newest whole is {now.newest}"

    def _acknowledged(self, now: Evidence) -> Iterator[str]:
        """What Redis calls committed with a copy has one, byte for byte, as long as no list permitted to drop it."""
        index = now.index
        for save, fields in index.steps.items():
            if fields.get("state") != "committed" or (index.upto is not None and save < index.upto):
                continue
            if not now.counts(save) or self._gone(save):
                continue
            for node, disk in enumerate(now.disks):
                if (save, node) in self._forgiven or fields.get("copies") == "0":
                    continue
                for rank in RANKS:
                    if disk.holds(save, rank) is None:
                        yield f"law 4: {save} is called replicated, and node-{node} has no n{rank} of it"

    def _fence(self, now: Evidence) -> Iterator[str]:
        """Nobody obeys a stamp that Redis does not know."""
        for node, disk in enumerate(now.disks):
            if disk.obeyed > now.index.fence and now.index.fence != (0, 0, 0):
                yield f"law 7: node-{node} obeyed {disk.obeyed}, the fence is at {now.index.fence}"

    def _backups(self, now: Evidence) -> Iterator[str]:
        """A `.meta` comes after all data of the backup, and a manifest after all."""
        for backup in now.backups:
            if backup.metas and backup.state != "abandoned":
                for rank in RANKS:
                    if rank in backup.metas and backup.holds(rank) is None:
                        yield f"law 9: backup {backup.name} has a .meta of n{rank} without its bytes"
                whole = {whose.rank for whose in backup.contents.values() if whose is not None}
                if whole != set(RANKS):
                    yield f"law 9: backup {backup.name} has a .meta, and data of ranks {sorted(whole)} only"
            if backup.state == "complete" and not is_whole(backup):
                yield f"law 9: backup {backup.name} is called complete, and is not: lacks {backup.lacking[:3]}"

    def _deleted(self, before: Evidence, now: Evidence) -> Iterator[str]:
        """Nothing goes but what a keep list permits: a newer save is committed, or it was given up."""
        index = now.index
        for node, (old, new) in enumerate(zip(before.disks, now.disks, strict=True)):
            if node in self._wiped:
                continue
            for save in sorted({one.save for one in old.named.values()} - {one.save for one in new.named.values()}):
                permitted = save in index.drop or (index.upto is not None and save < index.upto)
                if not permitted and now.counts(save) and not self._gone(save):
                    yield f"law 5: node-{node} dropped {save}; committed up to {index.upto}, given up {index.drop}"

    def _went_back(self, before: Evidence, now: Evidence) -> Iterator[str]:
        """Stamps and commits only grow."""
        if now.index.fence < before.index.fence:
            yield f"law 7: the fence went from {before.index.fence} to {now.index.fence}"
        for node, (old, new) in enumerate(zip(before.disks, now.disks, strict=True)):
            if node not in self._wiped and new.obeyed < old.obeyed and not self._emptied:
                yield f"law 7: node-{node} obeyed {old.obeyed} and now knows {new.obeyed} only"
        for old_save, new_save in pairwise([before.index.upto, now.index.upto]):
            if old_save is not None and (new_save is None or new_save < old_save) and not now.excused(old_save):
                yield f"law 7: committed went back from {old_save} to {new_save}"

    def _gone(self, save: Line) -> bool:
        """Tell whether people ordered that the hosts remove this save."""
        return self._emptied and self.forgotten is not None and save <= self.forgotten


def _waits(left: str, now: Evidence) -> bool:
    """Tell whether this is of a partial that nobody can fill now: it stays for a day in case somebody comes back."""
    part, _, rest = left.partition("/")
    address = rest.partition("/")[0]
    return part == "partial" and not any(address in disk.contents for disk in now.disks)


def is_whole(backup: Backup) -> bool:
    """Tell whether a backup could be restored: closed, every object there, and all bytes of one life and step."""
    held = [backup.holds(rank) for rank in RANKS]
    one_save = {(whose.life, whose.step) for whose in held if whose is not None}
    ranks = [whose.rank for whose in held if whose is not None]
    return backup.state == "complete" and not backup.lacking and ranks == list(RANKS) and len(one_save) == 1
