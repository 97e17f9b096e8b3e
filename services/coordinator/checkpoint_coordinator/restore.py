"""The restore decision: which save all nodes take, or why none; pure.

Look first, judge after: the newest save that is whole over live hosts and backups together and fits is restored,
committed or not, whoever is silent, unless a trace names a newer committed save that a silent witness may hold. *None*,
*unknown* and *lost* are verdicts only where no such save was found.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from checkpoint_coordinator.inventory import Found, Inventory, Line
from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Address, Epoch, Host, Rank, Worker
from checkpoint_replicator.records import FetchPlan, Member, Outcome, Peer, Rejected, ShardPlan
from checkpoint_replicator.save import Save, ShardKey, Tag
from checkpoint_replicator.shape import Shape
from checkpoint_replicator.wishes import Forced

__all__ = [
    "Choice",
    "Facts",
    "candidate_ranks",
    "choose",
    "newest_epoch",
    "ordered_fault",
    "plan",
    "unsourced",
    "whole",
]

MOST_REJECTED = 16
"""So many newer saves are named with the reason why they were not chosen."""
MOST_NAMED = 4
"""So many missing shards are named in a reason."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the decision looks at.

    Attributes:
        shape: of the job that wants to restore.
        stock: what live hosts and counting backups hold.
        trace: the newest save of which anything says that it was committed: a node, a backup, a record in Redis.
        trace_shape: its shape, where known.
        silent: witnesses that did not answer, each as a text for people.
        given_up: hosts that may hold data and are not waited for any more, each as a text for people.
        spent: saves that could not be completed although they looked whole, with the reason.
        fresh_start: the configuration allows to begin anew where all is lost.
        forced: an order of people.
        order_fault: why what people ordered in `restore.version` cannot be understood.
        superseded: backups that people went back behind: they are taken by an order only.
    """

    shape: Shape
    stock: Inventory
    trace: Save | None = None
    trace_shape: Shape | None = None
    silent: tuple[str, ...] = ()
    given_up: tuple[str, ...] = ()
    spent: Mapping[Save, str] = {}
    fresh_start: bool = False
    forced: Forced | None = None
    order_fault: str = ""
    superseded: tuple[str, ...] = ()


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What is restored, and why.

    Attributes:
        outcome: restore, none, unknown or lost.
        reason: for people; for `replicator.failed` where the outcome is unknown or lost.
        line: what is restored, with outcome restore.
        tags: the content of each shard that is taken, by its key in the save's own shape.
        backup: the newest backup that holds it.
        rejected: newer saves and why not.
        silent: witnesses without whose answer it was decided.
    """

    outcome: Outcome
    reason: str
    line: Line | None = None
    tags: Mapping[ShardKey, Tag] = {}
    backup: str | None = None
    rejected: tuple[Rejected, ...] = ()
    silent: tuple[str, ...] = ()

    @property
    def save(self) -> Save | None:
        """The save that is restored."""
        return self.line.save if self.line else None


def choose(facts: Facts) -> Choice:
    """Decide for all nodes together."""
    if facts.order_fault and facts.forced is None:
        return Choice(outcome=Outcome.LOST, reason=facts.order_fault)
    if facts.forced is not None and facts.forced.none:
        return Choice(outcome=Outcome.NONE, reason="a fresh start was ordered")
    if facts.forced is not None and (facts.forced.save is not None or facts.forced.backup is not None):
        return _forced(facts, facts.forced)
    rejected: list[Rejected] = []
    for found in facts.stock:
        fault = _fault(found, facts)
        if fault is None:
            if _may_take(found.line.save, facts):
                return _take(found, facts, tuple(rejected[-MOST_REJECTED:]))
            break
        rejected.append(Rejected(save=found.line.save, reason=fault))
    return _verdict(facts, tuple(rejected[:MOST_REJECTED]))


def _may_take(save: Save, facts: Facts) -> bool:
    """Tell whether an older save may stand for the newest committed one.

    Only when every witness answered, so that the committed one is nowhere whole, and when it was not for its shape.
    """
    if facts.trace is None or save >= facts.trace:
        return True
    return not facts.silent and not _misfit(facts)


def _misfit(facts: Facts) -> bool:
    return facts.trace_shape is not None and not _fits(facts.trace_shape, facts.shape)


def _verdict(facts: Facts, rejected: tuple[Rejected, ...]) -> Choice:
    told = "; ".join(f"save {one.save}: {one.reason}" for one in rejected)
    committed = facts.trace is not None
    if committed and _misfit(facts):
        reason = f"the newest committed save {facts.trace} is of {facts.trace_shape}, the job is of {facts.shape}"
        return Choice(outcome=Outcome.LOST, reason=_join(reason, told), rejected=rejected)
    if facts.silent:
        reason = f"not known: {', '.join(facts.silent)}"
        if committed:
            reason = f"save {facts.trace} was committed, and it is {reason}"
        return Choice(outcome=Outcome.UNKNOWN, reason=_join(reason, told), rejected=rejected)
    without = f"without an answer of {_few(facts.given_up)}" if facts.given_up else ""
    if not committed:
        reason = "no checkpoint anywhere"
        if told:
            reason = f"nothing was ever committed; unfinished: {told}"
        return Choice(outcome=Outcome.NONE, reason=_join(reason, without), rejected=rejected)
    reason = _join(_join(f"save {facts.trace} was committed and no whole save is left", told), without)
    if facts.superseded:
        names = ", ".join(facts.superseded[-MOST_NAMED:])
        reason = f"{reason}; superseded backups, which only an order restores: {names}"
    if facts.fresh_start:
        reason = f"{reason}; the configuration allows a fresh start"
        return Choice(outcome=Outcome.NONE, reason=reason, rejected=rejected)
    return Choice(outcome=Outcome.LOST, reason=reason, rejected=rejected)


def _few(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - MOST_NAMED} more" if len(texts) > MOST_NAMED else ""
    return ", ".join(texts[:MOST_NAMED]) + more


def _join(reason: str, told: str) -> str:
    return f"{reason}; {told}" if told else reason


def _take(found: Found, facts: Facts, rejected: tuple[Rejected, ...]) -> Choice:
    tags = whole(found)
    names = {name for names in found.backups.values() for name in names}
    reason = f"the newest whole save is {found.line.save}"
    if rejected:
        reason = f"{reason}; {len(rejected)} newer were not chosen"
    if facts.trace is not None and found.line.save < facts.trace and all(r.save != facts.trace for r in rejected):
        rejected = (*rejected, Rejected(save=facts.trace, reason="it was committed, and nobody holds any of it"))
        reason = f"the newest whole save is {found.line.save}; the committed save {facts.trace} is gone"
    if facts.silent:
        reason = f"{reason}; without an answer of {', '.join(facts.silent)}"
    return Choice(
        outcome=Outcome.RESTORE,
        reason=reason,
        line=found.line,
        tags=tags,
        backup=max(names, default=None),
        rejected=rejected,
        silent=facts.silent,
    )


def _forced(facts: Facts, forced: Forced) -> Choice:
    wanted = str(forced)
    faults: list[str] = []
    for found in _ordered(forced, facts.stock):
        fault = _fault(found, facts)
        if fault is None:
            choice = _take(found, msgspec.structs.replace(facts, trace=None), ())
            backup = forced.backup if forced.backup is not None else choice.backup
            return msgspec.structs.replace(choice, reason=f"{wanted} was ordered", backup=backup)
        faults.append(fault)
    fault = _unfit(forced, faults, facts.stock)
    if facts.silent:
        reason = f"{wanted} was ordered: {fault}; not known: {', '.join(facts.silent)}"
        return Choice(outcome=Outcome.UNKNOWN, reason=reason)
    return Choice(outcome=Outcome.LOST, reason=f"{wanted} was ordered: {fault}")


def _ordered(forced: Forced, stock: Inventory) -> Iterator[Found]:
    """Yield what may be meant."""
    for found in stock:
        if forced.backup is not None and all(forced.backup not in names for names in found.backups.values()):
            continue
        if forced.save is None or found.line.save == forced.save:
            yield found


def _unfit(forced: Forced, faults: Sequence[str], stock: Inventory) -> str:
    """Say why nothing of what is ordered can be taken; a damaged backup of it is named with what it lacks."""
    unheld = "nobody holds it" if forced.backup is None else "the backup store has no whole backup of this name"
    told = "; ".join(faults) or unheld
    damaged = [
        f"backup {entry.name} does not count: {entry.reason}"
        for entry in stock.damaged
        if entry.name == forced.backup or (forced.save and any(tag.save == forced.save for tag in entry.tags))
    ]
    return _join(told, "; ".join(damaged[-MOST_NAMED:]))


def ordered_fault(forced: Forced, stock: Inventory) -> str:
    """Say why what is ordered cannot be restored by a job of its own shape; empty when it can."""
    if forced.none:
        return ""
    faults = [_fault(found, Facts(shape=found.line.shape, stock=stock)) for found in _ordered(forced, stock)]
    if None in faults:
        return ""
    return _unfit(forced, [fault for fault in faults if fault], stock)


def _fault(found: Found, facts: Facts) -> str | None:
    """Say why a save cannot be restored, or None."""
    line = found.line
    if line.save in facts.spent:
        return facts.spent[line.save]
    if not _fits(line.shape, facts.shape):
        return f"it is of {line.shape}, the job is of {facts.shape}"
    missing = _missing(found, facts.shape)
    if not missing:
        return None
    named = ", ".join(_describe(found, key) for key in missing[:MOST_NAMED])
    more = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
    return f"missing {named}{more}"


def _describe(found: Found, key: ShardKey) -> str:
    many = len(found.addresses(key))
    return f"{key} ({many} different contents)" if many > 1 else str(key)


def _fits(shape: Shape, wanted: Shape) -> bool:
    """Like `Shape.fits`; data of unknown origin names no framework and must cover exactly the ranks of the job."""
    if not shape.framework:
        return (shape.nodes, shape.workers) == (wanted.nodes, wanted.workers)
    return shape.fits(wanted)


def candidate_ranks(shape: Shape, wanted: Shape, rank: Rank) -> tuple[Rank, ...]:
    """Return which ranks' shards of a save a restoring rank may take, best first: its own, then twins of its column."""
    if not shape.framework:
        return (rank,)
    column = rank % wanted.columns
    twins = shape.twins(column)
    return (rank, *(twin for twin in twins if twin != rank)) if rank in twins else twins


def whole(found: Found) -> dict[ShardKey, Tag]:
    """Return the content of every shard that is somewhere."""
    keys = {key for key, _ in found.tags}
    return {key: tag for key in sorted(keys) if (tag := found.resolve(key)) is not None}


def _missing(found: Found, wanted: Shape) -> tuple[ShardKey, ...]:
    """Return the shards that some rank needs and no twin can give."""
    tags = whole(found)
    missing: dict[ShardKey, None] = {}
    for rank in map(Rank, range(wanted.nodes)):
        ranks = candidate_ranks(found.line.shape, wanted, rank)
        for worker in map(Worker, range(wanted.workers)):
            if not any(ShardKey(one, worker) in tags for one in ranks):
                missing[ShardKey(ranks[0], worker)] = None
    return tuple(missing)


def plan(
    choice: Choice, shape: Shape, members: tuple[Member, ...], stock: Inventory, stamp: Stamp
) -> dict[Rank, FetchPlan]:
    """Say for every rank which shards it needs and who has them, best source first.

    Holders are live hosts with the same address under whatever name; the order turns with the rank, so that many who
    need one shard begin at different holders. The own host is no holder: it is looked at first in any case.
    """
    if choice.line is None:
        return {}
    found = stock.lines.get(choice.line)
    plans: dict[Rank, FetchPlan] = {}
    for member in members:
        shards: list[ShardPlan] = []
        for worker in map(Worker, range(shape.workers)):
            tag = _tag_for(choice, choice.line, shape, member.rank, worker)
            if tag is None:
                continue
            names = found.backups.get((tag.key, tag.address), []) if found else []
            backup = choice.backup if choice.backup in names else max(names, default=None)
            holders = _holders(stock, tag.address, member)
            shards.append(ShardPlan(key=ShardKey(member.rank, worker), tag=tag, holders=holders, backup=backup))
        plans[member.rank] = FetchPlan(stamp=stamp, shards=tuple(shards))
    return plans


def unsourced(choice: Choice, shape: Shape, stock: Inventory) -> tuple[ShardKey, ...]:
    """Name what the ranks of a job need of a save and nobody holds any more."""
    line = choice.line
    if line is None:
        return ()
    found = stock.lines.get(line)
    lacking: list[ShardKey] = []
    for rank in map(Rank, range(shape.nodes)):
        for worker in map(Worker, range(shape.workers)):
            tag = _tag_for(choice, line, shape, rank, worker)
            backups = found.backups.get((tag.key, tag.address)) if found is not None and tag is not None else None
            if tag is None or not (stock.holders.get(tag.address) or backups):
                lacking.append(ShardKey(rank, worker))
    return tuple(lacking)


def _tag_for(choice: Choice, line: Line, shape: Shape, rank: Rank, worker: Worker) -> Tag | None:
    """Choose whose shard a rank takes: its own, else a twin's."""
    for one in candidate_ranks(line.shape, shape, rank):
        tag = choice.tags.get(ShardKey(one, worker))
        if tag is not None:
            return tag
    return None


def _holders(stock: Inventory, address: Address, member: Member) -> tuple[Peer, ...]:
    peers: dict[Host, Peer] = {}
    for copy in stock.holders.get(address, ()):
        if copy.peer is not None and copy.host != member.host:
            peers[copy.host] = copy.peer
    order = [peers[host] for host in sorted(peers)]
    turn = member.rank % len(order) if order else 0
    return tuple(order[turn:] + order[:turn])


def newest_epoch(stock: Inventory) -> Epoch:
    """Return the highest epoch of any data, so that a new epoch is above all."""
    return max((line.save.epoch for line in stock.lines), default=Epoch(0))
