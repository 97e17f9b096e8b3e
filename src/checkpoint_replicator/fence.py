"""Stamps: numbers that never go back, and the rule that an older one changes nothing."""

import re
from functools import lru_cache
from typing import Final

import msgspec

from checkpoint_replicator.ids import Epoch, Number, Token

__all__ = ["ZERO", "Stamp", "parse_stamp"]

_TEXT: Final = re.compile(r"[0-9]{1,16}\.[0-9]{1,16}\.[0-9]{1,16}")


class Stamp(msgspec.Struct, frozen=True, order=True):
    """(token, epoch, number): stands on every decision; a later decision has a higher stamp.

    The token is the lease's growing number, the epoch the rendezvous it belongs to, the number counts decisions.
    """

    token: Token
    epoch: Epoch
    number: Number

    def __str__(self) -> str:
        return f"{self.token}.{self.epoch}.{self.number}"


ZERO = Stamp(0, Epoch(0), 0)


@lru_cache(maxsize=64)
def parse_stamp(text: str) -> Stamp:
    """Read `token.epoch.number`; the fence and the records of a job say the same few again and again.

    Raises:
        ValueError: the text has another form.
    """
    if _TEXT.fullmatch(text) is None:
        raise ValueError(f"expected token.epoch.number, found {text[:60]!r}")
    token, epoch, number = map(int, text.split("."))
    return msgspec.convert({"token": token, "epoch": epoch, "number": number}, Stamp)
