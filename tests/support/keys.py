"""Does `docs/storage.md` tell what stands in Redis? Every key, its type, and every field of the hashes."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import redis

from support.memory_store import Value

DOCUMENT = Path(__file__).parents[2] / "docs" / "storage.md"

HEADING = re.compile(r"^### `(?P<key>ckpt:\S+)` · (?P<kind>string|hash|set|zset|stream)$", re.MULTILINE)
FIELD = re.compile(r"^\| `(?P<field>[^`]+)` \|", re.MULTILINE)
PLACEHOLDER = re.compile(r"<(\w+)>")
PARTS = {
    "job": r"[A-Za-z0-9][A-Za-z0-9._-]*",
    "host": r"\S+",
    "epoch": r"\d+",
    "step": r"\d+",
    "rank": r"\d+",
    "worker": r"\d+",
    "name": r"\d{4}-\d\d-\d\d_\d\d-\d\d",
    "address": r"D?[0-9a-f]{64}",
    "key": r"[a-z]+(?::\S+)?",
    "id": r"\S+",
}


class Documented(msgspec.Struct, frozen=True):
    """One key of the document: its name and type, and the names of its fields, with placeholders as `<rank>`."""

    key: str
    kind: str
    fields: tuple[str, ...]

    def tells(self, key: str) -> bool:
        return _fits(self.key, key)


def documented(text: str | None = None) -> tuple[Documented, ...]:
    """Read the document's headings and their tables of fields."""
    text = DOCUMENT.read_text() if text is None else text
    heads = list(HEADING.finditer(text))
    ends = [head.start() for head in heads[1:]] + [text.find("\n## ", heads[-1].end()) % (len(text) + 1)]
    return tuple(
        Documented(head["key"], head["kind"], tuple(FIELD.findall(text[head.end() : end])))
        for head, end in zip(heads, ends, strict=True)
    )


def undocumented(contents: Mapping[str, Value], keys: tuple[Documented, ...] | None = None) -> list[str]:
    """Say of each key what the document does not tell of it; empty: it tells all."""
    keys = documented() if keys is None else keys
    return [fault for key, value in sorted(contents.items()) for fault in _faults(key, value, keys)]


def unseen(contents: Mapping[str, Value], keys: tuple[Documented, ...] | None = None) -> list[str]:
    """Say which documented keys, and which documented fields of the others, do not occur."""
    absent: list[str] = []
    for entry in documented() if keys is None else keys:
        values = [value for key, value in contents.items() if entry.tells(key)]
        if not values:
            absent.append(entry.key)
        elif entry.kind == "hash":
            found = {str(field) for value in values for field in value}
            absent += (f"{entry.key} {name}" for name in entry.fields if not any(_fits(name, each) for each in found))
    return absent


def read(url: str) -> dict[str, Value]:
    """Return all that a server holds, as `StoreModel.contents` does."""
    client: Any  # redis-py leaves its commands without types
    with redis.Redis.from_url(url, decode_responses=True, protocol=2) as client:
        return {key: _read(client, key, client.type(key)) for key in client.scan_iter("*")}


def dump(url: str) -> dict[str, tuple[bytes, int]]:
    """Take a snapshot of all that a server holds, with the milliseconds that each key has left."""
    client: Any
    with redis.Redis.from_url(url, protocol=2) as client:
        return {key.decode(): (client.dump(key), max(0, client.pttl(key))) for key in client.scan_iter("*")}


def load(url: str, snapshot: Mapping[str, tuple[bytes, int]]) -> None:
    """Bring a snapshot back, in place of all that a server holds."""
    client: Any
    with redis.Redis.from_url(url, protocol=2) as client, client.pipeline() as pipeline:
        pipeline.flushall()
        for key, (value, left) in snapshot.items():
            pipeline.restore(key, left, value)
        pipeline.execute()


def kind_of(value: Value) -> str:
    """Return the type of a value in the words of Redis."""
    match value:
        case str():
            return "string"
        case set():
            return "set"
        case list():
            return "stream"
        case _ if value and all(isinstance(score, float) for score in value.values()):
            return "zset"
        case _:
            return "hash"


def _faults(key: str, value: Value, keys: tuple[Documented, ...]) -> Iterator[str]:
    kind = kind_of(value)
    found = [entry for entry in keys if entry.tells(key)]
    if not found:
        yield f"{key}: not in docs/storage.md"
    elif all(entry.kind != kind for entry in found):
        yield f"{key}: docs/storage.md says {found[0].kind}, found {kind}"
    elif kind == "hash":
        names = [name for entry in found for name in entry.fields]
        for field in value:
            if not any(_fits(name, str(field)) for name in names):
                yield f"{key}: field {field} is not in docs/storage.md"


def _fits(pattern: str, text: str) -> bool:
    pieces = PLACEHOLDER.split(pattern)  # text, placeholder, text, placeholder, … text
    parts = (PARTS[piece] if place % 2 else re.escape(piece) for place, piece in enumerate(pieces))
    return re.fullmatch("".join(parts), text) is not None


def _read(client: Any, key: str, kind: object) -> Value:
    def ask(*words: str) -> list[str]:
        return list(client.execute_command(*words))

    match kind:
        case "string":
            return str(client.get(key))
        case "hash":
            return {str(field): str(text) for field, text in dict(client.execute_command("HGETALL", key)).items()}
        case "set":
            return set(ask("SMEMBERS", key))
        case "zset":
            flat = ask("ZRANGE", key, "0", "-1", "WITHSCORES")
            return {member: float(score) for member, score in zip(flat[::2], flat[1::2], strict=True)}
        case "stream":
            return [dict(fields) for _, fields in client.execute_command("XRANGE", key, "-", "+")]
        case _:
            raise AssertionError(f"{key} is a {kind}")
