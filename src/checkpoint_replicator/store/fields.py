"""A record as the fields of a Redis hash, and back.

People read these with `redis-cli`, so text, numbers, stamps (`token.epoch.number`) and saves (`epoch.step`) stand as
they are; whatever has parts is JSON; what is None is left out. Readers ignore fields that they do not know.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect, structs

from checkpoint_replicator.errors import ProtocolError
from checkpoint_replicator.fence import Stamp, parse_stamp
from checkpoint_replicator.save import Save, parse_save

__all__ = ["from_fields", "from_json", "score_text", "to_fields", "to_json"]

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)

_FAULTS: Final = (ValueError, TypeError, RecursionError, msgspec.MsgspecError)
_TEXTS: Final[dict[type, Callable[[str], object]]] = {Stamp: parse_stamp, Save: parse_save}


def to_json(value: object) -> str:
    """Return the value as one line of JSON."""
    return msgspec.json.encode(value).decode()


def from_json(kind: type[T], text: str, key: str) -> T:
    """Read JSON of this type.

    Raises:
        ProtocolError: it does not parse; names the key.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except _FAULTS as error:
        raise ProtocolError(f"{key}: expected JSON of {kind.__name__}, found {text[:80]!r} ({error})") from error


def to_fields(record: msgspec.Struct) -> dict[str, str]:
    """Return the record's fields as texts."""
    values = {name: getattr(record, name) for name in record.__struct_fields__}
    return {name: _text(value) for name, value in values.items() if value is not None}


def from_fields(kind: type[S], fields: Mapping[str, str], key: str) -> S:
    """Read a record of this type from a hash.

    Raises:
        ProtocolError: a field is missing or does not parse; names the key and the field.
    """
    values: dict[str, Any] = {}
    for name, (required, parse) in _parsers(kind).items():
        text = fields.get(name)
        if text is None:
            if required:
                raise ProtocolError(f"{key}: expected field {name}, found only {', '.join(sorted(fields)) or 'none'}")
            continue
        try:
            values[name] = parse(text)
        except _FAULTS as error:
            raise ProtocolError(f"{key}: field {name} is {text[:80]!r} ({error})") from error
    return kind(**values)


def score_text(score: float) -> str:
    """Return a score of a sorted set as a Snapshot tells it: the shortest text, whole numbers without a fraction."""
    return repr(score).removesuffix(".0")


def _text(value: object) -> str:
    if isinstance(value, str):  # a StrEnum too
        return str(value)
    return str(value) if type(value) in _TEXTS else to_json(value)


@cache
def _parsers(kind: type[msgspec.Struct]) -> dict[str, tuple[bool, Callable[[str], object]]]:
    """Return for each field whether it must be there, and what reads it."""
    return {field.name: (field.required, _parser(field.type)) for field in structs.fields(kind)}


def _parser(annotation: Any) -> Callable[[str], object]:
    info: inspect.Type = inspect.type_info(annotation)
    if isinstance(info, inspect.UnionType):
        (info, *_) = (part for part in info.types if not isinstance(part, inspect.NoneType))
    match info:
        case inspect.StrType(min_length=None, max_length=None, pattern=None):
            return str
        case inspect.StrType() | inspect.EnumType():
            return lambda text: msgspec.convert(text, annotation)
        case inspect.StructType(cls=cls) if cls in _TEXTS:
            return _TEXTS[cls]
        case _:
            decoder = msgspec.json.Decoder(annotation)
            return decoder.decode
