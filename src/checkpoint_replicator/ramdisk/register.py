"""The register of a ramdisk: the only place where shards get and lose their names.

Everything happens inside the names lock, with the directory read anew, in an order in which a crash between any two
system calls leaves something that `recover` makes consistent:

- name: tree, sidecars, `.data` (rename), `.meta`. Until the rename the source still stands in its claim or partial.
- drop: `.meta`, sidecar, hand-outs, `.data`, tree. Until the sidecar is gone the shard is whole, then it is trash.

So a sidecar without data is a naming that did not end, and a tree without a sidecar is a dropping that did not end.
"""

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Final

import msgspec

from checkpoint_replicator.errors import (
    BusyError,
    CorruptError,
    NoRoomError,
    ProtocolError,
    RefusedError,
    UnsupportedError,
)
from checkpoint_replicator.hashing import fingerprint
from checkpoint_replicator.ids import Address, Job, is_address, new_id
from checkpoint_replicator.ramdisk.files import Files
from checkpoint_replicator.ramdisk.layout import Layout, check_address, check_tag
from checkpoint_replicator.ramdisk.locks import alone, exclusive
from checkpoint_replicator.ramdisk.reading import ADDRESS_LIMIT, read_small
from checkpoint_replicator.ramdisk.sidecar import Inventory, Reader, Sidecar
from checkpoint_replicator.save import Save, Tag
from checkpoint_replicator.tree import Tree

__all__ = ["Dropped", "Recovery", "Register"]


LONGEST_TRASHED: Final = 200
"""Bytes of a name that its entry in the trash keeps; an id stands before them."""


class Recovery(msgspec.Struct, frozen=True):
    """What a recovery found and did.

    Attributes:
        unfinished: namings that did not end; their bytes still stand in a claim or a partial.
        dropped: addresses whose dropping did not end, now in the trash.
        unreadable: files of ours that do not parse; left as they are.
    """

    unfinished: tuple[Tag, ...] = ()
    dropped: tuple[Address, ...] = ()
    unreadable: tuple[ProtocolError, ...] = ()


class Dropped(msgspec.Struct, frozen=True):
    """What came of a dropping: gone, and not gone because somebody reads it."""

    gone: tuple[Tag, ...]
    busy: tuple[Tag, ...]


class Register:
    """Names, drops and recovers the shards of one ramdisk."""

    def __init__(self, layout: Layout, files: Files) -> None:
        self._layout = layout
        self._files = files
        self._reader = Reader(layout, files)

    def lock(self) -> AbstractContextManager[None]:
        """Hold the names lock."""
        return exclusive(self._layout.names_lock)

    def inventory(self) -> Inventory:
        """Read every sidecar."""
        return self._reader.read()

    def _of_names(self, names: Collection[str]) -> Inventory:
        """Read only the sidecars of some public names, in all epochs."""
        files = {f"{name}.json" for name in names}
        return self._reader.read(lambda _, file: file in files)

    def fault(self, sidecar: Sidecar) -> str | None:
        """Say why a shard does not stand any more, by stat only; None while it stands."""
        path = self._layout.data(sidecar.tag.address)
        if not self._layout.tree(sidecar.tag.address).exists():
            return f"{self._layout.tree(sidecar.tag.address)}: is missing"
        try:
            found = fingerprint(path)
        except FileNotFoundError:
            return f"{path}: is missing"
        except (CorruptError, UnsupportedError, OSError) as error:
            return f"{path}: {error}"
        if found != sidecar.fingerprint:
            return f"{path}: names, sizes or inodes changed since it was verified"
        return None

    def name(
        self, source: Path | None, tree: Tree, tags: Collection[Tag], *, own: bool, verified_at: float
    ) -> tuple[Sidecar, ...]:
        """Give a verified shard its names; see `Ramdisk.name_shard`."""
        address, data = tree.address, self._layout.data(tree.address)
        _check_tags(tags, tree)
        mark = "" if source is None else fingerprint(source)
        with self.lock():
            fresh = not (os.path.lexists(data) or os.path.lexists(self._layout.tree(address)))
            # What was never here has no mates, and among many shards most of the time goes into reading all sidecars.
            inventory = self._of_names({tag.name for tag in tags}) if fresh else self.inventory()
            mates = inventory.of(address)
            standing = next((mate for mate in mates if self.fault(mate) is None), None)
            if standing is None and source is None:
                raise CorruptError(f"{data}: does not stand here, so it cannot get another tag")
            for tag in tags:
                self._refuse_clash(tag, inventory)
            if standing is None and source != data and os.path.lexists(data):
                with alone(self._layout.tree(address)):
                    for mate in mates:
                        self._show(mate.tag.name, inventory.without(*mates), address)
                    self._trash(data)
            self._write_tree(tree)
            if standing is not None:
                mark, verified_at = standing.fingerprint, max(standing.verified_at, verified_at if source else 0.0)
            old = {mate.tag: mate for mate in mates}
            new = tuple(_sidecar(tag, old.get(tag), mark, verified_at, own=own) for tag in tags)
            others = (mate for mate in mates if mate.tag not in tags)
            moved = tuple(
                msgspec.structs.replace(mate, fingerprint=mark) for mate in others if mate.fingerprint != mark
            )
            for sidecar in (*new, *moved):
                self._write_sidecar(sidecar)
            if standing is None and source is not None and source != data:
                self._files.rename(source, data)
            now = inventory.with_new(*new, *moved)
            for sidecar in (*new, *moved):
                self._show(sidecar.tag.name, now)
            self._discard_replaced(inventory, now)
            if standing is not None and source is not None and source != data:
                self._trash(source)
        return new

    def drop(self, tags: Iterable[Tag]) -> Dropped:
        """Take the names of some shards away; see `Ramdisk.drop`."""
        dropped: list[Tag] = []
        busy: list[Tag] = []
        with self.lock():
            inventory = self.inventory()
            for tag in tags:
                sidecar = next((side for side in inventory.named(tag.name) if _same(side.tag, tag)), None)
                if sidecar is None:
                    continue
                try:
                    self._drop(sidecar, inventory)
                except BusyError:
                    busy.append(tag)
                else:
                    dropped.append(tag)
                    inventory = inventory.without(sidecar)
        return Dropped(tuple(dropped), tuple(busy))

    def _drop(self, sidecar: Sidecar, inventory: Inventory) -> None:
        address = sidecar.tag.address
        if len(inventory.of(address)) > 1:
            self._unregister(sidecar, inventory)
            return
        with alone(self._layout.tree(address)):
            self._unregister(sidecar, inventory)
            if not inventory.unreadable:  # one of them may name the same bytes
                self._discard(address)

    def commit(self, job: Job, saves: Collection[Save]) -> int:
        """Note that saves are committed; returns how many sidecars changed."""
        changed = 0
        places = {(str(save.epoch), f"{job}-s{save.step}-n") for save in saves}
        with self.lock():
            wanted = self._reader.read(lambda epoch, file: any(epoch == e and file.startswith(s) for e, s in places))
            for sidecar in wanted.sidecars:
                if sidecar.tag.job == job and sidecar.tag.save in saves and not sidecar.committed:
                    self._write_sidecar(msgspec.structs.replace(sidecar, committed=True))
                    changed += 1
        return changed

    def condemn(self, address: Address) -> tuple[Sidecar, ...]:
        """Take all names from bytes that are corrupt; see `Ramdisk.condemn`."""
        with self.lock(), alone(self._layout.tree(address)):
            inventory = self.inventory()
            condemned = inventory.of(check_address(address))
            for sidecar in condemned:
                self._unregister(sidecar, inventory)
                inventory = inventory.without(sidecar)
            data, seed = self._layout.data(address), self._layout.partial(address) / "seed"
            if condemned and os.path.lexists(data):
                self._files.make_folder(seed.parent)
                if os.path.lexists(seed):
                    self._trash(seed)
                self._files.rename(data, seed)
            if condemned and not inventory.unreadable:
                self._discard(address)
        return condemned

    def recover(self) -> Recovery:
        """Make consistent what a crash left; see `Ramdisk.recover`."""
        for folder in self._layout.folders:
            self._files.make_own(folder)
        with self.lock():
            for path in sorted(self._layout.aside.iterdir()):
                self._trash(path)
            inventory = self.inventory()
            unfinished = tuple(
                sidecar
                for sidecar in inventory.sidecars
                # A committed one was whole once: it stays as a trace of the commit.
                if not sidecar.committed and not os.path.lexists(self._layout.data(sidecar.tag.address))
            )
            for sidecar in unfinished:
                self._unregister(sidecar, inventory)
                inventory = inventory.without(sidecar)
            for name in sorted({sidecar.tag.name for sidecar in inventory.sidecars}):
                self._show(name, inventory)
            renamed = {sidecar.tag.name for sidecar in (*unfinished, *inventory.sidecars)}
            dropped = () if inventory.unreadable else tuple(self._discard_orphans(inventory, renamed))
        return Recovery(tuple(side.tag for side in unfinished), dropped, tuple(inventory.unreadable.values()))

    def trash(self, path: Path) -> None:
        """Move something of ours out of sight; `sweep` removes it."""
        self._trash(path)

    def sweep(self) -> int:
        """Remove what is in the trash, outside the lock; returns how many entries could not be removed."""
        return sum(not self._files.remove(path) for path in sorted(self._layout.trash.iterdir()))

    def _refuse_clash(self, tag: Tag, inventory: Inventory) -> None:
        for old in inventory.named(tag.name):
            clash = old.tag.save.epoch == tag.save.epoch and not _same(old.tag, tag)
            if clash and (old.committed or self.fault(old) is None):
                raise RefusedError(
                    f"{tag.name} of epoch {tag.save.epoch} was saved before with the address {old.tag.address:.13}; "
                    f"the one with {tag.address:.13} is not taken"
                )

    def _discard_replaced(self, before: Inventory, now: Inventory) -> None:
        """Discard bytes that did not stand any more and whose last name went to others."""
        gone = {sidecar.tag.address for sidecar in before.sidecars} - {sidecar.tag.address for sidecar in now.sidecars}
        if gone:
            now = self.inventory()
            gone -= {sidecar.tag.address for sidecar in now.sidecars}
        for address in sorted(gone if not now.unreadable else ()):
            with suppress(BusyError), alone(self._layout.tree(address)):
                self._discard(address)

    def _write_tree(self, tree: Tree) -> None:
        path, text = self._layout.tree(tree.address), tree.encode()
        with suppress(FileNotFoundError, ProtocolError):
            if read_small(path, len(text)) == text:
                return
        self._replace(path, text)

    def _write_sidecar(self, sidecar: Sidecar) -> None:
        path = self._layout.sidecar(sidecar.tag)
        self._files.make_own(path.parent)
        self._replace(path, msgspec.json.format(msgspec.json.encode(sidecar), indent=1) + b"\n")

    def _replace(self, path: Path, data: bytes) -> None:
        aside = self._layout.aside / path.name
        self._files.write(aside, data)
        if path.parent == self._layout.root:
            self._files.rename(aside, path)
        else:
            self._files.replace(aside, path)

    def _show(self, name: str, inventory: Inventory, *gone: Address) -> None:
        """Let the public `.meta` of a name show its highest epoch whose data is there.

        Without one the `.meta` goes, if it shows an address that was ours; foreign ones stay.
        """
        if inventory.doubts(name):
            return
        meta = self._layout.meta(name)
        addresses = [sidecar.tag.address for sidecar in inventory.named(name)]
        shown = next((address for address in addresses if os.path.lexists(self._layout.data(address))), None)
        now = _text(meta)
        if shown is not None and now != shown:
            with suppress(IsADirectoryError):  # somebody's directory, which a scan counts among the foreign names
                self._replace(meta, shown.encode())
        elif shown is None and now in {*addresses, *gone}:
            self._files.unlink(meta)

    def _unregister(self, sidecar: Sidecar, inventory: Inventory) -> None:
        path = self._layout.sidecar(sidecar.tag)
        try:
            self._show(sidecar.tag.name, inventory.without(sidecar), sidecar.tag.address)
        except NoRoomError:  # dropping must not need room; a recovery shows the older save later
            self._files.unlink(self._layout.meta(sidecar.tag.name))
        self._files.unlink(path)
        with suppress(OSError):  # only the empty directory of a past epoch goes
            path.parent.rmdir()

    def _discard(self, address: Address) -> None:
        """Move the bytes of an address that nobody names any more into the trash; the tree goes last."""
        for handout in sorted(self._layout.handouts.glob(f"*/{address}.data")):
            self._trash(handout)
        for path in (self._layout.data(address), self._layout.tree(address)):
            if os.path.lexists(path):
                self._trash(path)

    def _discard_orphans(self, inventory: Inventory, renamed: Collection[str]) -> Iterator[Address]:
        """Discard what lost its last name by a dropping that did not end.

        A dropping takes the public `.meta` first. So what a `.meta` still shows was not being dropped. Its sidecar
        was overwritten by a naming that did not end (`renamed` are the names of such), or lost in another way,
        and then the bytes stay.
        """
        named = {sidecar.tag.address for sidecar in inventory.sidecars}
        shown: dict[str | None, list[Path]] = {}
        for meta in sorted(self._layout.root.glob("*.meta")):
            shown.setdefault(_text(meta), []).append(meta)
        for path in sorted(self._layout.trees.iterdir()):
            address = Address(path.name.removesuffix(".tree"))
            if not is_address(address) or address in named or not path.is_file():
                continue
            if any(meta.stem not in renamed for meta in shown.get(address, ())):
                continue
            with suppress(BusyError), alone(path):
                for meta in shown.get(address, ()):
                    self._files.unlink(meta)
                self._discard(address)
                yield address

    def _trash(self, path: Path) -> None:
        name = os.fsencode(path.name)[:LONGEST_TRASHED]  # bytes, since that is what a file system counts
        self._files.rename(path, self._layout.trash / f"{new_id()}-{os.fsdecode(name)}")


def _text(path: Path) -> str | None:
    try:
        return read_small(path, ADDRESS_LIMIT).decode(errors="replace").strip()
    except (FileNotFoundError, ProtocolError):
        return None


def _check_tags(tags: Iterable[Tag], tree: Tree) -> None:
    tags = tuple(tags)
    if not tags:
        raise ProtocolError(f"{tree.address}: a shard needs a tag to be named")
    for tag in tags:
        check_tag(tag)
        if (tag.address, tag.size) != (tree.address, tree.size):
            raise ProtocolError(
                f"{tag.name}: its tag says {tag.address:.13} with {tag.size} bytes, "
                f"its tree {tree.address:.13} with {tree.size}"
            )


def _sidecar(tag: Tag, old: Sidecar | None, mark: str, verified_at: float, *, own: bool) -> Sidecar:
    return Sidecar(
        tag=tag,
        fingerprint=mark,
        verified_at=verified_at,
        own=own or (old is not None and old.own),
        committed=old is not None and old.committed,
    )


def _same(one: Tag, other: Tag) -> bool:
    return (one.save.epoch, one.name, one.address) == (other.save.epoch, other.name, other.address)
