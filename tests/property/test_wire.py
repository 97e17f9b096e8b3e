"""Every message comes back as it was, and whatever is no message ends as a ProtocolError."""

from typing import get_args

import msgpack
import msgspec
from hypothesis import given
from hypothesis import strategies as st

from checkpoint_replicator.errors import ProtocolError
from checkpoint_replicator.messages import Envelope, Message
from checkpoint_replicator.wire import decode, encode
from support.strategies import envelopes, struct

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8),
    lambda below: st.lists(below, max_size=4) | st.dictionaries(st.text(max_size=8), below, max_size=4),
    max_leaves=12,
)


@given(envelopes, st.lists(st.binary(max_size=64), max_size=4))
def test_every_message_comes_back_as_it_was(envelope: Envelope, body: list[bytes]) -> None:
    found, views = decode([*encode(envelope), *body])
    assert found == envelope
    assert [bytes(view) for view in views] == body


@given(envelopes)
def test_json_says_the_same_as_the_wire(envelope: Envelope) -> None:
    assert msgspec.json.decode(msgspec.json.encode(envelope), type=Envelope) == envelope


def accepts(frames: list[bytes]) -> bool:
    try:
        decode(frames)
    except ProtocolError:
        return False
    return True


@given(st.lists(st.binary(max_size=200), max_size=5))
def test_random_frames_are_refused(frames: list[bytes]) -> None:
    assert not accepts(frames)


@given(st.sampled_from(get_args(Message)), st.binary(max_size=200))
def test_random_headers_are_refused(kind: type, header: bytes) -> None:
    assert not accepts([b"ckpt/1 " + kind.__name__.encode(), header])


@given(st.sampled_from(get_args(Message)), plain)
def test_well_formed_msgpack_of_something_else_is_refused(kind: type, value: object) -> None:
    assert not accepts([b"ckpt/1 " + kind.__name__.encode(), msgpack.packb(value)])


@given(envelopes, st.data())
def test_a_changed_header_is_a_message_or_refused_and_never_an_exception(
    envelope: Envelope, data: st.DataObject
) -> None:
    first, header = encode(envelope)
    place = data.draw(st.integers(0, len(header) - 1))
    changed = bytearray(header)
    changed[place] = data.draw(st.integers(0, 255))
    accepts([first, bytes(changed[: data.draw(st.integers(0, len(changed)))])])
    accepts([first, bytes(changed)])


@given(envelopes, plain)
def test_a_field_of_another_type_is_a_message_or_refused(envelope: Envelope, value: object) -> None:
    first, header = encode(envelope)
    raw = msgpack.unpackb(header)
    for key in raw["message"]:
        accepts([first, msgpack.packb(raw | {"message": raw["message"] | {key: value}})])


@given(struct(Envelope))
def test_the_first_frame_names_the_message(envelope: Envelope) -> None:
    assert encode(envelope)[0].split(b" ")[1].decode() == type(envelope.message).__name__
