"""The sidecar of a named shard: the truth of what its bytes are. The public `.meta` only shows it."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from checkpoint_replicator.errors import ProtocolError
from checkpoint_replicator.ids import Address
from checkpoint_replicator.quote import quote
from checkpoint_replicator.ramdisk.documents import Document
from checkpoint_replicator.ramdisk.files import Files
from checkpoint_replicator.ramdisk.layout import Layout, check_tag
from checkpoint_replicator.save import Tag

__all__ = ["Inventory", "Sidecar", "read_inventory"]


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
        found = [sidecar for sidecar in self.sidecars if sidecar.tag.name == name]
        return tuple(sorted(found, key=lambda sidecar: sidecar.tag.save.epoch, reverse=True))

    def doubts(self, name: str) -> bool:
        """Tell whether an unreadable sidecar bears this public name."""
        return any(Path(path).stem == name for path in self.unreadable)

    def without(self, *gone: Sidecar) -> "Inventory":
        """Return the inventory without these."""
        return Inventory(tuple(sidecar for sidecar in self.sidecars if sidecar not in gone), self.unreadable)

    def with_new(self, *new: Sidecar) -> "Inventory":
        """Return the inventory with these in place of those with the same name and epoch."""
        places = {(sidecar.tag.save.epoch, sidecar.tag.name) for sidecar in new}
        old = (side for side in self.sidecars if (side.tag.save.epoch, side.tag.name) not in places)
        return Inventory((*old, *new), self.unreadable)


def read_inventory(layout: Layout, files: Files) -> Inventory:
    """Read every sidecar of the ramdisk, sorted by save and name."""
    sidecars: list[Sidecar] = []
    unreadable: dict[str, ProtocolError] = {}
    for path in _paths(layout.saves, unreadable):
        try:
            sidecar = _read(path, layout, files)
        except ProtocolError as error:
            unreadable[str(path)] = error
        else:
            sidecars += [] if sidecar is None else [sidecar]  # None: dropped between listing and reading
    sidecars.sort(key=lambda sidecar: (sidecar.tag.job, sidecar.tag.save, sidecar.tag.key))
    return Inventory(tuple(sidecars), unreadable)


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


def _paths(saves: Path, unreadable: dict[str, ProtocolError]) -> Iterator[Path]:
    for epoch in _listed(saves, unreadable):
        for name in _listed(saves / epoch, unreadable):
            yield saves / epoch / name


def _listed(folder: Path, unreadable: dict[str, ProtocolError]) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - names, not paths
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        unreadable[str(folder)] = ProtocolError(f"{quote(str(folder))}: cannot be listed: {error.strerror}")
        return []
