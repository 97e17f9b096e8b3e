"""What a name in the public directory is, by the trainer contract."""

import re
from enum import StrEnum
from typing import Final

import msgspec

from checkpoint_replicator.ids import Job, Rank, Step, Worker, job_fault

__all__ = ["KNOWN", "YAML", "Kind", "SaveName", "classify", "save_name"]

YAML: Final = "replicator.yaml"
KNOWN: Final = frozenset({"replicator.yaml.tmp", "jax-init-info.txt", ".tmp.jax-init-info.txt", ".replicator"})
"""Names of the trainer, of the node agent and of ours that are neither saves nor leftovers: kept."""

_DIGITS: Final = r"(?:0|[1-9][0-9]{0,14})"
"""At most 15, so that every step stays below the 2**53 up to which Redis counts exactly."""
_SAVE: Final = re.compile(rf"(?P<job>.+)-s(?P<step>{_DIGITS})-n(?P<rank>{_DIGITS})-w(?P<worker>{_DIGITS})\.save")
_STEP: Final = re.compile(_DIGITS)
_SHARD: Final = re.compile(r".+-s[0-9]+-n[0-9]+-w[0-9]+\.meta|D?[0-9a-f]{64}\.data")
_STEP_IN_WORK: Final = re.compile(rf"step={_DIGITS}")
_UNFINISHED: Final = re.compile(rf"step={_DIGITS}-unfinished")
_ORBAX_IN_WORK: Final = re.compile(rf"{_DIGITS}\.orbax-checkpoint-tmp.*")
_REPORTS: Final = frozenset(
    {"replicator.prerestore", "replicator.errors", "replicator.failed", "replicator.failed.tmp"}
)


class Kind(StrEnum):
    """What is done with an entry."""

    YAML = "yaml"
    FILE = "file"
    """A `.save` file of framework pytorch."""
    DIRECTORY = "directory"
    """A directory named by its step: frameworks pytorch.distributed and Orbax."""
    LEFTOVER = "leftover"
    """Of an earlier run: removed at a new yaml, at no other time."""
    OURS = "ours"
    """A public name of a replicated shard, or a working file of the contract: kept."""
    FOREIGN = "foreign"
    """Never touched; counted and shown."""


class SaveName(msgspec.Struct, frozen=True):
    """What a save's public name says; a directory says only its step."""

    step: Step
    job: Job | None = None
    rank: Rank = Rank(0)
    worker: Worker = Worker(0)


def classify(name: str, *, directory: bool = False, link: bool = False) -> Kind:
    """Say what an entry is; `directory` is about the entry itself, not about what a link points to."""
    if name == YAML:
        return Kind.FOREIGN if directory else Kind.YAML
    if name in KNOWN:
        return Kind.OURS
    if _left_over(name, directory=directory, link=link):
        return Kind.LEFTOVER
    if save_name(name) is not None and not link:
        if directory and _STEP.fullmatch(name):
            return Kind.DIRECTORY
        if not directory and name.endswith(".save"):
            return Kind.FILE
    return Kind.OURS if _SHARD.fullmatch(name) else Kind.FOREIGN


def save_name(name: str) -> SaveName | None:
    """Read the name of a save, None for any other."""
    if _STEP.fullmatch(name) is not None:
        return SaveName(Step(int(name)))
    match = _SAVE.fullmatch(name)
    if match is None or job_fault(match["job"]) is not None:
        return None
    return SaveName(Step(int(match["step"])), Job(match["job"]), Rank(int(match["rank"])), Worker(int(match["worker"])))


def _left_over(name: str, *, directory: bool, link: bool) -> bool:
    if name in _REPORTS:
        return not directory
    if name.endswith((".restore", ".save.tmp")):
        return not directory
    if link:
        return _STEP.fullmatch(name) is not None or _STEP_IN_WORK.fullmatch(name) is not None
    if directory:
        return _ORBAX_IN_WORK.fullmatch(name) is not None or _STEP_IN_WORK.fullmatch(name) is not None
    return _UNFINISHED.fullmatch(name) is not None
