from typing import get_args

import msgspec
import pytest

from checkpoint_replicator import messages
from checkpoint_replicator.ids import Host, Job
from checkpoint_replicator.messages import Envelope, Message, NodeReport, Party, Service

KINDS = get_args(Message)


def test_the_union_holds_every_tagged_struct() -> None:
    tagged = {
        value
        for value in vars(messages).values()
        if isinstance(value, type) and issubclass(value, messages.Tagged) and value is not messages.Tagged
    }
    assert tagged == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_the_type_on_the_wire_is_the_class_name(kind: type[msgspec.Struct]) -> None:
    assert kind.__struct_config__.tag == kind.__name__
    assert kind.__struct_config__.tag_field == "type"
    assert kind.__struct_config__.frozen


def test_unknown_fields_of_a_newer_sender_are_ignored() -> None:
    envelope = Envelope(
        sender=Party(host=Host("a"), service=Service.WATCHER),
        receiver=Party(host=Host("b"), service=Service.COORDINATOR),
        job=Job("j"),
        message=NodeReport(version=3),
    )
    raw = msgspec.to_builtins(envelope, builtin_types=(bytes,))
    raw["message"]["invented_later"] = 1
    assert msgspec.convert(raw, Envelope, builtin_types=(bytes,)) == envelope
