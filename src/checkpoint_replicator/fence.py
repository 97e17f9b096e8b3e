"""Stamps: numbers that never go back, and the rule that an older one changes nothing."""

import msgspec

from checkpoint_replicator.ids import Epoch

__all__ = ["ZERO", "Stamp", "parse_stamp"]


class Stamp(msgspec.Struct, frozen=True, order=True):
    """(token, epoch, number): stands on every decision; a later decision has a higher stamp.

    The token is the lease's growing number, the epoch the rendezvous it belongs to, the number counts decisions.
    """

    token: int
    epoch: Epoch
    number: int

    def __str__(self) -> str:
        return f"{self.token}.{self.epoch}.{self.number}"


ZERO = Stamp(0, Epoch(0), 0)


def parse_stamp(text: str) -> Stamp:
    """Read `token.epoch.number`.

    Raises:
        ValueError: the text has another form.
    """
    token, epoch, number = text.split(".")
    return Stamp(int(token), Epoch(int(epoch)), int(number))
