"""Every point of every service, the stage on whose way it lies, and those that no stage comes to, with the reason."""

import hashlib
import subprocess
from collections.abc import Iterable, Sequence
from typing import Final

import checkpoint_coordinator.failpoints
import checkpoint_transfer.failpoints
import checkpoint_uploader.failpoints
import checkpoint_watcher.failpoints
from support.house import ROOT

__all__ = ["CHOSEN", "EVERY", "REACHABLE", "UNREACHED", "choose", "stage_of"]

CHOSEN: Final = 12
"""So many crashes and sequences together run with every commit; all run at night."""
LISTS: Final = {
    "watcher": checkpoint_watcher.failpoints.POINTS,
    "transfer": checkpoint_transfer.failpoints.POINTS,
    "uploader": checkpoint_uploader.failpoints.POINTS,
    "coordinator": checkpoint_coordinator.failpoints.POINTS,
}
EVERY: Final = tuple(f"{service} {point}" for service, points in LISTS.items() for point in points)

GOING: Final = (
    *("-forgetting", "-forgotten", "-wishes", "-epoch", "-keep", "-orders", "-steps", "-backups", "-lastbackup"),
    *("-alive", "-step", "-backup", "-node", "-inventory", "-restore", "-events"),
)
"""Keys that go with a job."""
WHERE: Final = {
    "watcher": {
        "Start": "recovering a naming",
        "Sweep": "saving anew",
        "DropSaves": "saving anew",
        "NameShard": "saving anew",
        "DropClaim": "saving again",
        "AppendErrors": "saving again",
        "TakeInventory": "recovering a copy",
        "VerifyShard": "restarting",
        "Quarantine": "corrupting",
        "CleanUp": "corrupting",
        "WriteSession": "restarting",
        "RemoveYaml": "restarting",
        "WritePrerestore": "restarting",
        "WriteFailed": "misspelling",
        "PublishMarkers": "restarting",
        "Register": "restarting",
        "Follow": "handing over",
        "AdoptStrays": "losing its names",
        "ForgetJob": "forgetting",
        "DropForeign": "making room",
        "CallHelp": "cutting off",
        "Leave": "parting",
    },
    "transfer": {
        "OpenPartial": "corrupting",
        "NameShard": "replacing a node",
        "CheckShard": "rotting",
        "TellUploader": "losing all nodes",
        "TrimPartials": "trimming",
        "ForgetPeer": "stalling",
    },
    "uploader": {
        "Report": "backing up",
        "Begin list": "backing up",
        "Begin reserve": "backing up",
        "Begin upload": "backing up",
        "Begin seal": "backing up",
        "Begin manifest": "backing up",
        "Begin abandon": "leaving an order",
        "Begin unforce": "going back",
        "Cancel": "calling off",
        "OpenShard": "losing all nodes",
        "ReadLeaves": "losing all nodes",
        "SendTree": "losing all nodes",
        "SayNotYet": "asking twice",
        "CloseShard": "closing",
    },
    "coordinator": {
        "AcquireLease": "handing over",
        "ReleaseLease": "handing over",
        "ReadSnapshot": "handing over",
        "ReadHosts": "handing over",
        "Write epoch": "restarting",
        "Write epoch=deciding": "restarting",
        "Write epoch=restoring": "replacing a node",
        "Write epoch=running": "restarting",
        "Write restore": "restarting",
        "Write orders": "backing up",
        "Write backup=reserving": "backing up",
        "Write backup=uploading": "backing up",
        "Write backup=sealing": "backing up",
        "Write backup=closing": "backing up",
        "Write backup=complete": "backing up",
        "Write backups": "backing up",
        "Write lastbackup": "backing up",
        "Write node=open": "restarting",
        "Write node=running": "replacing a node",
        "Write alive": "restarting",
        "Write node": "restarting",
        "Write hold": "holding",
        "Write -hold": "holding",
        "Write wishes": "holding",
        "Write forced": "ordering",
        "Write -forced": "ordering",
        "Write branch": "ordering",
        "Write -branch": "going back",
        "Write backup=superseded": "going back",
        "Write backup=abandoned": "outgrowing",
        "Write step=incomplete": "saving late",
        "Write step=abandoned": "saving short",
        "Write epoch=gathering": "forgetting",
        "Write epoch=idle": "dozing",
        "Write step=mutated": "mutating",
        "Write step=skipped": "skipping",
        "Write node=closed": "taking back",
        "Write backup": "refusing",
        "RemoveJob": "forgetting",
        **{f"Write {key}": "forgetting" for key in ("forgetting", "forgotten", *GOING)},
    },
}
"""Effect to its stage; the others lie on the way of a save."""
ELSEWHERE: Final = {
    "transfer OpenPartial 12": "backing up",
    "transfer OpenPartial 16": "rotting",
    "watcher Start 4": "recovering a sweep",
    "watcher Start 5": "recovering a sweep",
    "watcher PublishMarkers 10": "restarting after a wish",
    "watcher ClaimSave 4": "vanishing",
    **{f"watcher DropForeign {place}": "making more room" for place in range(5, 10)},
}
"""Points that their effect comes to in another stage only."""

UNREACHED: Final = {
    "uploader Begin prune": "no coordinator orders it yet",
    "uploader Quit": "ends the process by itself, when a call to the store has hung for two minutes",
    "coordinator Write backup=listing": "a backup has no record before it has a name, and then its listing is over",
}


def effect_of(point: str) -> str:
    """Return a point without its place: its service and effect."""
    return point.rpartition(" ")[0]


REACHABLE: Final = tuple(point for point in EVERY if not {point, effect_of(point)} & UNREACHED.keys())


def stage_of(point: str) -> str:
    """Return the stage in which a process dies at this point."""
    service, _, effect = effect_of(point).partition(" ")
    return ELSEWHERE.get(point) or WHERE[service].get(effect, "saving")


def choose(names: Iterable[str], seed: str, count: int = CHOSEN) -> Sequence[str]:
    """Choose some by a seed: the same for the same seed, others for another."""
    return sorted(names, key=lambda name: hashlib.sha256(f"{seed}\0{name}".encode()).digest())[:count]


def commit() -> str:
    """Return the hash of the commit that is tested."""
    command = ["git", "rev-parse", "HEAD"]
    found = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    return found.stdout.strip() or "no commit"
