"""What lies where: the shards that live hosts and backups hold, by save; pure."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

import msgspec

from checkpoint_replicator.ids import Address, Epoch, Host
from checkpoint_replicator.messages import BackupEntry, Held
from checkpoint_replicator.records import Peer
from checkpoint_replicator.save import Save, ShardKey, Tag, shards_of
from checkpoint_replicator.shape import Shape

__all__ = ["Copy", "Found", "Inventory", "Line", "take_stock"]


class Line(msgspec.Struct, frozen=True, order=True):
    """Saves of one origin: (save, shape). Data of two shapes never forms one save.

    Backups of Google's have epoch 0 and are in order by their names, not by their steps: each is a line of its own.
    """

    save: Save
    shape: Shape
    foreign: str = ""


class Copy(msgspec.Struct, frozen=True):
    """One standing copy of a shard.

    Attributes:
        host: where it lies.
        own: saved there by its trainer.
        committed: a keep list that the host obeyed called its save committed.
        peer: how its transfer is reached; None while that is away.
    """

    host: Host
    own: bool
    committed: bool
    peer: Peer | None


class Found(msgspec.Struct, dict=True):
    """Everything that is known of one line; nothing is added once it was asked.

    Attributes:
        line: save and shape.
        tags: shard and address to its tag.
        copies: shard and address to the copies on live hosts.
        backups: shard and address to the names of backups that hold it.
    """

    line: Line
    tags: dict[tuple[ShardKey, Address], Tag] = msgspec.field(default_factory=dict)
    copies: dict[tuple[ShardKey, Address], list[Copy]] = msgspec.field(default_factory=dict)
    backups: dict[tuple[ShardKey, Address], list[str]] = msgspec.field(default_factory=dict)

    def addresses(self, key: ShardKey) -> tuple[Address, ...]:
        """Return the contents that are offered for a shard; more than one is a conflict."""
        return self._contents.get(key, ())

    @cached_property
    def _contents(self) -> Mapping[ShardKey, tuple[Address, ...]]:
        found: dict[ShardKey, tuple[Address, ...]] = {}
        for key, address in self.tags:
            found[key] = tuple(sorted((*found.get(key, ()), address)))
        return found

    @cached_property
    def _resolved(self) -> Mapping[ShardKey, Tag | None]:
        return {key: self._resolve(key) for key in self._contents}

    def resolve(self, key: ShardKey) -> Tag | None:
        """Choose the content of a shard, or None where there is none or no honest choice.

        Of two contents that stand under one shard the committed one counts, then the one in a backup, then the one on
        the host that saved it; the first content of a shard is the one that commits.
        """
        return self._resolved.get(key)

    def _resolve(self, key: ShardKey) -> Tag | None:
        addresses = self.addresses(key)
        if len(addresses) > 1:
            for rule in (self._is_committed, self._is_backed_up, self._is_own):
                passed = tuple(address for address in addresses if rule(key, address))
                addresses = passed or addresses
                if len(addresses) == 1:
                    break
        return self.tags[key, addresses[0]] if len(addresses) == 1 else None

    def hosts(self, key: ShardKey, address: Address) -> frozenset[Host]:
        """Return the live hosts that hold this content for this shard."""
        return self._hosts.get((key, address), frozenset())

    @cached_property
    def _hosts(self) -> Mapping[tuple[ShardKey, Address], frozenset[Host]]:
        return {shard: frozenset(copy.host for copy in copies) for shard, copies in self.copies.items()}

    def missing(self) -> tuple[ShardKey, ...]:
        """Return the shards of the save's own shape that nobody holds."""
        return self._missing

    @cached_property
    def _missing(self) -> tuple[ShardKey, ...]:
        return tuple(key for key in shards_of(self.line.shape) if self.resolve(key) is None)

    @property
    def committed(self) -> bool:
        """Whether a copy carries the mark of a commit, or a verified backup holds the save."""
        return bool(self.backups) or any(copy.committed for copies in self.copies.values() for copy in copies)

    def _is_committed(self, key: ShardKey, address: Address) -> bool:
        return any(copy.committed for copy in self.copies.get((key, address), ()))

    def _is_backed_up(self, key: ShardKey, address: Address) -> bool:
        return (key, address) in self.backups

    def _is_own(self, key: ShardKey, address: Address) -> bool:
        return any(copy.own for copy in self.copies.get((key, address), ()))


class Inventory:
    """All lines, newest first, and who holds which address under whatever name.

    Attributes:
        lines: what is known of each.
        holders: address to the copies of it.
        damaged: backups that do not count, in the order of their names; they are looked at for what they lack only.
    """

    def __init__(self) -> None:
        self.lines: dict[Line, Found] = {}
        self.holders: dict[Address, list[Copy]] = {}
        self.damaged: list[BackupEntry] = []

    def __iter__(self) -> Iterator[Found]:
        """Newest first: by epoch and step; in epoch 0, backups of Google's among themselves by their names."""
        ours = sorted((line for line in self.lines if not line.foreign), reverse=True)
        foreign = sorted((line for line in self.lines if line.foreign), key=lambda line: line.foreign, reverse=True)
        while ours and foreign:
            later = ours if ours[0].save >= foreign[0].save else foreign
            yield self.lines[later.pop(0)]
        for line in (*ours, *foreign):
            yield self.lines[line]

    def of(self, save: Save) -> tuple[Found, ...]:
        """Return what is known of a save, in whatever shape."""
        return tuple(found for line, found in self.lines.items() if line.save == save)

    def add(self, line: Line, tag: Tag) -> Found:
        """Take up that a line has this shard."""
        found = self.lines.setdefault(line, Found(line))
        found.tags.setdefault((tag.key, tag.address), tag)
        return found


def take_stock(
    reports: Mapping[Host, tuple[Iterable[Held], Peer | None]], backups: Iterable[BackupEntry] = ()
) -> Inventory:
    """Bring what hosts report and backups that count into one view."""
    stock = Inventory()
    for host in sorted(reports):
        shards, peer = reports[host]
        for held in shards:
            tag = held.tag
            found = stock.add(Line(tag.save, tag.shape), tag)
            copy = Copy(host, held.own, held.committed, peer)
            found.copies.setdefault((tag.key, tag.address), []).append(copy)
            holders = stock.holders.setdefault(tag.address, [])
            if all(other.host != host for other in holders):
                holders.append(copy)
    for entry in sorted(backups, key=lambda entry: entry.name):
        if not entry.whole:
            stock.damaged.append(entry)
            continue
        for tag in entry.tags:
            foreign = entry.name if tag.save.epoch == Epoch(0) else ""
            found = stock.add(Line(tag.save, tag.shape, foreign), tag)
            found.backups.setdefault((tag.key, tag.address), []).append(entry.name)
    return stock
