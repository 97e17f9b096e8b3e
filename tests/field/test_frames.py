"""Rows about what strangers send: frames as they come from a socket, before any machine sees them."""

import json

import msgpack
import pytest

from checkpoint_replicator.errors import ProtocolError
from checkpoint_replicator.ids import Host, Incarnation, Job
from checkpoint_replicator.messages import Envelope, NodeReport, Party, Service
from checkpoint_replicator.wire import decode, encode

FIRST = b"ckpt/1 NodeReport"
PARTY = Party(host=Host("a"), service=Service.WATCHER, incarnation=Incarnation("i"))
GOOD = Envelope(sender=PARTY, receiver=PARTY, job=Job("j"), message=NodeReport(version=1))


def raw() -> dict[str, object]:
    """The good message, taken apart."""
    value: dict[str, object] = msgpack.unpackb(encode(GOOD)[1])
    return value


def refused(*frames: bytes) -> str:
    with pytest.raises(ProtocolError) as found:
        decode(frames)
    return str(found.value)


def test_the_good_message_is_one() -> None:
    assert decode([FIRST, msgpack.packb(raw())])[0] == GOOD


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [b"{}"],
        [b"", b"{}"],
        [b"{}", b"{}", b"{}"],
        [b"GET / HTTP/1.1\r\n\r\n"],
        [FIRST, b""],
        [FIRST, b"\xff\xfe"],
        [FIRST, b"[" * 100_000],
        [FIRST, b"\x91" * 100_000],
        [FIRST, b"\xdd\xff\xff\xff\xff"],
        [FIRST, b"\xc6\xff\xff\xff\xff"],
        [b"ckpt/2 NodeReport", b""],
        [FIRST, bytes(33 << 20)],
        [FIRST, b"\xc0", *[b""] * 5000],
    ],
    ids=lambda frames: f"{len(frames)} frames, {sum(map(len, frames))} bytes",
)
def test_fault_37_what_is_no_message_of_ours_is_refused_with_a_reason(frames: list[bytes]) -> None:
    """One such message ended the coordinator there."""
    assert refused(*frames)


@pytest.mark.parametrize(
    "value",
    [
        [],
        [1, 2, 3],
        None,
        7,
        "restore",
        json.dumps(["list"]),
        {},
        {"request": "restore"},
        {**raw(), "message": []},
        {**raw(), "message": {"type": "Restore"}},
        {**raw(), "message": {"version": 1}},
    ],
    ids=repr,
)
def test_fault_38_well_formed_values_of_another_kind_are_refused(value: object) -> None:
    assert refused(FIRST, msgpack.packb(value)).startswith("NodeReport: ")


@pytest.mark.parametrize("rank", [-1, 1 << 63, 1.5, "0", [0], {}])
def test_fault_38_a_rank_that_is_none_is_refused(rank: object) -> None:
    message = raw()["message"]
    assert isinstance(message, dict)
    says = ""
    try:
        decode([FIRST, msgpack.packb({**raw(), "message": {**message, "rank": rank}})])
    except ProtocolError as error:
        says = str(error)
    assert "rank" in says or (isinstance(rank, int) and rank < 0)  # a number out of range is struck by the coordinator


@pytest.mark.parametrize("key", ["sender", "receiver", "job", "message"])
def test_fault_41_a_message_without_a_key_is_refused_by_its_name(key: str) -> None:
    assert key in refused(FIRST, msgpack.packb({name: value for name, value in raw().items() if name != key}))


WRONG = {"version": "1", "session": [], "held": {"a": 1}, "restore": 5, "faults": [[]], "obeyed": "1", "complete": 3}


@pytest.mark.parametrize("key", WRONG)
def test_fault_41_a_field_of_a_wrong_shape_is_refused_by_its_path(key: str) -> None:
    message = raw()["message"]
    assert isinstance(message, dict)
    says = refused(FIRST, msgpack.packb({**raw(), "message": {**message, key: WRONG[key]}}))
    assert f"$.message.{key}" in says
