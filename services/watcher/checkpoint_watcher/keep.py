"""What a keep list lets this node delete."""

from collections.abc import Collection, Iterable

from checkpoint_replicator.messages import Held
from checkpoint_replicator.records import KeepList
from checkpoint_replicator.save import Save, Tag

__all__ = ["droppable"]


def droppable(held: Iterable[Held], keep: KeepList, busy: Collection[Save]) -> tuple[Tag, ...]:
    """Return the shards of one job that go.

    Saves up to `upto` go unless they are kept, newer ones only when they are named as given up. The newest committed
    save stays whatever the list says, and so does what a restore or a backup in hand needs (`busy`). Under a hold all
    stays.
    """
    if keep.hold:
        return ()
    stay = {*keep.keep, *busy} | ({keep.upto} if keep.upto is not None else set())
    drop = set(keep.drop)

    def goes(save: Save) -> bool:
        if save in stay:
            return False
        return save in drop or (keep.upto is not None and save <= keep.upto)

    return tuple(sorted(one.tag for one in held if goes(one.tag.save)))
