"""How many generations of a job's saves fit on one ramdisk; pure.

A generation is what one save takes on a node: its own shards and the copies that it holds for others. Two are needed,
since the old one goes only when the new one is committed; with three a slow peer holds nothing up. Both stand beside
what is kept free for the trainer's next save.
"""

from typing import Final

import msgspec

__all__ = ["RESERVE", "Generations", "generations"]

RESERVE: Final = 1.1
"""Room kept free for the trainer's next save, in sizes of its largest."""


class Generations(msgspec.Struct, frozen=True):
    """What fits, in bytes or inodes.

    Attributes:
        size: of one generation.
        fit: how many fit.
        needed: for two.
        comfortable: for three.
    """

    size: int
    fit: int
    needed: int
    comfortable: int


def generations(room: int, own: int, copies: int) -> Generations:
    """Say how many generations fit.

    Args:
        room: of the ramdisk in all.
        own: of the largest save of this node.
        copies: how many nodes have their copies here.
    """
    size = own * (1 + copies)
    beside = int(RESERVE * own)
    fit = max(0, room - beside) // size if size else 0
    return Generations(size=size, fit=fit, needed=2 * size + beside, comfortable=3 * size + beside)
