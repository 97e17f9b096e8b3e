"""Where tests end a transfer: every effect, with the most changes that performing it makes. See `failpoint`."""

from typing import Final

from checkpoint_replicator.failpoint import numbered

__all__ = ["CHANGES", "POINTS"]

CHANGES: Final[dict[str, int | None]] = {
    "OpenPartial": 16,
    "StoreLeaves": 6,
    "NameShard": 9,
    "OpenShard": 1,
    "ServeLeaves": 1,
    "SendOffer": 1,
    "CheckShard": 1,
    "Close": 1,
    "TrimPartials": 2,
    "Tell": None,
    "TellUploader": None,
    "ForgetPeer": None,
    "Report": None,
}
POINTS: Final = numbered(CHANGES)
