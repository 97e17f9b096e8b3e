"""Small typed JSON files, read as a whole and replaced at once."""

from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from checkpoint_replicator.errors import ProtocolError
from checkpoint_replicator.fence import ZERO, Stamp
from checkpoint_replicator.ids import Job
from checkpoint_replicator.quote import quote
from checkpoint_replicator.ramdisk.files import Files
from checkpoint_replicator.ramdisk.reading import read_small
from checkpoint_replicator.ramdisk.spare import Spare
from checkpoint_replicator.save import Save

__all__ = ["Document", "FenceRecord", "JobFence", "StatusRecord"]

T = TypeVar("T")


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base: frozen, by keyword; unknown fields of a newer build are ignored."""


class JobFence(Record, frozen=True, kw_only=True):
    """What this node may never go back behind, for one job.

    Attributes:
        obeyed: highest stamp that it obeyed.
        newest_committed: the newest committed save that it knows of.
        keep: stamp of the last keep list that it obeyed.
        hold: that list lets nothing go: people look.
    """

    obeyed: Stamp = ZERO
    newest_committed: Save | None = None
    keep: Stamp = ZERO
    hold: bool = False


class FenceRecord(Record, frozen=True, kw_only=True):
    """`fence.json`; written before the node acts or drops anything, goes only with `forget --ramdisks`."""

    jobs: dict[Job, JobFence] = {}

    def of(self, job: Job) -> JobFence:
        """Return a job's entry; one at zero where there is none."""
        return self.jobs.get(job, JobFence())

    def raised(
        self, job: Job, obeyed: Stamp = ZERO, committed: Save | None = None, keep: Stamp = ZERO, *, hold: bool = False
    ) -> "FenceRecord":
        """Return the record with a job's entry raised; no number ever goes down, and `hold` is of the later list."""
        old = self.of(job)
        saves = [save for save in (old.newest_committed, committed) if save is not None]
        new = JobFence(
            obeyed=max(old.obeyed, obeyed),
            newest_committed=max(saves, default=None),
            keep=max(old.keep, keep),
            hold=hold if keep > old.keep else old.hold,
        )
        return FenceRecord(jobs={**self.jobs, job: new})


class StatusRecord(Record, frozen=True, kw_only=True):
    """`status.json`, for trainers and people on the node.

    Attributes:
        step: last committed step; None before the first commit.
        protected: every shard of it has its replicas.
        backup: name of the last verified backup; None without.
        handout: `linked`, or `none` where hard links are not possible.
        reasons: why something is not as it should be.
    """

    job: str = ""
    epoch: int = 0
    step: int | None = None
    protected: bool = False
    backup: str | None = None
    handout: str = "linked"
    reasons: tuple[str, ...] = ()


class Document(Generic[T]):
    """One JSON file of a type; one process writes it.

    Args:
        path: where it stands.
        kind: its type.
        files: the system calls.
        spare: room for it on a full ramdisk; None: it is not that important.
    """

    def __init__(self, path: Path, kind: type[T], files: Files, spare: Spare | None = None) -> None:
        self.path = path
        self._spare = spare
        self.kind = kind
        self._files = files

    def read(self) -> T | None:
        """Return what stands there; None when there is no file.

        Raises:
            ProtocolError: it does not parse; names the file, which stays as it is.
        """
        try:
            data = read_small(self.path)
        except FileNotFoundError:
            return None
        try:
            return msgspec.json.decode(data, type=self.kind)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"{quote(str(self.path))}: {quote(str(error))}") from error

    def salvage(self) -> tuple[T | None, str]:
        """Return what stands there, and why it is unreadable; an unreadable file is kept aside under another name."""
        try:
            return self.read(), ""
        except ProtocolError as error:
            return None, f"{error}; kept as {self._files.set_aside(self.path).name}"

    def set_aside(self) -> None:
        """Keep what stands there under another name."""
        self._files.set_aside(self.path)

    def write(self, value: T) -> None:
        """Replace it at once.

        Raises:
            NoRoomError: the ramdisk is full; the old one stays.
        """
        data = msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"
        if self._spare is None:
            self._replace(data)
        else:
            self._spare.urgently(lambda: self._replace(data))

    def _replace(self, data: bytes) -> None:
        aside = self.path.with_name(f"{self.path.name}.tmp")
        self._files.write(aside, data)
        self._files.replace(aside, self.path)

    def remove(self) -> None:
        """Remove it; absent is fine."""
        self._files.unlink(self.path)
