"""The coordinator's typed state and the Redis keys that show it; pure, both ways.

`hashes` says what Redis should hold, `changes` what must be written so that it does, `recall` reads it back after a
take-over. What does not parse is left out and named: an index can be rebuilt, a crash loop cannot be ended by it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

import msgspec

from checkpoint_coordinator.backups import BackupRecord, LastBackup
from checkpoint_coordinator.commit import SaveState
from checkpoint_coordinator.texts import Texts
from checkpoint_replicator.errors import ProtocolError
from checkpoint_replicator.ids import Address, Host, Incarnation, Rank, SessionId, Worker
from checkpoint_replicator.records import EpochRecord, FetchPlan, KeepList, Orders, RestoreRecord
from checkpoint_replicator.save import Save, ShardKey, parse_save
from checkpoint_replicator.shape import Shape
from checkpoint_replicator.store import Change, Delete, SetHash, SetScores
from checkpoint_replicator.store.fields import from_fields, from_json, score_text, to_fields, to_json
from checkpoint_replicator.wishes import Branch, Forced, Forgetting, Forgotten, Hold, WishAnswer

__all__ = ["BY_PEOPLE", "Hashes", "SaveRecord", "State", "changes", "hashes", "merged", "recall", "score"]

Hashes = dict[str, dict[str, str]]
"""Key without its prefix to fields and texts; of sorted sets to scores as texts."""

SORTED: Final = frozenset({"steps", "backups"})
"""Keys that are sorted sets."""
LAST: Final = ("restore:", "orders", "keep", "epoch")
"""Keys that make a change valid, in the order in which they are written after all others."""
MOST_ELEMENTS: Final = 4000
"""So many fields a write may hold."""

BY_PEOPLE: Final[Mapping[str, type[msgspec.Struct]]] = {
    "forced": Forced,
    "hold": Hold,
    "branch": Branch,
    "forgetting": Forgetting,
    "forgotten": Forgotten,
}
"""Keys of what people ordered, which are fields of `State` by the same names, and their types."""

T = TypeVar("T")
R = TypeVar("R", bound=msgspec.Struct)


class SaveRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`…:step:<epoch>.<step>`: a save, for people.

    Attributes:
        save: which.
        shape: its own.
        state: see SaveState.
        shards: shard to address.
        copies: the lowest number of copies beside the own one.
        unprotected: some shard has no copy on another host.
        reason: who is waited for.
        since: when the state was reached, in Unix seconds.
        seen: when it was first reported, in Unix seconds.
    """

    save: Save
    shape: Shape
    state: SaveState
    shards: Mapping[ShardKey, Address] = {}
    copies: int = 0
    unprotected: bool = True
    reason: str = ""
    since: float = 0.0
    seen: float = 0.0


class State(msgspec.Struct, kw_only=True):
    """Every decision that stands, and the facts that are shown beside them."""

    epoch: EpochRecord | None = None
    restore: RestoreRecord | None = None
    plans: dict[Rank, FetchPlan] = msgspec.field(default_factory=dict)
    keep: KeepList | None = None
    orders: dict[Host, Orders] = msgspec.field(default_factory=dict)
    saves: dict[Save, SaveRecord] = msgspec.field(default_factory=dict)
    backups: dict[str, BackupRecord] = msgspec.field(default_factory=dict)
    last_backup: LastBackup | None = None
    forced: Forced | None = None
    hold: Hold | None = None
    branch: Branch | None = None
    forgetting: Forgetting | None = None
    forgotten: Forgotten | None = None
    wishes: dict[str, WishAnswer] = msgspec.field(default_factory=dict)
    members: list[tuple[Rank, SessionId]] = msgspec.field(default_factory=list)
    superseded: list[tuple[Rank, SessionId]] = msgspec.field(default_factory=list)
    lives: list[tuple[Host, Incarnation]] = msgspec.field(default_factory=list)
    """Superseded lives of watchers."""
    unreadable: list[str] = msgspec.field(default_factory=list)


def score(save: Save) -> float:
    """Return a number that is in order as saves are, as far as a double carries."""
    return float(save.epoch * (1 << 32) + min(save.step, (1 << 32) - 1))


def hashes(state: State, texts: Texts | None = None) -> Hashes:
    """Return the decisions of the state as Redis should hold them.

    Args:
        state: what was decided.
        texts: what was made of the same records before.
    """
    texts = Texts() if texts is None else texts
    found: Hashes = {}

    def show(key: str, record: object, make: Callable[[], dict[str, str]], *more: object) -> None:
        found[key] = texts.of(key, (record, *more), make)

    if state.epoch is not None:
        show("epoch", state.epoch, partial(to_fields, state.epoch))
        if state.restore is not None:
            make = partial(_restore, state.restore, state.plans, released=state.epoch.released)
            more = (*state.plans, *state.plans.values(), state.epoch.released)
            show(f"restore:{state.epoch.number}", state.restore, make, *more)
    if state.keep is not None:
        show("keep", state.keep, partial(to_fields, state.keep))
    show("orders", None, partial(_orders, state.orders), *state.orders, *state.orders.values())
    for save, record in state.saves.items():
        show(f"step:{save}", record, partial(_save_fields, record))
    show("steps", None, partial(_scores, tuple(state.saves)), *state.saves)
    for name, backup in state.backups.items():
        show(f"backup:{name}", backup, partial(to_fields, backup))
    found["backups"] = {name: score_text(backup.verified_at) for name, backup in state.backups.items()}
    if state.last_backup is not None:
        show("lastbackup", state.last_backup, partial(to_fields, state.last_backup))
    for key in BY_PEOPLE:
        record = getattr(state, key)
        if record is not None:
            show(key, record, partial(to_fields, record))
    if state.wishes:
        found["wishes"] = {ident: to_json(answer) for ident, answer in state.wishes.items()}
    texts.forget()
    return found


def changes(wanted: Mapping[str, Mapping[str, str]], known: Mapping[str, Mapping[str, str]]) -> list[Change]:
    """Return what must be written, what makes it valid last; keys that are not wanted any more are removed.

    At most 4,000 fields: what is left out is the valid-making end, and comes with the next write.
    """
    listed: list[Change] = []
    room = MOST_ELEMENTS
    different = [key for key, fields in wanted.items() if not _same(fields, known.get(key, {}))]
    different += [key for key, before in known.items() if before and key not in wanted]
    for key in sorted(different, key=_turn):
        fields, before = wanted.get(key, {}), known.get(key, {})
        change = _change(key, fields, before)
        cost = len(change.fields) if isinstance(change, SetHash) else len(fields) + 1
        if listed and cost > room:
            break
        room -= cost
        listed.append(change)
    return listed


def _same(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    return one is other or one == other


def _change(key: str, fields: Mapping[str, str], before: Mapping[str, str]) -> Change:
    if not fields:
        return Delete(key)
    if key in SORTED:
        return SetScores(key, {member: float(text) for member, text in fields.items()}, replace=True)
    if before and before.keys() <= fields.keys():
        return SetHash(key, {field: text for field, text in fields.items() if before.get(field) != text})
    return SetHash(key, dict(fields), replace=True)


def merged(known: Hashes, written: Sequence[Change]) -> Hashes:
    """Return what Redis holds after these changes; the fields of other keys are the same objects."""
    after = dict(known)
    for change in written:
        match change:
            case SetHash(key, fields, replace):
                after[key] = dict(fields) if replace else {**after.get(key, {}), **fields}
            case SetScores(key, scores, replace):
                texts = {member: score_text(number) for member, number in scores.items()}
                after[key] = texts if replace else {**after.get(key, {}), **texts}
            case Delete(key):
                after.pop(key, None)
            case _:
                pass
    return after


def _turn(key: str) -> tuple[int, str]:
    for place, end in enumerate(LAST):
        if key == end or (end.endswith(":") and key.startswith(end)):
            return place + 1, key
    return 0, key


def _orders(orders: Mapping[Host, Orders]) -> dict[str, str]:
    return {host: to_json(orders[host]) for host in sorted(orders)}


def _scores(saves: Sequence[Save]) -> dict[str, str]:
    return {str(save): score_text(score(save)) for save in saves}


def _restore(record: RestoreRecord, plans: Mapping[Rank, FetchPlan], *, released: bool) -> dict[str, str]:
    fields = {"decision": to_json(record), "outcome": str(record.outcome), "reason": record.reason}
    fields["released"] = "yes" if released else "no"
    if record.save is not None:
        fields["save"] = str(record.save)
        fields["source"] = f"backup {record.backup}" if record.backup else "hosts"
    fields.update({f"rejected {one.save}": one.reason for one in record.rejected})
    fields.update({f"n{rank}": to_json(plan) for rank, plan in plans.items()})
    return fields


def _save_fields(record: SaveRecord) -> dict[str, str]:
    fields = {
        "shape": to_json(record.shape),
        "state": str(record.state),
        "copies": str(record.copies),
        "unprotected": "yes" if record.unprotected else "no",
        "reason": record.reason,
        "since": f"{record.since:.3f}",
        "seen": f"{record.seen:.3f}",
    }
    fields.update({str(key): address for key, address in record.shards.items()})
    return fields


# ---- back


def recall(found: Mapping[str, Mapping[str, str]]) -> State:
    """Read back what an earlier coordinator wrote; what does not parse is named in `unreadable`."""
    state = State()
    read = _Reader(found, state.unreadable)
    state.epoch = read.record("epoch", EpochRecord)
    if state.epoch is not None:
        _recall_restore(state, found.get(f"restore:{state.epoch.number}", {}))
    state.keep = read.record("keep", KeepList)
    for host, text in found.get("orders", {}).items():
        orders = read.json(f"orders {host}", text, Orders)
        if orders is not None:
            state.orders[Host(host)] = orders
    for key, fields in found.items():
        kind, _, name = key.partition(":")
        if kind == "step":
            saved = _guard(state.unreadable, key, partial(_recall_save, name, fields))
            if saved is not None:
                state.saves[saved.save] = saved
        elif kind == "backup":
            backup = read.record(key, BackupRecord)
            if backup is not None:
                state.backups[name] = backup
        elif kind == "node":
            state.superseded.extend(_guard(state.unreadable, key, partial(_recall_old, name, fields)) or ())
            state.members.extend(_guard(state.unreadable, key, partial(_recall_seat, name, fields)) or ())
            state.lives.extend(_guard(state.unreadable, key, partial(_recall_lives, name, fields)) or ())
    state.last_backup = read.record("lastbackup", LastBackup)
    for key, record_type in BY_PEOPLE.items():
        setattr(state, key, read.record(key, record_type))
    for ident, text in found.get("wishes", {}).items():
        answer = read.json(f"wishes {ident}", text, WishAnswer)
        if answer is not None:
            state.wishes[ident] = answer
    return state


def _recall_restore(state: State, fields: Mapping[str, str]) -> None:
    for field, text in fields.items():
        if field == "decision":
            state.restore = _guard(state.unreadable, "restore", partial(from_json, RestoreRecord, text, "restore"))
        elif field.startswith("n") and field[1:].isascii() and field[1:].isdigit():
            plan = _guard(state.unreadable, f"restore {field}", partial(from_json, FetchPlan, text, "plan"))
            if plan is not None:
                state.plans[Rank(int(field[1:]))] = plan


def _recall_save(name: str, fields: Mapping[str, str]) -> SaveRecord:
    shards: dict[ShardKey, Address] = {}
    for field, text in fields.items():
        rank, slash, worker = field.partition("/w")
        if slash and rank.startswith("n"):
            shards[ShardKey(Rank(int(rank[1:])), Worker(int(worker)))] = Address(text)
    return SaveRecord(
        save=parse_save(name),
        shape=from_json(Shape, fields["shape"], f"step:{name} shape"),
        state=SaveState(fields["state"]),
        shards=shards,
        copies=int(fields.get("copies", "0")),
        unprotected=fields.get("unprotected", "yes") == "yes",
        reason=fields.get("reason", ""),
        since=float(fields.get("since", "0")),
        seen=float(fields.get("seen", "0")),
    )


def _recall_seat(name: str, fields: Mapping[str, str]) -> list[tuple[Rank, SessionId]]:
    return [(Rank(int(name)), SessionId(fields["session"]))] if fields.get("session") else []


def _recall_old(name: str, fields: Mapping[str, str]) -> list[tuple[Rank, SessionId]]:
    old = from_json(list[str], fields.get("superseded", "[]"), f"node:{name} superseded")
    return [(Rank(int(name)), SessionId(session)) for session in old]


def _recall_lives(name: str, fields: Mapping[str, str]) -> list[tuple[Host, Incarnation]]:
    field = "superseded-incarnations"
    lives = from_json(list[str], fields.get(field, "[]"), f"node:{name} {field}")
    return [(Host(fields.get("host", "")), Incarnation(life)) for life in lives]


class _Reader:
    def __init__(self, found: Mapping[str, Mapping[str, str]], unreadable: list[str]) -> None:
        self._found = found
        self._unreadable = unreadable

    def record(self, key: str, kind: type[R]) -> R | None:
        fields = self._found.get(key)
        if not fields:
            return None
        return _guard(self._unreadable, key, lambda: from_fields(kind, fields, key))

    def json(self, key: str, text: str, kind: type[T]) -> T | None:
        return _guard(self._unreadable, key, lambda: from_json(kind, text, key))


def _guard(unreadable: list[str], key: str, read: Callable[[], T]) -> T | None:
    try:
        return read()
    except (ProtocolError, ValueError, KeyError, TypeError, OverflowError) as error:
        unreadable.append(f"{key}: {error}")
        return None
