"""Where tests end a coordinator: every effect, and every kind of decision that it writes. See `failpoint`."""

from typing import Final

from checkpoint_replicator.failpoint import numbered

__all__ = ["CHANGES", "POINTS"]

CHANGES: Final[dict[str, int | None]] = {
    "AcquireLease": 1,
    "RenewLease": 1,
    "ReleaseLease": 1,
    "ReadSnapshot": 1,
    "ReadHosts": 1,
    "RemoveJob": 1,
    "Publish": None,
    "Note": None,
    "Write epoch": 1,
    "Write epoch=gathering": 1,
    "Write epoch=deciding": 1,
    "Write epoch=restoring": 1,
    "Write epoch=running": 1,
    "Write epoch=idle": 1,
    "Write restore": 1,
    "Write -restore": 1,
    "Write keep": 1,
    "Write orders": 1,
    "Write -orders": 1,
    "Write step": 1,
    "Write step=saving": 1,
    "Write step=replicating": 1,
    "Write step=committed": 1,
    "Write step=incomplete": 1,
    "Write step=mutated": 1,
    "Write step=skipped": 1,
    "Write step=abandoned": 1,
    "Write -step": 1,
    "Write steps": 1,
    "Write backup": 1,
    "Write backup=listing": 1,
    "Write backup=reserving": 1,
    "Write backup=uploading": 1,
    "Write backup=sealing": 1,
    "Write backup=closing": 1,
    "Write backup=complete": 1,
    "Write backup=abandoned": 1,
    "Write -backup": 1,
    "Write backups": 1,
    "Write lastbackup": 1,
    "Write node": 1,
    "Write node=open": 1,
    "Write node=accepted": 1,
    "Write node=running": 1,
    "Write node=closed": 1,
    "Write -node": 1,
    "Write alive": 1,
    "Write -alive": 1,
    "Write inventory": 1,
    "Write -inventory": 1,
    "Write event": 1,
}
"""A write is one script at Redis, so it is done or not; `=` names the state that it writes, `-` that a key goes."""
POINTS: Final = numbered(CHANGES)
