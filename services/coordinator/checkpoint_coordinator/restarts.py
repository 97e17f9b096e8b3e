"""Is a job restored again and again without getting on? Pure.

The offered save never changes by itself: people are told which older ones there are, and the command to take one.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from checkpoint_coordinator.inventory import Inventory
from checkpoint_coordinator.restore import ordered_fault
from checkpoint_replicator.ids import Epoch, Job
from checkpoint_replicator.save import Save
from checkpoint_replicator.wishes import Forced

__all__ = ["LOOP", "loop_text", "older", "restores"]

LOOP: Final = 3
"""So many restores of one save without a newer commit are a loop."""
MOST_OLDER: Final = 8


def restores(save: Save, epoch: Epoch, decisions: Iterable[tuple[int, Mapping[str, str]]]) -> int:
    """Count how often this save was restored in a row, this epoch included.

    Epochs that were abandoned before their release do not count: nobody trained on from there.

    Args:
        save: what is decided in this epoch.
        epoch: its number.
        decisions: `…:restore:<epoch>` of earlier epochs, oldest first.
    """
    count = 1
    for number, fields in sorted(decisions, key=lambda pair: pair[0], reverse=True):
        if number >= epoch or fields.get("released") != "yes":
            continue
        if fields.get("save") != str(save):
            break
        count += 1
    return count


def older(save: Save, stock: Inventory) -> tuple[tuple[Save, str], ...]:
    """Return the older saves that are whole, newest first, each with a backup that holds it or an empty text."""
    found: dict[Save, str] = {}
    for one in stock:
        if one.line.save < save and one.line.save not in found and not ordered_fault(Forced(save=one.line.save), stock):
            names = {name for names in one.backups.values() for name in names}
            found[one.line.save] = max(names, default="")
    return tuple(sorted(found.items(), reverse=True))[:MOST_OLDER]


def loop_text(job: Job, save: Save, count: int, choices: Sequence[tuple[Save, str]]) -> str:
    """Say what goes round, and the way out."""
    text = f"save {save} was restored {count} times without a newer commit"
    if not choices:
        return f"{text}; no older one is whole"
    names = ", ".join(f"{one} (backup {name})" if name else str(one) for one, name in choices)
    command = f"checkpoint-replicator restore --job {job} --save {choices[0][0]}"
    return f"{text}; older ones: {names}; `{command}` takes one"
