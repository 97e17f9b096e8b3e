"""What must happen at least once over all seeds, or they prove less than they say."""

from typing import Final

__all__ = ["SOMETIMES"]

SOMETIMES: Final = (
    "backup completed",
    "copy spoiled",
    "corrupt copy found",
    "corrupt copy replaced",
    "decided lost",
    "decided none",
    "decided restore",
    "epoch_abandoned",
    "epoch_adopted",
    "fence_raised",
    "index_rebuilt",
    "leaf garbled on the way",
    "message lost",
    "more was lost than is held",
    "rank moved",
    "redis flushed",
    "redis went back",
    "replaced node restored",
    "restored from backup",
    "restored from own",
    "restored from peer",
    "save committed",
    "saves dropped",
    "session_joined",
    "session_refused",
    "stale_view_refused",
    "take-over while training",
    "write refused",
)
