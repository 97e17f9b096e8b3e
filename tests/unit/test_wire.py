import os
import tracemalloc

import msgpack
import pytest

from checkpoint_replicator import wire
from checkpoint_replicator.errors import ProtocolError
from checkpoint_replicator.ids import Address, Host, Incarnation
from checkpoint_replicator.messages import NotYet, Stored, Want
from checkpoint_replicator.records import Peer
from checkpoint_replicator.wire import decode, encode
from support.factories import envelope

PEER = Peer(host=Host("a"), incarnation=Incarnation("1"), control="tcp://127.0.0.1:1", leaves=())


def header(**changes: object) -> bytes:
    raw = msgpack.unpackb(encode(envelope())[1])
    raw.update(changes)
    packed: bytes = msgpack.packb(raw)
    return packed


def test_a_message_comes_back_as_it_was_with_views_of_its_body() -> None:
    body = bytearray(b"leaf")
    found, views = decode([*encode(envelope()), memoryview(body), b""])
    assert found == envelope()
    assert [bytes(view) for view in views] == [b"leaf", b""]
    body[0:1] = b"L"
    assert bytes(views[0]) == b"Leaf"


def test_the_first_frame_can_be_read_by_people() -> None:
    assert encode(envelope())[0] == b"ckpt/1 Leaves"


def test_unknown_fields_are_ignored() -> None:
    assert decode([b"ckpt/1 Leaves", header(colour="red")])[0] == envelope()


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ([], "expected at least 2 frames, found 0"),
        ([b"ckpt/1 Leaves"], "expected at least 2 frames, found 1"),
        ([b"GET / HTTP/1.1", b""], "expected a frame that begins with b'ckpt/', found b'GET / HT'"),
        ([b"ckpt/2 Leaves", b""], "expected protocol version 1, found b'2'"),
        ([b"ckpt/1 Leaves", b""], "Leaves: "),
        ([b"ckpt/1 Leaves", b"\xc1"], "Leaves: "),
        ([b"ckpt/1 Leaves", b"\x81\xa1\xff\x01"], "Leaves: "),
        ([b"ckpt/1 Leaves", msgpack.packb([])], "Leaves: Expected `object`, got `array`"),
        ([b"ckpt/1 Leaves", header(job=3)], r"Leaves: Expected `str`, got `int` - at `\$.job`"),
        ([b"ckpt/1 Leaves", header(job="../x")], r"Leaves: Expected `str` matching regex .* - at `\$.job`"),
        ([b"ckpt/1 Leaves", header(message={"type": "Rm"})], "Leaves: Invalid value 'Rm' - at"),
        ([b"ckpt/1 Stored", header()], "expected Stored as the first frame says, found Leaves"),
        ([b"ckpt/1 Leaves", header() + b"\x00"], "Leaves: "),
        ([b"ckpt/1 Leaves", b"\x91" * 5000], "Leaves: "),
        ([b"ckpt/1 Leaves", b"\xdf\xff\xff\xff\xff"], "Leaves: "),
        ([b"ckpt/1 " + b"\xff" * 1000, b""], "ckpt/1|xff"),
    ],
)
def test_anything_else_is_a_protocol_error_that_says_why(frames: list[bytes], message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        decode(frames)


def test_an_address_that_could_leave_its_directory_does_not_parse() -> None:
    bad = envelope(Stored(address=Address("../../etc/passwd"), tags=()))
    with pytest.raises(ProtocolError, match=r"at `\$.message.address`"):
        decode(encode(bad))


def test_a_header_over_the_limit_is_neither_sent_nor_read(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = encode(envelope())
    monkeypatch.setattr(wire, "HEADER_LIMIT", 10)
    with pytest.raises(ProtocolError, match=r"Leaves: header has .* bytes, expected at most 10"):
        decode(frames)
    with pytest.raises(ProtocolError, match=r"Leaves: header has .* bytes, expected at most 10"):
        encode(envelope())


def test_too_many_body_frames_are_refused() -> None:
    with pytest.raises(ProtocolError, match="expected at most 4096 body frames, found 4097"):
        decode([*encode(envelope()), *[b""] * 4097])


def test_a_text_that_is_no_utf8_is_spelled_out_and_not_a_reason_to_say_nothing() -> None:
    said = envelope(NotYet(address=Address("a" * 64), reason=os.fsdecode(b"shard\xe9 is missing")))
    found, _ = decode(encode(said))
    assert isinstance(found.message, NotYet)
    assert found.message.reason == "shard\\udce9 is missing"


def test_a_number_that_fits_into_no_message_is_a_protocol_error_of_the_sender() -> None:
    with pytest.raises(ProtocolError, match=r"Want: cannot be packed: "):
        encode(envelope(Want(address=Address("a" * 64), answer_to=PEER, credit=1 << 70)))


def test_a_frame_of_a_body_over_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "FRAME_LIMIT", 10)
    with pytest.raises(ProtocolError, match="expected frames of at most 10 bytes, found one of 12"):
        decode([*encode(envelope()), b"1234", b"567890123456"])


def test_a_body_over_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "BODY_LIMIT", 10)
    with pytest.raises(ProtocolError, match="expected a body of at most 10 bytes, found 12"):
        decode([*encode(envelope()), b"1234", b"5678", b"9012"])


@pytest.mark.parametrize(
    "atom", [b"\x80", b"\x90", b"\xa0", b"\xc0", b"\x00"], ids=["maps", "arrays", "texts", "nils", "zeros"]
)
@pytest.mark.parametrize("field", [b"\xa6colour", b"\xa8features", b"\xa7message"], ids=["unknown", "texts", "union"])
def test_a_header_that_unfolds_costs_little_more_than_its_own_bytes(atom: bytes, field: bytes) -> None:
    count = 1 << 20
    bomb = b"\x81" + field + b"\xdd" + count.to_bytes(4) + atom * count
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="Leaves: "):
            decode([b"ckpt/1 Leaves", bomb])
        assert (
            tracemalloc.get_traced_memory()[1] < 24 * count
        )  # a list of them takes 8 bytes each; built, a map takes 64
    finally:
        tracemalloc.stop()
