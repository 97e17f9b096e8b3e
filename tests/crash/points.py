"""Every point of every service, the stage on whose way it lies, and those that no stage comes to, with the reason."""

import hashlib
import subprocess
from collections.abc import Iterable, Sequence
from typing import Final

import checkpoint_coordinator.failpoints
import checkpoint_transfer.failpoints
import checkpoint_uploader.failpoints
import checkpoint_watcher.failpoints
from checkpoint_coordinator.index import BY_PEOPLE
from support.house import ROOT

__all__ = ["CHOSEN", "EVERY", "RARE", "REACHABLE", "UNREACHED", "choose", "stage_of"]

CHOSEN: Final = 12
"""So many crashes and sequences together run with every commit; all run at night."""
LISTS: Final = {
    "watcher": checkpoint_watcher.failpoints.POINTS,
    "transfer": checkpoint_transfer.failpoints.POINTS,
    "uploader": checkpoint_uploader.failpoints.POINTS,
    "coordinator": checkpoint_coordinator.failpoints.POINTS,
}
EVERY: Final = tuple(f"{service} {point}" for service, points in LISTS.items() for point in points)

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
    },
    "transfer": {
        "OpenPartial": "corrupting",
        "NameShard": "replacing a node",
        "CheckShard": "rotting",
        "TellUploader": "losing all nodes",
    },
    "uploader": {
        "Report": "backing up",
        "Begin list": "backing up",
        "Begin reserve": "backing up",
        "Begin upload": "backing up",
        "Begin seal": "backing up",
        "Begin manifest": "backing up",
        "Begin abandon": "leaving an order",
        "OpenShard": "losing all nodes",
        "ReadLeaves": "losing all nodes",
        "SendTree": "losing all nodes",
    },
    "coordinator": {
        "AcquireLease": "handing over",
        "ReleaseLease": "handing over",
        "ReadSnapshot": "handing over",
        "ReadHosts": "handing over",
        "Write epoch": "restarting",
        "Write epoch=deciding": "restarting",
        "Write epoch=restoring": "restarting",
        "Write epoch=running": "restarting",
        "Write restore": "restarting",
        "Write -orders": "handing over",
        "Write orders": "backing up",
        "Write backup=reserving": "backing up",
        "Write backup=uploading": "backing up",
        "Write backup=sealing": "backing up",
        "Write backup=closing": "backing up",
        "Write backup=complete": "backing up",
        "Write backups": "backing up",
        "Write lastbackup": "backing up",
        "Write node=open": "restarting",
        "Write node=running": "restarting",
        "Write alive": "restarting",
        "Write inventory": "restarting",
        "Write node": "restarting",
    },
}
"""Effect to its stage; the others lie on the way of a save."""
ELSEWHERE: Final = {
    "transfer OpenPartial 12": "backing up",
}
"""Points that their effect comes to in another stage only."""

SIMULATED = "needs what a small healthy cluster never has; the simulation comes to it"
FORGET = "people order it, and the job is gone then"
ORDERED = "people order it"
UNREACHED: Final = {
    "watcher PublishMarkers 10": "needs a marker's directory that was not made before",
    "watcher Start 4": "needs a trash that was not emptied before",
    "watcher Start 5": "needs a trash that was not emptied before",
    "watcher AdoptStrays": "needs data of another replicator",
    "watcher ForgetJob": FORGET,
    "watcher Leave": FORGET,
    "coordinator RemoveJob": FORGET,
    "watcher DropForeign": "needs a full ramdisk",
    "watcher CallHelp": "needs a node that reaches Redis and not its coordinator",
    "transfer TrimPartials": SIMULATED,
    "watcher ClaimSave 4": "needs the first claim of an epoch",
    "transfer ForgetPeer": SIMULATED,
    "uploader Begin unforce": "people order it: it removes their restore.version",
    "uploader Begin prune": "nobody orders it while retention is off",
    "uploader Cancel": SIMULATED,
    "uploader Quit": "ends the process by itself",
    "uploader CloseShard": "comes after a minute of idleness",
    "uploader SayNotYet": SIMULATED,
    "coordinator Write epoch=gathering": "the first start of a job alone; see test_crash_points",
    "coordinator Write epoch=idle": "comes after a day",
    "coordinator Write -restore": SIMULATED,
    "coordinator Write step=incomplete": SIMULATED,
    "coordinator Write step=mutated": SIMULATED,
    "coordinator Write step=skipped": SIMULATED,
    "coordinator Write step=abandoned": SIMULATED,
    "coordinator Write -step": SIMULATED,
    "coordinator Write backup": SIMULATED,
    "coordinator Write backup=listing": "never stands in a record with a name",
    "coordinator Write backup=abandoned": SIMULATED,
    "coordinator Write -backup": SIMULATED,
    "coordinator Write node=closed": SIMULATED,
    "coordinator Write -node": SIMULATED,
    "coordinator Write -alive": SIMULATED,
    "coordinator Write -inventory": SIMULATED,
    "coordinator Write backup=superseded": ORDERED,
    **{f"coordinator Write {sign}{key}": ORDERED for key in ("wishes", *BY_PEOPLE) for sign in ("", "-")},
    **{f"coordinator Write -{key}": FORGET for key in ("epoch", "keep", "steps", "backups", "lastbackup", "events")},
}
RARE: Final = (
    "coordinator Write orders",
    "coordinator Write -orders",
    "coordinator Write inventory",
    "coordinator Write epoch=restoring done",
)
"""These lie not every time on the way of their stage: they run at night, and are not chosen with a commit."""


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
