"""Names and documents of a backup, and whether what a listing shows of one counts; pure.

`<root>/<job>/<YYYY-MM-DD_HH-MM>/` holds `<job>-s<step>-n<rank>-w<worker>.meta` (the address), `<address>.data` (an
object, or objects below that prefix), `<address>.tree`, `ORDER.json` and `MANIFEST.json`. Public readers take any
`.meta` for the commit mark, so all `.meta` come after all data is verified, and `MANIFEST.json` comes last.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

import msgspec

from checkpoint_replicator.blobs import Blob
from checkpoint_replicator.errors import ProtocolError
from checkpoint_replicator.fence import ZERO, Stamp
from checkpoint_replicator.ids import Address, Epoch, Job, Rank, Step, Worker, is_address
from checkpoint_replicator.messages import BackupEntry
from checkpoint_replicator.quote import quote
from checkpoint_replicator.save import Save, ShardKey, Tag, shards_of
from checkpoint_replicator.shape import Shape

__all__ = [
    "ABANDONED",
    "FORCED_NAME",
    "MANIFEST_NAME",
    "ORDER_NAME",
    "Manifest",
    "ObjectMark",
    "OrderDocument",
    "abandoned_document",
    "data_name",
    "documents_to_read",
    "is_backup_name",
    "judge",
    "manifest_document",
    "meta_name",
    "name_at",
    "next_name",
    "order_document",
    "parse_manifest",
    "parse_order",
    "time_of",
    "tree_name",
]

ORDER_NAME: Final = "ORDER.json"
"""First object of a backup: reserves its name."""
MANIFEST_NAME: Final = "MANIFEST.json"
"""Last object of a backup: without it nothing counts; with state `abandoned` nothing counts ever."""
FORCED_NAME: Final = "restore.version"
"""Object beside the backups of a job that forces a restore."""
COMPLETE: Final = "complete"
ABANDONED: Final = "abandoned"

MAX_ORDER: Final = 16 << 10
"""Longest `ORDER.json` that is repeated in an answer; ours have some 150 bytes."""
MAX_DOCUMENT: Final = 256 << 20
"""Longest document in bytes that is parsed."""

_NAME: Final = re.compile(r"\d{4}-\d{2}-\d{2}_\d{2}-\d{2}", re.ASCII)
_FORMAT: Final = "%Y-%m-%d_%H-%M"
_META: Final = re.compile(r"(?P<job>.+)-s(?P<step>\d{1,18})-n(?P<rank>\d{1,9})-w(?P<worker>\d{1,9})\.meta", re.ASCII)
_MOST_PLACE: Final = (1 << 16) - 1
_MOST_NUMBER: Final = (1 << 53) - 1
_MOST_SHARDS: Final = 1 << 20
"""More shards than this are no save of ours; keeps a hostile name from costing memory."""


Document = TypeVar("Document")


class ObjectMark(msgspec.Struct, frozen=True):
    """Size in bytes and crc32c (base64, as in Cloud Storage) of an object of a backup."""

    size: int
    crc32c: str


class OrderDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`ORDER.json`: who reserved the name, and for which save."""

    stamp: Stamp
    save: Save
    shape: Shape


class Manifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`MANIFEST.json`.

    Attributes:
        state: `complete`, or `abandoned` for an order that was given up.
        save: which save it is.
        shape: the save's own.
        stamp: under which the order stood when it was completed.
        version: of the software that wrote it.
        tags: every shard; twins may share an address.
        objects: every object of the backup but the two JSON files, by its name below the backup's directory.
    """

    state: str
    save: Save | None = None
    shape: Shape | None = None
    stamp: Stamp | None = None
    version: str = ""
    tags: tuple[Tag, ...] = ()
    objects: dict[str, ObjectMark] = {}


def is_backup_name(text: str) -> bool:
    """Tell whether a directory's name is one of a backup: `<YYYY-MM-DD_HH-MM>`, a real moment."""
    return time_of(text) is not None


def time_of(name: str) -> float | None:
    """Return the moment in a backup's name in seconds since the Unix epoch, or None for another name."""
    if _NAME.fullmatch(name) is None:
        return None
    try:
        return datetime.strptime(name, _FORMAT).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def name_at(unix: float) -> str:
    """Return the name of a backup begun at this moment (UTC)."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=unix)).strftime(_FORMAT)


def next_name(unix: float, listed: Iterable[str]) -> str:
    """Return a name after every listed one, whatever the clock says: max(now, newest listed + 1 minute)."""
    times = [moment for name in listed if (moment := time_of(name)) is not None]
    return name_at(max(unix, max(times) + 60) if times else unix)


def data_name(address: Address) -> str:
    """Object name of a shard's bytes; for a directory the prefix, without its `/`."""
    return f"{address}.data"


def tree_name(address: Address) -> str:
    """Object name of a shard's tree."""
    return f"{address}.tree"


def meta_name(tag: Tag) -> str:
    """Object name that says which address a shard has."""
    return f"{tag.name}.meta"


def order_document(*, stamp: Stamp, save: Save, shape: Shape) -> str:
    """Return the text of `ORDER.json`."""
    return msgspec.json.encode(OrderDocument(stamp=stamp, save=save, shape=shape), order="sorted").decode()


def parse_order(text: str | bytes) -> OrderDocument:
    """Read `ORDER.json`.

    Raises:
        ProtocolError: the text is something else.
    """
    return _parse(text, OrderDocument, ORDER_NAME)


def manifest_document(
    *,
    save: Save,
    shape: Shape,
    stamp: Stamp,
    version: str,
    tags: Iterable[Tag],
    objects: Mapping[str, ObjectMark],
) -> str:
    """Return the text of the `MANIFEST.json` of a finished backup."""
    manifest = Manifest(
        state=COMPLETE,
        save=save,
        shape=shape,
        stamp=stamp,
        version=version,
        tags=tuple(sorted(tags)),
        objects=dict(objects),
    )
    return msgspec.json.encode(manifest, order="sorted").decode()


def abandoned_document() -> str:
    """Return the text of the `MANIFEST.json` that closes a given-up order, so that a late seal is refused."""
    return msgspec.json.encode(Manifest(state=ABANDONED)).decode()


def parse_manifest(text: str | bytes) -> Manifest:
    """Read `MANIFEST.json`.

    Raises:
        ProtocolError: the text is something else, or a complete manifest lacks a shard of its shape.
    """
    manifest = _parse(text, Manifest, MANIFEST_NAME)
    if manifest.state == ABANDONED:
        return manifest
    if manifest.state != COMPLETE:
        raise ProtocolError(f"{MANIFEST_NAME}: state {manifest.state!r}, expected {COMPLETE!r} or {ABANDONED!r}")
    if manifest.save is None or manifest.shape is None:
        raise ProtocolError(f"{MANIFEST_NAME}: complete, but without save and shape")
    fault = _tags_fault(manifest.save, manifest.shape, manifest.tags)
    if fault:
        raise ProtocolError(f"{MANIFEST_NAME}: {fault}")
    return manifest


def documents_to_read(names: Iterable[str]) -> tuple[str, ...]:
    """Say which objects of a backup's directory `judge` wants as text.

    The two JSON files; and every `.meta` where neither is there, since then it may be a backup of Google's.
    """
    found = set(names)
    own = tuple(name for name in (ORDER_NAME, MANIFEST_NAME) if name in found)
    return own or tuple(sorted(name for name in found if _META.fullmatch(name)))


def judge(job: Job, name: str, blobs: Mapping[str, Blob], documents: Mapping[str, str]) -> BackupEntry:
    """Say whether a backup counts.

    Args:
        job: whose directory was listed.
        name: of the backup.
        blobs: all its objects in one listing, by their name below the backup's directory.
        documents: texts of the objects that `documents_to_read` named.

    With a manifest: it must be complete, and the same listing must show all its objects with their sizes and sums.
    With `ORDER.json` alone it never counts. With neither it is Google's: its `.meta` must cover every rank and worker
    and each name data that is there.
    """
    if MANIFEST_NAME in blobs:
        entry = _judge_manifest(job, name, blobs, documents)
    elif ORDER_NAME in blobs:
        entry = _judge_order(name, documents.get(ORDER_NAME, ""))
    else:
        entry = _judge_foreign(job, name, blobs, documents)
    return msgspec.structs.replace(entry, reason=quote(entry.reason))


def _judge_order(name: str, text: str) -> BackupEntry:
    if len(text) > MAX_ORDER:
        reason = f"{ORDER_NAME}: {len(text)} characters, expected at most {MAX_ORDER}"
        return BackupEntry(name=name, whole=False, reason=reason)
    return BackupEntry(name=name, whole=False, reason="ordered, not finished", order=text)


def _judge_manifest(job: Job, name: str, blobs: Mapping[str, Blob], documents: Mapping[str, str]) -> BackupEntry:
    try:
        manifest = parse_manifest(documents.get(MANIFEST_NAME, ""))
    except ProtocolError as error:
        return BackupEntry(name=name, whole=False, reason=str(error))
    if manifest.state == ABANDONED:
        left = blobs.keys() - {MANIFEST_NAME, ORDER_NAME}  # a sweep was broken off: who finds the order goes on with it
        order = documents.get(ORDER_NAME, "") if left else ""
        return BackupEntry(name=name, whole=False, reason=ABANDONED, order=order if len(order) <= MAX_ORDER else "")
    reason = _manifest_fault(job, manifest, blobs)
    return BackupEntry(name=name, whole=not reason, tags=manifest.tags, reason=reason, stamp=manifest.stamp or ZERO)


def _manifest_fault(job: Job, manifest: Manifest, blobs: Mapping[str, Blob]) -> str:
    for tag in manifest.tags:
        if tag.job != job:
            return f"{tag.name} is of job {tag.job}, expected {job}"
        if meta_name(tag) not in manifest.objects:
            return f"the manifest lacks {meta_name(tag)}"
        if tree_name(tag.address) not in manifest.objects:
            return f"the manifest lacks {tree_name(tag.address)}"
    for object_name, mark in manifest.objects.items():
        blob = blobs.get(object_name)
        if blob is None:
            return f"{object_name} is missing"
        if blob.size != mark.size:
            return f"{object_name}: expected {mark.size} bytes, found {blob.size}"
        if blob.crc32c and mark.crc32c and blob.crc32c != mark.crc32c:
            return f"{object_name}: expected crc32c {mark.crc32c}, found {blob.crc32c}"
    return ""


def _judge_foreign(job: Job, name: str, blobs: Mapping[str, Blob], documents: Mapping[str, str]) -> BackupEntry:
    sizes = _data_sizes(blobs)
    found: dict[ShardKey, tuple[Step, Address]] = {}
    for object_name in sorted(blobs):
        match = _META.fullmatch(object_name)
        if match is None:
            continue
        if match["job"] != job:
            return BackupEntry(name=name, whole=False, reason=f"{object_name} is of another job")
        address = documents.get(object_name, "").strip()
        if not is_address(address):
            return BackupEntry(name=name, whole=False, reason=f"{object_name} holds no address")
        if address not in sizes:
            return BackupEntry(name=name, whole=False, reason=f"{object_name} names {address:.12}…, which is missing")
        key = ShardKey(Rank(int(match["rank"])), Worker(int(match["worker"])))
        if sizes[address] > _MOST_NUMBER:
            return BackupEntry(name=name, whole=False, reason=f"{object_name} names {sizes[address]} bytes of data")
        if max(key.rank, key.worker) > _MOST_PLACE or int(match["step"]) > _MOST_NUMBER:
            return BackupEntry(name=name, whole=False, reason=f"{object_name} is of an impossible step, rank or worker")
        found[key] = (Step(int(match["step"])), Address(address))
    if not found:
        return BackupEntry(name=name, whole=False, reason="holds no .meta")
    steps = {step for step, _ in found.values()}
    if len(steps) > 1:
        return BackupEntry(name=name, whole=False, reason=f"mixes the steps {min(steps)} and {max(steps)}")
    shape = Shape(max(key.rank for key in found) + 1, max(key.worker for key in found) + 1, 1, "")
    save = Save(Epoch(0), steps.pop())
    tags = tuple(Tag(job, save, shape, key, address, sizes[address]) for key, (_, address) in sorted(found.items()))
    reason = _tags_fault(save, shape, tags)
    return BackupEntry(name=name, whole=not reason, tags=tags, reason=reason)


def _tags_fault(save: Save, shape: Shape, tags: Iterable[Tag]) -> str:
    """Say which shard of the shape lacks a tag, or which tag is out of place; empty when all is well."""
    if not (shape.nodes > 0 and shape.workers > 0 and shape.nodes * shape.workers <= _MOST_SHARDS):
        return f"impossible shape {shape}"
    have: set[ShardKey] = set()
    for tag in tags:
        if tag.save != save or tag.shape != shape:
            return f"{tag.name} is of save {tag.save} ({tag.shape}), expected {save} ({shape})"
        if not is_address(tag.address):
            return f"{tag.name} holds no address"
        have.add(tag.key)
    missing = [key for key in shards_of(shape) if key not in have]
    if missing:
        return f"lacks {missing[0]}" + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
    return ""


def _data_sizes(blobs: Mapping[str, Blob]) -> dict[str, int]:
    """Bytes below each `<address>.data`."""
    sizes: dict[str, int] = {}
    for object_name, blob in blobs.items():
        top = object_name.partition("/")[0]
        if top.endswith(".data"):
            address = top.removesuffix(".data")
            sizes[address] = sizes.get(address, 0) + blob.size
    return sizes


def _parse(text: str | bytes, kind: type[Document], name: str) -> Document:
    raw = text.encode(errors="replace") if isinstance(text, str) else text
    if len(raw) > MAX_DOCUMENT:
        raise ProtocolError(f"{name}: {len(raw)} bytes, expected at most {MAX_DOCUMENT}")
    try:
        return msgspec.json.decode(raw, type=kind)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"{name}: {quote(str(error)) or type(error).__name__}") from error
