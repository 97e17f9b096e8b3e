"""The keep list: the only thing that permits deleting; pure.

Kept are the newest committed save, every one under backup or restore, pinned ones, and of those in flight the oldest
that can still commit and the newest; the others are given up. It is made only from a complete view.
"""

from collections.abc import Collection

import msgspec

from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.records import KeepList
from checkpoint_replicator.save import Save

__all__ = ["View", "given_up", "keep_list", "says_the_same"]


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What a keep list is made from.

    Attributes:
        gaps: why the view is not complete: who has not reported in this epoch; empty when all have.
        committed: the newest committed save; after a release the restored save until a save of the epoch commits.
        in_flight: saves of this epoch above `committed` that are reported and not committed.
        failed: those of them that lack a shard for good, because it was skipped or changed.
        held: every save that any host reports.
        needed: saves under backup or restore, also those that reports name as orders in hand, and pinned ones.
        abandoned: saves that were given up before; one that is given up stays so.
        hold: people look: nothing is to be deleted, and the list only tells what is committed.
    """

    gaps: Collection[str] = ()
    committed: Save | None = None
    in_flight: Collection[Save] = ()
    failed: Collection[Save] = ()
    held: Collection[Save] = ()
    needed: Collection[Save] = ()
    abandoned: Collection[Save] = ()
    hold: bool = False


def given_up(
    in_flight: Collection[Save], abandoned: Collection[Save], needed: Collection[Save], failed: Collection[Save] = ()
) -> frozenset[Save]:
    """Say which saves in flight are given up: all but the oldest and the newest, and those given up before.

    One that failed is not the oldest: it would hold that place until another commits, and each that might would be
    given up for the next. As the newest it stays, because its trainers may save that step again.
    """
    order = sorted({save for save in in_flight if save not in abandoned})
    newest = order[-1:]
    oldest = [save for save in order if save not in failed][:1]
    return frozenset(abandoned) | {save for save in order if save not in {*oldest, *newest, *needed}}


def keep_list(view: View, stamp: Stamp) -> KeepList | None:
    """Return what stays and what goes, or None while the view does not permit a list.

    The newest committed save is never dropped, and without one nothing at or below any save is.
    """
    if view.gaps:
        return None
    if view.hold:
        return KeepList(stamp=stamp, upto=view.committed, keep=_kept(view), hold=True)
    dropped = given_up(view.in_flight, view.abandoned, view.needed, view.failed)
    upto = view.committed
    above = {save for save in dropped if upto is None or save > upto} - {upto}
    drop = tuple(sorted(save for save in above if save in view.held and save not in view.needed))
    if upto is None:
        return KeepList(stamp=stamp, drop=drop)
    return KeepList(stamp=stamp, upto=upto, keep=_kept(view), drop=drop)


def _kept(view: View) -> tuple[Save, ...]:
    upto = view.committed
    if upto is None:
        return ()
    return tuple(sorted({upto} | {save for save in view.needed if save <= upto}))


def says_the_same(one: KeepList | None, other: KeepList | None) -> bool:
    """Tell whether two lists permit the same, whatever their stamps."""
    if one is None or other is None:
        return one is other
    return (one.upto, one.keep, one.drop, one.hold) == (other.upto, other.keep, other.drop, other.hold)
