"""What a scan of the ramdisk saw: the only truth about the public directory."""

import msgspec

from checkpoint_replicator.ids import Job, Rank, Step, Worker
from checkpoint_replicator.messages import Room

__all__ = ["Found", "Snapshot", "YamlIdentity", "YamlSeen"]


class YamlIdentity(msgspec.Struct, frozen=True):
    """Tells one `replicator.yaml` from the next, also where the text is the same."""

    inode: int
    size: int
    changed: int
    """ctime in nanoseconds."""
    digest: str


class YamlSeen(msgspec.Struct, frozen=True):
    """The `replicator.yaml` that a scan found.

    Attributes:
        finished: its writer is done: a close-write or rename event came, or `settled`.
        settled: nobody has it open for writing and it did not change between two scans a second apart.
        obstacle: why we could not link and delete what its writer makes; empty where we can.
    """

    identity: YamlIdentity
    text: bytes
    finished: bool = True
    settled: bool = True
    obstacle: str = ""


class Found(msgspec.Struct, frozen=True):
    """A finished save in the public directory.

    Attributes:
        job: None for a directory, whose name says only the step.
        inode: tells it from a later one of the same name.
    """

    name: str
    inode: int
    step: Step
    job: Job | None = None
    rank: Rank = Rank(0)
    worker: Worker = Worker(0)
    size: int = 0


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One scan.

    Attributes:
        finished: saves to claim, oldest step first.
        settling: saves that are quiet but not judged yet; the next scans will tell.
        unfinished: saves that are empty or growing, as texts for people (bounded).
        leftovers: names of an earlier run that the next yaml's clean-up will remove.
        foreign: number of names that are none of ours.
        misfits: of these the names that end as a save's and are no save's, each with what stands there (bounded).
        watching: the scan began after the watch on the directory stood.
    """

    yaml: YamlSeen | None = None
    finished: tuple[Found, ...] = ()
    settling: int = 0
    unfinished: tuple[str, ...] = ()
    leftovers: int = 0
    foreign: int = 0
    misfits: tuple[tuple[str, str], ...] = ()
    room: Room | None = None
    watching: bool = True
