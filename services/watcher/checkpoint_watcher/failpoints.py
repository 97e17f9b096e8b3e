"""Where tests end a watcher: every effect, with the most changes that performing it makes. See `failpoint`."""

from typing import Final

from checkpoint_replicator.failpoint import numbered

__all__ = ["CHANGES", "POINTS"]

CHANGES: Final[dict[str, int | None]] = {
    "Start": 5,
    "Sweep": 5,
    "ClaimSave": 4,
    "HashClaim": 1,
    "NameShard": 9,
    "DropClaim": 2,
    "AdoptStrays": 9,
    "TakeInventory": 2,
    "MarkCommitted": 4,
    "DropSaves": 9,
    "DropForeign": 9,
    "ForgetJob": 9,
    "VerifyShard": 1,
    "Quarantine": 5,
    "CleanUp": 3,
    "WriteSession": 4,
    "RemoveYaml": 1,
    "WritePrerestore": 2,
    "WriteFailed": 2,
    "AppendErrors": 1,
    "PublishMarkers": 10,
    "WriteFence": 2,
    "PublishStatus": 2,
    "ReadView": 1,
    "Register": 1,
    "CallHelp": 1,
    "Follow": None,
    "Leave": None,
    "SendReport": None,
    "SendTransfer": None,
    "SendUploader": None,
    "Announce": None,
}
"""`Start` and `Sweep` are no effects of the machine: what a start makes good, and the emptying of the trash."""
POINTS: Final = numbered(CHANGES)
