"""A PUSH that keeps what it is given, and is full when told."""

from checkpoint_replicator.bus import Body
from checkpoint_replicator.messages import Envelope, Message

__all__ = ["RecordingSender"]


class RecordingSender:
    """Use in place of a bus' sender."""

    def __init__(self) -> None:
        self.sent: list[tuple[Message, tuple[bytes, ...]]] = []
        self.envelopes: list[Envelope] = []
        self.full = False
        self.connected = True

    def send(self, envelope: Envelope, body: Body = ()) -> bool:
        if self.full:
            return False
        self.envelopes.append(envelope)
        self.sent.append((envelope.message, tuple(bytes(frame) for frame in body)))
        return True

    def close(self) -> None:
        self.connected = False
