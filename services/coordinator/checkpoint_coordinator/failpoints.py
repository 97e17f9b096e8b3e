"""Where tests end a coordinator: every effect, and every kind of decision that it writes. See `failpoint`."""

from typing import Final

from checkpoint_coordinator.backups import Phase
from checkpoint_coordinator.commit import SaveState
from checkpoint_coordinator.ledger import DECISION, FAMILIES, OURS
from checkpoint_replicator.failpoint import numbered
from checkpoint_replicator.records import EpochState
from checkpoint_replicator.session import SessionState

__all__ = ["CHANGES", "KEYS", "POINTS"]

KEYS: Final = (*sorted(OURS), *(family.removesuffix(":") for family in (*FAMILIES, DECISION)), "events")
STATES: Final = {"epoch": EpochState, "step": SaveState, "backup": Phase, "node": SessionState}
CHANGES: Final[dict[str, int | None]] = {
    "AcquireLease": 1,
    "RenewLease": 1,
    "ReleaseLease": 1,
    "ReadSnapshot": 1,
    "ReadHosts": 1,
    "RemoveJob": 1,
    "Publish": None,
    "Note": None,
    "Write event": 1,
    **{f"Write {key}": 1 for key in KEYS if key != "events"},
    **{f"Write -{key}": 1 for key in KEYS},
    **{f"Write {key}={state}": 1 for key, states in STATES.items() for state in states},
}
"""A write is one script at Redis, so it is done or not; `=` names the state that it writes, `-` that a key goes."""
POINTS: Final = numbered(CHANGES)
