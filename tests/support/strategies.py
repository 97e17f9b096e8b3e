"""Hypothesis strategies for our structs, made from their types as msgspec sees them."""

from enum import Enum
from functools import cache
from typing import Any, TypeVar

import msgspec
from hypothesis import strategies as st

from checkpoint_replicator.messages import Envelope

T = TypeVar("T")


def struct(kind: type[T]) -> st.SearchStrategy[T]:
    """Return instances of a struct, every optional field with and without a value."""
    made: st.SearchStrategy[T] = _of(msgspec.inspect.type_info(kind))
    return made


@cache
def _struct(kind: type) -> st.SearchStrategy[Any]:
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    required = {field.name: _of(field.type) for field in info.fields if field.required}
    optional = {field.name: _of(field.type) for field in info.fields if not field.required}
    return st.fixed_dictionaries(required, optional=optional).map(lambda values: kind(**values))


def _of(info: Any) -> st.SearchStrategy[Any]:
    inspect = msgspec.inspect
    match info:
        case inspect.StructType(cls=kind):
            return st.deferred(lambda: _struct(kind))
        case inspect.UnionType(types=types):
            return st.one_of(*(_of(each) for each in types))
        case inspect.EnumType(cls=kind):
            assert issubclass(kind, Enum)
            return st.sampled_from(list(kind))
        case inspect.StrType(pattern=str(pattern)):
            return st.from_regex(pattern)
        case inspect.StrType():
            return st.text(max_size=12)
        case inspect.IntType(gt=None, ge=low, lt=high, le=top):
            largest = top if top is not None else 2**63 - 1 if high is None else high - 1
            return st.integers(0 if low is None else low, largest)
        case inspect.FloatType(ge=low, lt=high):
            return st.floats(low, high, allow_nan=False, exclude_max=high is not None)
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.VarTupleType(item_type=item):
            return st.lists(_of(item), max_size=3).map(tuple)
        case inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(_of(key), _of(value), max_size=3)
        case _:
            raise NotImplementedError(f"no strategy for {info}")


envelopes: st.SearchStrategy[Envelope] = struct(Envelope)
