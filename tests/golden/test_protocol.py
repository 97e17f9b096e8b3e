"""Frames recorded for each protocol version still mean what they meant.

A new field with a default leaves the recordings as they are: that is the compatibility rule. A recording is never
changed; `RECORD=1 pytest tests/golden` adds the ones that are missing.
"""

import os
from pathlib import Path
from typing import get_args

import msgpack
import pytest

from checkpoint_replicator.messages import PROTOCOL_VERSION, Message
from checkpoint_replicator.wire import decode, encode
from support.factories import envelope
from support.golden_messages import MESSAGES

FOLDER = Path(__file__).parent / f"protocol-{PROTOCOL_VERSION}"


def recording(message: Message) -> Path:
    return FOLDER / f"{type(message).__name__}.hex"


def read(path: Path) -> list[bytes]:
    return [bytes.fromhex(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_recorded_message_means_what_it_meant(message: Message) -> None:
    path = recording(message)
    if os.environ.get("RECORD") and not path.exists():
        FOLDER.mkdir(exist_ok=True)
        path.write_text("".join(frame.hex() + "\n" for frame in encode(envelope(message))))
    assert decode(read(path))[0] == envelope(message)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_what_is_sent_today_is_what_was_recorded(message: Message) -> None:
    first, header = read(recording(message))
    sent = encode(envelope(message))
    assert sent[0] == first
    assert msgpack.unpackb(sent[1]) == msgpack.unpackb(header)


def test_every_message_is_recorded() -> None:
    assert {type(message) for message in MESSAGES} == set(get_args(Message))
    assert {path.stem for path in FOLDER.glob("*.hex")} == {kind.__name__ for kind in get_args(Message)}
