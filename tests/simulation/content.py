"""What trainers save: small real bytes with real trees, so that addresses and leaf digests are those of the product."""

from dataclasses import dataclass
from random import Random

from checkpoint_replicator import leaf
from checkpoint_replicator.ids import Address
from checkpoint_replicator.tree import ROOT, File, Tree

__all__ = ["Content", "make", "spoil"]


@dataclass
class Content:
    """The bytes of a shard in one place: one file a leaf. Copies that are linked share the object."""

    tree: Tree
    leaves: list[bytes]

    @property
    def address(self) -> Address:
        """What the tree says."""
        return self.tree.address

    @property
    def size(self) -> int:
        """Bytes by the tree."""
        return self.tree.size

    def bad(self) -> list[int]:
        """Leaves whose bytes are not those of the tree."""
        return [number for number, data in enumerate(self.leaves) if not fits(self.tree, number, data)]

    def copy(self) -> "Content":
        """Other bytes that say the same."""
        return Content(self.tree, list(self.leaves))


def make(chance: Random, *, directory: bool) -> Content:
    """Make up a shard: a file of one leaf, or a directory of up to four."""
    files = [chance.randbytes(8) for _ in range(chance.randint(1, 4) if directory else 1)]
    names = [b"%d.distcp" % number for number in range(len(files))] if directory else [ROOT]
    entries = [File(name, len(data), leaf.digest(data)) for name, data in zip(names, files, strict=True)]
    return Content(Tree(entries), files)


def fits(tree: Tree, number: int, data: bytes) -> bool:
    """Verify a leaf."""
    expected = tree.leaf(number)
    return len(data) == expected.size and leaf.digest(data) == expected.digest


def spoil(chance: Random, data: bytes) -> bytes:
    """Flip one bit."""
    place = chance.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :]
