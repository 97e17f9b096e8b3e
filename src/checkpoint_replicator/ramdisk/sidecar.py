"""The sidecar of a named shard: the truth of what its bytes are. The public `.meta` only shows it."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from checkpoint_replicator.errors import ProtocolError
from checkpoint_replicator.ids import Address
from checkpoint_replicator.quote import quote
from checkpoint_replicator.ramdisk.documents import Document
from checkpoint_replicator.ramdisk.files import Files
from checkpoint_replicator.ramdisk.layout import Layout, check_tag, parse_name
from checkpoint_replicator.save import Tag

__all__ = ["Inventory", "Reader", "Sidecar"]

UNSETTLED: Final = 0.1
"""Seconds for which a fresh sidecar is read again each time: file times have steps of some milliseconds."""
_Mark = tuple[int, int, int, int]
"""Inode, size, mtime and ctime in nanoseconds."""


class Sidecar(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One shard of one save on this ramdisk.

    Attributes:
        tag: what it is.
        fingerprint: of names, sizes and inodes when its bytes were verified; the same now means it *stands*.
        verified_at: when that was, in seconds of the wall clock (UTC).
        own: saved on this node (else a copy for another, or fetched).
        committed: a keep list that this node obeyed called its save committed.
    """

    tag: Tag
    fingerprint: str
    verified_at: float
    own: bool = False
    committed: bool = False


class Inventory(msgspec.Struct, frozen=True):
    """All sidecars of a ramdisk, and those that cannot be read: nothing that they may name is ever removed."""

    sidecars: tuple[Sidecar, ...]
    unreadable: dict[str, ProtocolError]
    """Path to its error."""

    def of(self, address: Address) -> tuple[Sidecar, ...]:
        """Return the sidecars that name an address."""
        return tuple(sidecar for sidecar in self.sidecars if sidecar.tag.address == address)

    def named(self, name: str) -> tuple[Sidecar, ...]:
        """Return the sidecars of one public name, highest epoch first."""
        wanted = parse_name(name)
        if wanted is None:
            return ()
        step = wanted.step  # compared first: making every sidecar's name would cost more than all the rest
        alike = [sidecar for sidecar in self.sidecars if sidecar.tag.save.step == step]
        found = [side for side in alike if side.tag.key == wanted.key and side.tag.job == wanted.job]
        return tuple(sorted(found, key=lambda sidecar: sidecar.tag.save.epoch, reverse=True))

    def doubts(self, name: str) -> bool:
        """Tell whether an unreadable sidecar bears this public name."""
        return any(Path(path).stem == name for path in self.unreadable)

    def without(self, *gone: Sidecar) -> "Inventory":
        """Return the inventory without these."""
        return Inventory(tuple(sidecar for sidecar in self.sidecars if sidecar not in gone), self.unreadable)

    def with_new(self, *new: Sidecar) -> "Inventory":
        """Return the inventory with these in place of those with the same name and epoch."""
        places = {(sidecar.tag.save, sidecar.tag.key, sidecar.tag.job) for sidecar in new}
        steps = {sidecar.tag.save.step for sidecar in new}

        def stays(tag: Tag) -> bool:
            return tag.save.step not in steps or (tag.save, tag.key, tag.job) not in places

        return Inventory((*(side for side in self.sidecars if stays(side.tag)), *new), self.unreadable)


class Reader:
    """Reads all sidecars; those that did not change since it read them last are not parsed again.

    A sidecar is only ever replaced by a rename, so another text is another file, with another inode and time.
    """

    def __init__(self, layout: Layout, files: Files, clock: Callable[[], float] = time.time) -> None:
        self._layout = layout
        self._files = files
        self._clock = clock
        self._known: dict[str, tuple[_Mark, Sidecar]] = {}

    def read(self, only: Callable[[str, str], bool] | None = None) -> Inventory:
        """Read every sidecar of the ramdisk, sorted by save and name.

        Args:
            only: told the names of its directory (the epoch) and of its file, says which are wanted; None: all.
        """
        old = self._known
        known: dict[str, tuple[_Mark, Sidecar]] = {} if only is None else dict(old)
        found: list[Sidecar] = []
        unreadable: dict[str, ProtocolError] = {}
        settled = int((self._clock() - UNSETTLED) * 1e9)
        for path, mark in _listed(self._layout.saves, unreadable, only):
            before = old.get(path)
            if before is not None and before[0] == mark:
                known[path] = before
                found.append(before[1])
                continue
            try:
                sidecar = _read(Path(path), self._layout, self._files)
            except ProtocolError as error:
                unreadable[path] = error
                continue
            if sidecar is None:  # dropped between listing and reading
                continue
            found.append(sidecar)
            if mark is not None and mark[-1] < settled:
                known[path] = (mark, sidecar)
            else:
                known.pop(path, None)
        self._known = known
        found.sort(key=lambda sidecar: (sidecar.tag.job, sidecar.tag.save, sidecar.tag.key))
        return Inventory(tuple(found), dict(sorted(unreadable.items())))


def _read(path: Path, layout: Layout, files: Files) -> Sidecar | None:
    sidecar = Document(path, Sidecar, files).read()
    if sidecar is None:
        return None
    try:
        expected = layout.sidecar(check_tag(sidecar.tag))
    except ProtocolError as error:
        raise ProtocolError(f"{quote(str(path))}: {error}") from error
    if expected != path:
        raise ProtocolError(f"{quote(str(path))}: holds the tag of epoch {sidecar.tag.save.epoch}, {sidecar.tag.name}")
    return sidecar


def _listed(
    saves: Path, unreadable: dict[str, ProtocolError], only: Callable[[str, str], bool] | None
) -> Iterator[tuple[str, _Mark | None]]:
    for epoch in _entries(saves, unreadable):
        for entry in _entries(epoch.path, unreadable):
            if only is not None and not only(epoch.name, entry.name):
                continue
            try:
                facts = entry.stat(follow_symlinks=False)
            except OSError:
                yield entry.path, None
            else:
                yield entry.path, (facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)


def _entries(folder: str | Path, unreadable: dict[str, ProtocolError]) -> list["os.DirEntry[str]"]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        unreadable[str(folder)] = ProtocolError(f"{quote(str(folder))}: cannot be listed: {error.strerror}")
        return []
