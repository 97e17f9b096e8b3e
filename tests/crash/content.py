"""What trainers saved, so that an auditor knows every byte without asking anybody."""

import hashlib
import os
import pickle
from collections.abc import Mapping
from pathlib import Path

import msgspec

__all__ = ["Ledger", "Saved", "write_step"]

LEAVES = (1 << 20) + 70_000
"""Bytes of the larger file: two leaves."""


class Saved(msgspec.Struct, frozen=True, order=True):
    """One rank's shard of one step in one life of the trainers; no two have the same bytes.

    Attributes:
        life: how manyth start of the job.
        draft: how manyth attempt at this step in this life; only the first one counts.
        small: it is of a few bytes.
    """

    life: int
    step: int
    rank: int
    draft: int = 0
    small: bool = False

    @property
    def files(self) -> Mapping[str, bytes]:
        """The files of its directory."""
        seed = repr(self).encode()
        part = f"__{self.rank}_0.distcp"
        return {
            part: hashlib.shake_128(seed).digest(9 if self.small else LEAVES),
            ".metadata": pickle.dumps([part, repr(self)]),
        }


class Ledger:
    """Every shard that trainers saved, by the digest of its files."""

    def __init__(self) -> None:
        self._known: dict[str, Saved] = {}
        self._seen: dict[tuple[int, ...], str] = {}

    def enter(self, saved: Saved, *, wish: bool = False) -> Mapping[str, bytes]:
        """Note a shard before it is written; returns its files. With `wish` its trainer asks for a backup of it."""
        files = {**saved.files, **({"_BACKUP_REQUESTED": b""} if wish else {})}
        self._known[_digest({name: hashlib.sha256(data).hexdigest() for name, data in files.items()})] = saved
        return files

    def whose(self, folder: Path) -> Saved | None:
        """Say whose bytes a directory holds, all of them and nothing else; None: nobody ever saved this."""
        found = {}
        for parent, _, names in os.walk(folder):
            for name in names:
                path = Path(parent, name)
                found[str(path.relative_to(folder))] = self._sum(path)
        return self._known.get(_digest(found))

    def _sum(self, path: Path) -> str:
        facts = path.lstat()
        # A file that was written to has another ctime; a big one is read once for each of its lives.
        key = (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
        if key not in self._seen:
            self._seen[key] = hashlib.sha256(path.read_bytes()).hexdigest()
        return self._seen[key]


def write_step(local: Path, step: int, files: Mapping[str, bytes]) -> None:
    """Save as torch's distributed checkpoint does: write aside, then rename."""
    draft = local / f"step={step}"
    if draft.is_symlink():  # the restored one
        draft.unlink()
    draft.mkdir()
    for name, data in files.items():
        (draft / name).write_bytes(data)
    draft.rename(local / str(step))


def _digest(files: Mapping[str, str]) -> str:
    return hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()
