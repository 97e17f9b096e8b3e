"""Samples of messages, for tests that do not care which."""

from checkpoint_replicator.ids import Address, Host, Incarnation, Job
from checkpoint_replicator.messages import Envelope, Leaves, Message, Party, Run, Service

ADDRESS = Address("a" * 64)
LEAVES = Leaves(address=ADDRESS, runs=(Run(first=0, count=2),))


def envelope(message: Message = LEAVES) -> Envelope:
    """Wrap a message: transfer on host a to transfer on host b."""
    return Envelope(
        sender=Party(host=Host("a"), service=Service.TRANSFER, incarnation=Incarnation("1")),
        receiver=Party(host=Host("b"), service=Service.TRANSFER),
        job=Job("job"),
        message=message,
    )
