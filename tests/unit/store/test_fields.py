from typing import Any

import msgspec
import pytest

from checkpoint_replicator.errors import ProtocolError
from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Epoch, Host, Incarnation, Rank, SessionId, Step
from checkpoint_replicator.records import (
    EpochRecord,
    EpochState,
    HostRecord,
    KeepList,
    Member,
    Peer,
    RestoreRecord,
)
from checkpoint_replicator.save import Save
from checkpoint_replicator.shape import Shape
from checkpoint_replicator.store.fields import from_fields, from_json, score_text, to_fields, to_json

EPOCH = EpochRecord(
    number=Epoch(3),
    stamp=Stamp(7, Epoch(3), 12),
    state=EpochState.GATHERING,
    reason='rank 2 is silent: "node-2"',
    shape=Shape(4, 2, 1, "pytorch"),
    members=(Member(rank=Rank(0), host=Host("node-0"), session=SessionId("s0")),),
    refused={"s9": "why"},
)


def test_people_read_text_numbers_stamps_and_saves_as_they_are() -> None:
    fields = to_fields(EPOCH)
    assert fields["number"] == "3"
    assert fields["stamp"] == "7.3.12"
    assert fields["state"] == "gathering"
    assert fields["reason"] == 'rank 2 is silent: "node-2"'
    assert fields["released"] == "false"
    assert fields["shape"] == '{"nodes":4,"workers":2,"d":1,"framework":"pytorch"}'
    assert to_fields(KeepList(stamp=EPOCH.stamp, upto=Save(Epoch(1), Step(30))))["upto"] == "1.30"


@pytest.mark.parametrize(
    "record",
    [
        EPOCH,
        EpochRecord(number=Epoch(1), stamp=Stamp(1, Epoch(1), 1), state=EpochState.IDLE),
        KeepList(stamp=EPOCH.stamp, keep=(Save(Epoch(1), Step(0)),)),
        HostRecord(host=Host("h"), incarnation=Incarnation("i")),
        HostRecord(
            host=Host("123"),
            incarnation=Incarnation("null"),
            transfer=Peer(host=Host("h"), incarnation=Incarnation("t"), control="tcp://h:1", leaves=()),
            jobs=("true",),
        ),
        Stamp(1, Epoch(2), 3),
    ],
)
def test_a_record_comes_back_as_it_went_in(record: msgspec.Struct) -> None:
    assert from_fields(type(record), to_fields(record), "key") == record


def test_what_is_none_is_left_out() -> None:
    assert "upto" not in to_fields(KeepList(stamp=EPOCH.stamp))


def test_unknown_fields_are_ignored() -> None:
    assert from_fields(EpochRecord, {**to_fields(EPOCH), "new": "x"}, "key") == EPOCH


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"number": "three"}, "field number"),
        ({"number": "3.5"}, "field number"),
        ({"stamp": "1.2"}, "field stamp"),
        ({"state": "dancing"}, "field state"),
        ({"shape": "[]"}, "field shape"),
        ({"members": "[" * 5000}, "field members"),
        ({"released": "yes"}, "field released"),
    ],
)
def test_a_bad_field_is_named_with_its_key(change: dict[str, str], names: str) -> None:
    with pytest.raises(ProtocolError, match=f"ckpt:x: {names}"):
        from_fields(EpochRecord, to_fields(EPOCH) | change, "ckpt:x")


def test_a_missing_field_is_named_with_those_that_are_there() -> None:
    with pytest.raises(ProtocolError, match="ckpt:x: expected field number, found only a, b"):
        from_fields(EpochRecord, {"b": "", "a": ""}, "ckpt:x")


@pytest.mark.parametrize("text", ["", "null", "{", "[]", '{"stamp":1}', "\ud800"])
def test_json_that_does_not_parse_is_named_with_its_key(text: Any) -> None:
    with pytest.raises(ProtocolError, match="ckpt:x: expected JSON of RestoreRecord"):
        from_json(RestoreRecord, text, "ckpt:x")


def test_json_comes_back_as_it_went_in() -> None:
    assert from_json(Shape, to_json(Shape(1, 1, 1, "pytorch")), "key") == Shape(1, 1, 1, "pytorch")


@pytest.mark.parametrize(("score", "text"), [(1.0, "1"), (0.1, "0.1"), (-3.5, "-3.5"), (1e22, "1e+22")])
def test_a_score_is_told_as_its_shortest_text(score: float, text: str) -> None:
    assert score_text(score) == text
