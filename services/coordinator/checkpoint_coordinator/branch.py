"""A forced restore begins a new line of saves: when `restore.version` still counts, and what the line leaves behind.

`restore.version` counts until a save of the new line is whole, an order by command for one release. With the first
verified backup of the new line the file is removed, and the backups that people went back behind become superseded.
"""

from checkpoint_coordinator.restore import Facts, choose
from checkpoint_replicator.backup import is_backup_name
from checkpoint_replicator.ids import Epoch
from checkpoint_replicator.records import Outcome, RestoreRecord
from checkpoint_replicator.wishes import BY_FILE, Branch, Forced

__all__ = ["begun", "file_order"]


def begun(record: RestoreRecord, epoch: Epoch, before: Branch | None) -> Branch | None:
    """Return the line that goes on after this release.

    A release of what people went back behind ends the line: the job goes on where it was before.
    """
    if record.forced:
        branch = Branch(epoch=epoch, save=record.save, backup=record.backup, by=record.forced)
        same = before is not None and (before.save, before.by) == (branch.save, branch.by)
        return before if same else branch
    if before is not None and record.save is not None and before.outdid(record.save):
        return None
    return before


def file_order(text: str | None, branch: Branch | None, facts: Facts) -> tuple[Forced | None, str]:
    """Return what `restore.version` orders now, and why it cannot be understood.

    Args:
        text: what stands in it; None: nobody could look, and what it ordered before still counts.
        branch: the line that stands.
        facts: what the decision looks at.
    """
    if text is None:
        name = branch.backup or "" if branch is not None and branch.by == BY_FILE else ""
    else:
        name = text.strip()
    if not name:
        return None, ""
    if not is_backup_name(name):
        return None, f"restore.version: expected a backup's name (YYYY-MM-DD_HH-MM), found {name[:80]!r}"
    if branch is not None and branch.by == BY_FILE and branch.backup == name:
        newest = choose(facts)
        if newest.outcome is Outcome.RESTORE and newest.save is not None and branch.bears(newest.save):
            return None, ""  # a save of the new line is whole: the order is fulfilled
    return Forced(backup=name), ""
