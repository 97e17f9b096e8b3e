"""Where tests end an uploader: every effect of both its machines, with the most changes made. See `failpoint`."""

from typing import Final

from checkpoint_replicator.failpoint import numbered

__all__ = ["CHANGES", "POINTS"]

CHANGES: Final[dict[str, int | None]] = {
    "Begin list": 1,
    "Begin reserve": 1,
    "Begin upload": 4,
    "Begin seal": 2,
    "Begin manifest": 1,
    "Begin abandon": 11,
    "Begin prune": 12,
    "Begin unforce": 1,
    "Cancel": None,
    "Report": None,
    "Quit": None,
    "OpenShard": 1,
    "ReadLeaves": 1,
    "CloseShard": None,
    "SendTree": None,
    "SayNotYet": None,
}
POINTS: Final = numbered(CHANGES)
