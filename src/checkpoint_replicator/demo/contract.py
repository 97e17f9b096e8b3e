"""The trainer's half of the file contract: what it writes, waits for, takes and deletes in its local directory."""

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

import msgspec

__all__ = [
    "FailedError",
    "LateError",
    "Marker",
    "MarkerError",
    "Markers",
    "TrainerError",
    "announce",
    "complaints",
    "wait_for_markers",
]

YAML: Final = "replicator.yaml"
PRERESTORE: Final = "replicator.prerestore"
POLL: Final = 0.05
MARKER: Final = re.compile(r"(?P<job>.+)-s(?P<step>\d+)-n(?P<rank>\d+)-w(?P<worker>\d+)\.restore")

Answer = TypeVar("Answer")


class TrainerError(Exception):
    """The trainer cannot go on."""

    exit_code = 1


class BytesError(TrainerError):
    """Restored bytes are not those that were saved."""

    exit_code = 3


class MarkerError(TrainerError):
    """The markers or the restored step are not as expected."""

    exit_code = 4


class LateError(TrainerError):
    """The replicator did not answer in time."""

    exit_code = 5


class FailedError(TrainerError):
    """The replicator wrote `replicator.failed`."""

    exit_code = 6


class Marker(msgspec.Struct, frozen=True):
    """One `.restore` of this node."""

    path: Path
    step: int
    worker: int

    @property
    def empty(self) -> bool:
        """Whether it says that there is nothing to restore: an empty regular file with step 0."""
        return self.step == 0 and not self.path.is_symlink() and self.path.is_file() and not self.path.stat().st_size


class Markers(msgspec.Struct, frozen=True):
    """All markers of this node; `step` is None when there is nothing to restore."""

    step: int | None
    by_worker: Mapping[int, Path]


def announce(local: Path, keys: Mapping[str, object], timeout: float) -> None:
    """Write `replicator.yaml` and wait until it is taken.

    Raises:
        LateError: an earlier one, or this one, still stands after `timeout` seconds.
        FailedError: the replicator refused it.
    """
    yaml = local / YAML
    until(f"an earlier {YAML} to be taken", timeout, lambda: None if yaml.exists() else True)
    draft = local / f"{YAML}.tmp"
    draft.write_text("".join(f"{key}: {value}\n" for key, value in keys.items()))
    draft.replace(yaml)
    until(f"{YAML} to be taken", timeout, lambda: None if yaml.exists() else True)
    complaints(local)


def complaints(local: Path) -> str:
    """Take `replicator.errors` away and return its text.

    Raises:
        FailedError: there was a `replicator.failed`, which is taken away too.
    """
    failed = _take(local / "replicator.failed")
    if failed is not None:
        raise FailedError(f"replicator.failed: {failed.strip()}")
    return (_take(local / "replicator.errors") or "").strip()


def wait_for_markers(local: Path, job: str, rank: int, shards: int, timeout: float) -> Markers:
    """Wait for the prerestore file and one marker for each shard of this node.

    Raises:
        LateError: they are not there after `timeout` seconds.
        FailedError: the replicator gave up.
        MarkerError: a marker belongs to somebody else, or they disagree.
    """
    until(PRERESTORE, timeout, lambda: _prepared(local))
    found = until(f"{shards} .restore marker(s)", timeout, lambda: _look(local, job, rank, shards))
    steps = {None if marker.empty else marker.step for marker in found}
    if len(steps) != 1 or {marker.worker for marker in found} != set(range(shards)):
        raise MarkerError(f"markers disagree: {sorted(marker.path.name for marker in found)}")
    [step] = steps
    told = (local / PRERESTORE).read_text().strip()
    expected = "{}" if step is None else f"restore-step: {step}"
    if expected not in told:
        raise MarkerError(f"{PRERESTORE} says {told!r}, the markers say {expected!r}")
    return Markers(step, {marker.worker: marker.path for marker in found})


def until(what: str, timeout: float, look: Callable[[], Answer | None]) -> Answer:
    """Ask again and again until there is an answer.

    Raises:
        LateError: there was none for `timeout` seconds.
    """
    ends = time.monotonic() + timeout
    while (answer := look()) is None:
        if time.monotonic() > ends:
            raise LateError(f"waited {timeout:g} s for {what}")
        time.sleep(POLL)
    return answer


def _prepared(local: Path) -> bool | None:
    complaints(local)
    return True if (local / PRERESTORE).exists() else None


def _look(local: Path, job: str, rank: int, shards: int) -> list[Marker] | None:
    complaints(local)
    markers = []
    for path in sorted(local.glob("*.restore")):
        name = MARKER.fullmatch(path.name)
        if name is None or name["job"] != job or int(name["rank"]) != rank:
            raise MarkerError(f"{path.name} is not a marker of job {job}, rank {rank}")
        markers.append(Marker(path, int(name["step"]), int(name["worker"])))
    return markers if len(markers) >= shards else None


def _take(path: Path) -> str | None:
    try:
        text = path.read_text()
        path.unlink()
    except FileNotFoundError:
        return None
    return text
