"""Look at the public directory: the authority on what is there.

inotify only says "look again" (and how a name arrived); every verdict is made here, from what stands in the
directory. One Scanner lives as long as the watcher, since "did not change" needs a memory.
"""

import hashlib
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from checkpoint_replicator.messages import Room
from checkpoint_replicator.yaml import MAX_SIZE
from checkpoint_watcher.entry import YAML, Kind, classify, save_name
from checkpoint_watcher.framework import (
    STEADY,
    Arrival,
    Content,
    Openness,
    Verdict,
    is_complete,
    judge,
    look_into,
    openness,
)
from checkpoint_watcher.snapshot import Found, Snapshot, YamlIdentity, YamlSeen

__all__ = ["Scanner"]

MAX_SHOWN: Final = 16
"""Unfinished saves that a snapshot names."""
MAX_MISFITS: Final = 64
"""Names of no save that a snapshot shows."""


class Memory(msgspec.Struct):
    """What earlier scans saw of one name."""

    content: Content
    since: float
    """When this content was first seen."""
    counted: float
    """When `scans` last grew."""
    scans: int = 1
    arrival: Arrival = Arrival.NONE


class Scanner:
    """Scans one directory; blocking, so it runs in a thread of its own, one scan at a time."""

    def __init__(self, root: Path, room: Callable[[], Room | None] = lambda: None) -> None:
        self.root = root
        self.room = room
        self._memories: dict[str, Memory] = {}

    def scan(self, now: float, arrivals: Mapping[str, Arrival] | None = None, *, watching: bool = True) -> Snapshot:
        """Look at everything once.

        Args:
            now: monotonic seconds.
            arrivals: names that inotify told of since the last scan, and how they came.
            watching: the watch stood before this call.
        """
        arrivals = arrivals or {}
        seen: set[str] = set()
        yaml: YamlSeen | None = None
        finished: list[Found] = []
        settling = leftovers = foreign = 0
        unfinished: list[str] = []
        misfits: list[tuple[str, str]] = []
        for name, kind, what in self._entries():
            match kind:
                case Kind.YAML:
                    seen.add(name)
                    yaml = self._yaml(now, arrivals.get(name, Arrival.NONE))
                case Kind.FILE | Kind.DIRECTORY:
                    seen.add(name)
                    memory = self._remember(name, now, arrivals.get(name, Arrival.NONE))
                    if memory is None:
                        continue
                    match self._verdict(name, memory, now):
                        case Verdict.READY:
                            finished.append(self._found(name, memory.content))
                        case Verdict.SETTLING:
                            settling += 1
                        case Verdict.UNFINISHED:
                            unfinished.append(name)
                case Kind.LEFTOVER:
                    leftovers += 1
                case Kind.FOREIGN:
                    foreign += 1
                    if name.endswith(".save"):
                        misfits.append((name, what))
                case Kind.OURS:
                    pass
        for name in self._memories.keys() - seen:
            del self._memories[name]
        return Snapshot(
            yaml=yaml,
            finished=tuple(sorted(finished, key=lambda found: (found.step, found.worker, found.name))),
            settling=settling,
            unfinished=tuple(sorted(unfinished)[:MAX_SHOWN]),
            leftovers=leftovers,
            foreign=foreign,
            misfits=tuple(sorted(misfits)[:MAX_MISFITS]),
            room=self.room(),
            watching=watching,
        )

    def _entries(self) -> list[tuple[str, Kind, str]]:
        """Every name, with its kind and with what stands there."""
        entries = []
        with os.scandir(self.root) as found:
            for entry in found:
                link = entry.is_symlink()
                directory = not link and entry.is_dir(follow_symlinks=False)
                file = entry.is_file(follow_symlinks=False)
                regular = link or directory or file
                kind = classify(entry.name, directory=directory, link=link) if regular else Kind.FOREIGN
                what = "a link" if link else "a directory" if directory else "a file" if file else "a pipe or device"
                entries.append((entry.name, kind, what))
        return entries

    def _remember(self, name: str, now: float, arrival: Arrival) -> Memory | None:
        content = look_into(self.root / name)
        if content is None:
            return None
        memory = self._memories.get(name)
        if memory is None or memory.content != content:
            # An event says that the writer is done with what stood there then, and it is older than this look.
            memory = Memory(content, since=now, counted=now, arrival=arrival)
            self._memories[name] = memory
        else:
            if now - memory.counted >= STEADY:
                memory.scans += 1
                memory.counted = now
            if arrival is not Arrival.NONE:
                memory.arrival = arrival
        return memory

    def _verdict(self, name: str, memory: Memory, now: float) -> Verdict:
        def verdict(probed: Openness, *, complete: bool | None) -> Verdict:
            return judge(
                memory.content,
                arrival=memory.arrival,
                steady=now - memory.since,
                scans=memory.scans,
                probed=probed,
                complete=complete,
            )

        # The probes cost system calls a file, so they are asked only where their answer can matter.
        if verdict(Openness.CLOSED, complete=True) is not Verdict.READY:
            return verdict(Openness.CLOSED, complete=True)
        path = self.root / name
        probed = openness(path, memory.content)
        complete = None if memory.arrival is Arrival.MOVED else is_complete(path, memory.content)
        return verdict(probed, complete=complete)

    def _found(self, name: str, content: Content) -> Found:
        parsed = save_name(name)
        if parsed is None:  # classify() lets only such names pass
            raise ValueError(name)
        try:
            inode = (self.root / name).lstat().st_ino if content.directory else content.files[0][1]
        except OSError:  # gone meanwhile: claiming says so
            inode = 0
        return Found(
            name=name,
            inode=inode,
            step=parsed.step,
            job=parsed.job,
            rank=parsed.rank,
            worker=parsed.worker,
            size=content.size,
        )

    def _yaml(self, now: float, arrival: Arrival) -> YamlSeen | None:
        memory = self._remember(YAML, now, arrival)
        if memory is None:
            return None
        path = self.root / YAML
        try:
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            return self._unreadable(path, error)
        try:
            facts = os.fstat(file)
            text = os.pread(file, MAX_SIZE + 1, 0)
        finally:
            os.close(file)
        probed = openness(path, memory.content)
        quiet = now - memory.since >= STEADY and memory.scans >= (3 if probed is Openness.UNKNOWN else 2)
        settled = quiet and probed is not Openness.WRITTEN
        told = memory.arrival is not Arrival.NONE and probed is not Openness.WRITTEN
        digest = hashlib.blake2b(text, digest_size=16).hexdigest()
        return YamlSeen(
            identity=YamlIdentity(facts.st_ino, facts.st_size, facts.st_ctime_ns, digest),
            text=text,
            finished=settled or told,
            settled=settled,
            obstacle=self._obstacle(facts.st_uid),
        )

    def _unreadable(self, path: Path, error: OSError) -> YamlSeen | None:
        """A yaml that is a link or may not be read is a bad one; its writer is told so."""
        try:
            facts = path.lstat()
        except OSError:
            return None
        reason = "is a link, expected a file" if stat.S_ISLNK(facts.st_mode) else f"cannot be read: {error.strerror}"
        obstacle = self._obstacle(facts.st_uid) or f"replicator.yaml: {reason}"
        identity = YamlIdentity(facts.st_ino, facts.st_size, facts.st_ctime_ns, "")
        return YamlSeen(identity=identity, text=b"", obstacle=obstacle)

    def _obstacle(self, owner: int) -> str:
        own = os.geteuid()
        if own in {0, owner}:
            return ""
        return (
            f"the watcher runs as uid {own} and the trainer as uid {owner}: it could neither link nor delete the "
            "trainer's files; run both with one uid"
        )
