"""Where everything stands on a ramdisk, and the public names."""

import re
from pathlib import Path
from typing import Final

import msgspec

from checkpoint_replicator.errors import ProtocolError
from checkpoint_replicator.ids import Address, Epoch, Job, Rank, SessionId, Step, Worker, is_address, job_fault
from checkpoint_replicator.save import ShardKey, Tag

__all__ = [
    "MAX_NUMBER",
    "PRIVATE",
    "Layout",
    "ShardName",
    "check_address",
    "check_tag",
    "is_session_id",
    "parse_data",
    "parse_epoch",
    "parse_name",
]

PRIVATE: Final = ".replicator"
"""The one directory of ours below the ramdisk's root."""
MAX_NUMBER: Final = (1 << 53) - 1
"""Largest number that a message takes."""
MAX_PLACE: Final = (1 << 16) - 1
"""Largest rank or worker."""
_NAME: Final = re.compile(r"(?P<job>.+)-s(?P<step>0|[1-9]\d*)-n(?P<rank>0|[1-9]\d*)-w(?P<worker>0|[1-9]\d*)", re.ASCII)
_EPOCH: Final = re.compile(r"0|[1-9][0-9]{0,15}")
_ID: Final = re.compile(r"[0-9A-Za-z_-]{1,64}")


class ShardName(msgspec.Struct, frozen=True, order=True):
    """A public name without its ending: `<job>-s<step>-n<rank>-w<worker>`."""

    job: Job
    step: Step
    key: ShardKey

    def __str__(self) -> str:
        return f"{self.job}-s{self.step}-n{self.key.rank}-w{self.key.worker}"


def parse_name(text: str, ending: str = "") -> ShardName | None:
    """Read a public name with its ending (`.save`, `.meta`, `.restore` or none); None when it is something else."""
    if not text.endswith(ending):
        return None
    match = _NAME.fullmatch(text.removesuffix(ending))
    if match is None or job_fault(match["job"]) is not None:
        return None
    step, rank, worker = (int(match[group][:20]) for group in ("step", "rank", "worker"))
    if step > MAX_NUMBER or max(rank, worker) > MAX_PLACE:
        return None
    return ShardName(Job(match["job"]), Step(step), ShardKey(Rank(rank), Worker(worker)))


def parse_epoch(text: str) -> Epoch | None:
    """Read the name of an epoch's directory; None when it is something else."""
    if _EPOCH.fullmatch(text) is None or int(text) > MAX_NUMBER:
        return None
    return Epoch(int(text))


def is_session_id(text: str) -> bool:
    """Tell whether a text has the form of a session's id; it becomes part of a path."""
    return _ID.fullmatch(text) is not None


def parse_data(text: str) -> Address | None:
    """Read `<address>.data`; None when it is something else."""
    address = text.removesuffix(".data")
    return Address(address) if address != text and is_address(address) else None


def check_address(address: str) -> Address:
    """Return the address.

    Raises:
        ProtocolError: it has not the form of one; it came from a peer or a file and becomes part of a path.
    """
    if not is_address(address):
        raise ProtocolError(f"{address[:80]!r} is no address, expected 64 hex digits after an optional D")
    return Address(address)


def check_tag(tag: Tag) -> Tag:
    """Return the tag.

    Raises:
        ProtocolError: a part of it does not fit into a name; it came from a peer or a file.
    """
    check_address(tag.address)
    if (fault := job_fault(tag.job)) is not None:
        raise ProtocolError(f"the job name of a tag {fault}")
    for word, number, most in (
        ("epoch", tag.save.epoch, MAX_NUMBER),
        ("step", tag.save.step, MAX_NUMBER),
        ("rank", tag.key.rank, MAX_PLACE),
        ("worker", tag.key.worker, MAX_PLACE),
        ("size", tag.size, MAX_NUMBER),
    ):
        if not 0 <= number <= most:
            raise ProtocolError(f"a tag has the {word} {number}, expected 0 to {most}")
    return tag


class Layout:
    """The paths of one ramdisk; knows names, touches nothing."""

    def __init__(self, root: Path) -> None:
        self.root = root
        private = root / PRIVATE
        self.private = private
        self.session = private / "session.json"
        self.session_copy = private / "session.copy.json"
        self.fence = private / "fence.json"
        self.host = private / "host"
        self.status = private / "status.json"
        self.names_lock = private / "names.lock"
        self.saves = private / "saves"
        self.trees = private / "trees"
        self.partials = private / "partial"
        self.claims = private / "claims"
        self.handouts = private / "handout"
        self.trash = private / "trash"
        self.run = private / "run"
        self.spare = private / "spare"
        self.aside = private / "tmp"
        """Where small files are written before they get their name; only inside the names lock."""

    @property
    def folders(self) -> tuple[Path, ...]:
        """Every directory that must stand."""
        return (
            self.saves,
            self.trees,
            self.partials,
            self.claims,
            self.handouts,
            self.trash,
            self.run,
            self.spare,
            self.aside,
        )

    def service_lock(self, service: str) -> Path:
        """`watcher.lock`, `transfer.lock`."""
        return self.private / f"{service}.lock"

    def data(self, address: Address) -> Path:
        """The public `<address>.data`."""
        return self.root / f"{check_address(address)}.data"

    def meta(self, name: str) -> Path:
        """The public `<name>.meta`."""
        return self.root / f"{name}.meta"

    def restore(self, name: ShardName) -> Path:
        """The public `<name>.restore`."""
        return self.root / f"{name}.restore"

    def tree(self, address: Address) -> Path:
        """`trees/<address>.tree`."""
        return self.trees / f"{check_address(address)}.tree"

    def sidecar(self, tag: Tag) -> Path:
        """`saves/<epoch>/<name>.json`."""
        check_tag(tag)
        return self.saves / str(tag.save.epoch) / f"{tag.name}.json"

    def partial(self, address: Address) -> Path:
        """`partial/<address>`."""
        return self.partials / check_address(address)

    def claim(self, epoch: Epoch, name: ShardName) -> Path:
        """`claims/<epoch>/<name>`."""
        return self.claims / str(epoch) / str(name)

    def handout(self, session: SessionId, address: Address) -> Path:
        """`handout/<session>/<address>.data`."""
        if not is_session_id(session):
            raise ProtocolError(f"{session[:80]!r} is no session id")
        return self.handouts / session / f"{check_address(address)}.data"
