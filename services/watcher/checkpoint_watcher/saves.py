"""Finished saves on their way to a public name, and shards on their way out."""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from checkpoint_replicator.ids import Epoch, Job, Step
from checkpoint_replicator.messages import Fault, Held, Saving
from checkpoint_replicator.quote import quote
from checkpoint_replicator.records import KeepList
from checkpoint_replicator.save import Save, ShardKey, Tag
from checkpoint_replicator.session import SessionSpec, SessionState
from checkpoint_watcher.effects import ClaimSave, DropClaim, DropSaves, HashClaim, MarkCommitted, NameShard
from checkpoint_watcher.events import ClaimHashed, HashFailed, NamingFailed, SaveClaimed, SaveGone, SavesDropped
from checkpoint_watcher.events import ShardNamed as Named
from checkpoint_watcher.keep import droppable
from checkpoint_watcher.node import Node
from checkpoint_watcher.record import Claim, Lineage
from checkpoint_watcher.room import RoomKeeper
from checkpoint_watcher.snapshot import Found, Snapshot

__all__ = ["Saves"]

HASHING: Final = 2
"""Saves that are hashed at once; each uses several threads."""
MAX_CLAIMING: Final = 4096
"""Claims in hand; what a scan found beyond them waits for the next one."""
MAX_WANTED: Final = 16
"""Wishes for a backup that are told; the coordinator knows which of them, or of later saves, were granted."""
FILES: Final = frozenset({"pytorch"})
"""Frameworks that save files; the others save directories."""
MAX_TOLD: Final = 64
"""Names that a session's trainer is told are none of its saves."""
MAX_NAME: Final = 300


@dataclass(slots=True)
class Saves:
    """Claims, hashes, names and drops; `committed` is the newest committed save of the session's job."""

    node: Node
    claiming: dict[str, Claim] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    waiting: deque[Claim] = field(default_factory=deque)
    hashing: dict[str, Claim] = field(default_factory=dict)
    naming: dict[str, tuple[Claim, Tag]] = field(default_factory=dict)
    wanted: list[Save] = field(default_factory=list)
    room: RoomKeeper = field(init=False)
    unclaimed: int = 0
    _queued: set[str] = field(default_factory=set)
    _skipped: set[Save] = field(default_factory=set)
    _given_up: dict[Job, frozenset[Save]] = field(default_factory=dict)
    _retry: list[tuple[float, Claim, Tag]] = field(default_factory=list)
    _dropping: set[Tag] = field(default_factory=set)
    _drop_again: float | None = None
    _newest_next: bool = False
    _misfits: set[str] | None = None
    """Names that stood there before the session ran, or that the trainer was told of; None: nothing was seen yet."""
    _told: int = 0

    def __post_init__(self) -> None:
        self.room = RoomKeeper(self.node, self.on_the_way)

    @property
    def settled(self) -> bool:
        """Whether nothing found is still on its way to its name."""
        return not (self.unclaimed or self.claiming or self.waiting or self.hashing or self.naming or self._retry)

    def given_up(self, job: Job) -> frozenset[Save]:
        """Saves of a job that the coordinator gave up: they are neither hashed nor offered any more."""
        return self._given_up.get(job, frozenset())

    def on_the_way(self, job: Job | None) -> tuple[Saving, ...]:
        """Finished saves of a job that are not named yet."""
        if not (self.claiming or self.waiting or self.hashing or self.naming or self._retry):
            return ()
        claims = [*self.claiming.values(), *self.waiting, *self.hashing.values()]
        claims += [claim for claim, _ in self.naming.values()] + [claim for _, claim, _ in self._retry]
        return tuple(
            sorted(
                (
                    Saving(save=claim.save, key=claim.key, size=self.sizes.get(claim.name, 0))
                    for claim in claims
                    if claim.job == job
                ),
                key=lambda saving: (saving.save, saving.key),
            )
        )

    def resume(self, claims: tuple[Claim, ...], wished: tuple[Save, ...]) -> None:
        """Take up what an earlier life claimed, and of what its trainer wished a backup."""
        self.wanted = list(wished)[-MAX_WANTED:]
        for claim in claims:
            self._enqueue(claim)
        self._pump()

    # ---- from the trainer to a name

    def look(
        self, snapshot: Snapshot, lineage: Lineage | None, coming: SessionSpec | None, committed: Save | None
    ) -> None:
        """Claim what a scan found.

        Args:
            snapshot: of the directory.
            lineage: whose saves these are.
            coming: where nothing is known of that, the yaml that is being taken up.
            committed: newest committed save of the lineage's job.
        """
        self._tell_misfits(snapshot)
        self.unclaimed = 0
        reserve = self.room.reserve
        for found in snapshot.finished:
            claim = claim_of(found, lineage, coming)
            if claim is None:
                continue
            if self._in_hand(claim):
                self.unclaimed += claim.name not in self.claiming
                continue
            if len(self.claiming) >= MAX_CLAIMING:
                self.unclaimed += 1
                continue
            if self._lacks_room(claim.save, snapshot, reserve, committed):
                self._skipped.add(claim.save)
            self.claiming[claim.name] = claim
            self.sizes[claim.name] = found.size
            self.node.emit(ClaimSave(found.name, found.inode, claim))

    def claimed(self, event: SaveClaimed) -> None:
        """It is ours: hash it, or drop it for want of room."""
        self.claiming.pop(event.claim.name, None)
        self.sizes[event.claim.name] = event.size
        if event.claim.save in self._skipped:
            reason = (
                f"step {event.claim.save.step} was skipped: less than {self.room.reserve} bytes are free for the next "
                "save while an earlier save is still being replicated"
            )
            self._give_up(event.claim, "skipped", reason)
        else:
            self._enqueue(event.claim)
        self._pump()

    def gone(self, event: SaveGone) -> None:
        """Somebody else took it, or its claim; nothing is left to do."""
        if self.claiming.pop(event.claim.name, None) is None:
            self.hashing.pop(event.claim.name, None)
            self.naming.pop(event.claim.name, None)
        self.sizes.pop(event.claim.name, None)
        self.node.announce("save_vanished", step=event.claim.save.step, reason=event.reason)
        self._pump()

    def hashed(self, event: ClaimHashed, committed: Save | None) -> None:
        """Name it, unless the step was saved before in this epoch."""
        claim = event.claim
        self.hashing.pop(claim.name, None)
        if event.wanted and claim.save not in self.wanted:
            self.wanted = [*self.wanted, claim.save][-MAX_WANTED:]
        tag = Tag(claim.job, claim.save, claim.shape, claim.key, event.address, event.size)
        verdict = self._repeated(tag, committed)
        if verdict is None:
            self.room.entries[event.address] = event.entries
            self._name(claim, tag)
        elif verdict:
            self._give_up(claim, "refused", verdict)
        else:
            self.sizes.pop(claim.name, None)
            self.node.announce("save_repeated", step=claim.save.step, size=event.size)
            self.node.emit(DropClaim(claim))
        self._pump()

    def unhashable(self, event: HashFailed) -> None:
        """It can never be named: say so and let it go."""
        self.hashing.pop(event.claim.name, None)
        self.naming.pop(event.claim.name, None)
        self._give_up(event.claim, event.kind, f"step {event.claim.save.step} cannot be replicated: {event.reason}")
        self._pump()

    def named(self, event: Named) -> Held:
        """It stands."""
        self.naming.pop(event.claim.name, None)
        self.sizes.pop(event.claim.name, None)
        self._forgive(event.claim)
        held = Held(tag=event.tag, own=True)
        self.node.hold(held)
        self.node.announce("save_named", step=event.tag.save.step, rank=event.tag.key.rank, size=event.tag.size)
        self._pump()
        return held

    def unnamed(self, event: NamingFailed, now: float) -> None:
        """The ramdisk is full: the claim waits."""
        self.naming.pop(event.claim.name, None)
        self._retry.append((now + self.node.times.scan, event.claim, event.tag))
        self._queued.add(event.claim.name)
        fault = Fault(kind="no_room", reason=event.reason, save=event.claim.save, key=event.claim.key)
        if self.node.blame(fault):
            self.node.complain(f"step {event.claim.save.step} waits for room: {event.reason}")

    # ---- from a name to nothing

    def obey(self, job: Job, keep: KeepList, held: list[Held], busy: Collection[Save]) -> None:
        """Note what is committed and drop what the list lets go."""
        self._given_up[job] = frozenset(keep.drop)
        if keep.upto is not None:
            marked = [one for one in held if one.tag.save == keep.upto and not one.committed]
            for one in marked:
                self.node.hold(Held(tag=one.tag, committed=True, own=one.own))
            if marked:
                self.node.emit(MarkCommitted(job, keep.upto))
            if job == self.node.job:
                self._skipped = {save for save in self._skipped if save > keep.upto}
        fallen = [Held(tag=tag) for tag in self.node.fallen if tag.job == job]
        tags = tuple(tag for tag in droppable([*held, *fallen], keep, busy) if tag not in self._dropping)
        if tags and self._drop_again is None:
            self._dropping.update(tags)
            self.node.emit(DropSaves(tags))

    def leave(self, job: Job) -> None:
        """Nothing is known of this job any more."""
        self._given_up.pop(job, None)

    def dropped(self, event: SavesDropped, now: float) -> None:
        """Forget what is gone; what has a reader is tried again."""
        self.let_go(event.dropped)
        self._dropping.difference_update(event.dropped, event.busy)
        if event.busy:
            self._drop_again = now + self.node.times.scan
        self.node.announce("saves_dropped", count=len(event.dropped))

    def let_go(self, tags: Collection[Tag]) -> None:
        """Forget shards that are gone; what was counted of one stays while another tag names it."""
        for tag in tags:
            self.node.let_go(tag)
            self.node.faults.pop(("mutated", tag.save, tag.key), None)
        coming = [*self.naming.values(), *((claim, tag) for _, claim, tag in self._retry)]
        here = {tag.address for tag in self.node.held} | {tag.address for _, tag in coming}
        for address in {tag.address for tag in tags} - here:
            self.room.entries.pop(address, None)

    def advance(self, now: float) -> bool:
        """Try again what had no room; True: dropping may be tried again."""
        due = [entry for entry in self._retry if entry[0] <= now] if self._retry else ()
        if due:
            self._retry = [entry for entry in self._retry if entry[0] > now]
        for _, claim, tag in due:
            self._queued.discard(claim.name)
            self._name(claim, tag)
        if self._drop_again is not None and now >= self._drop_again:
            self._drop_again = None
            return True
        return False

    def deadline(self) -> float | None:
        """When `advance` has something to do."""
        moments = [moment for moment, _, _ in self._retry]
        if self._drop_again is not None:
            moments.append(self._drop_again)
        return min(moments, default=None)

    # ---- inside

    def _tell_misfits(self, snapshot: Snapshot) -> None:
        """Tell the trainer once a session of each name that came since and is none of its saves.

        What stood there before the session ran, or when this life of the process began, is of somebody else.
        """
        session = self.node.session
        running = session is not None and session.state is SessionState.RUNNING
        if session is None or session.spec is None or not running or self._misfits is None:
            self._misfits, self._told = {name for name, _ in snapshot.misfits}, 0
            self._misfits.update(found.name for found in snapshot.finished)
            return
        spec = session.spec
        if not self.node.yaml_gone or not (snapshot.misfits or snapshot.finished):
            return
        strange = dict(snapshot.misfits) if spec.shape.framework in FILES else {}
        strange |= {found.name: reason for found in snapshot.finished if (reason := misfit(found, spec))}
        for name in sorted(strange.keys() - self._misfits):
            if self._told >= MAX_TOLD:
                return
            self._told += 1
            self._misfits.add(name)
            reason = f"expected {expected_name(spec)}, found {strange[name]}"
            self.node.announce("save_not_taken", name=quote(name, MAX_NAME), reason=reason)
            self.node.complain(f"{quote(name, MAX_NAME)} is no save of this session and is not taken: {reason}")

    def _in_hand(self, claim: Claim) -> bool:
        """Whether a save of this name and epoch is on its way already; another of its name waits for it."""
        name = claim.name
        return name in self.claiming or name in self.hashing or name in self.naming or name in self._queued

    def _enqueue(self, claim: Claim) -> None:
        self.waiting.append(claim)
        self._queued.add(claim.name)

    def _pump(self) -> None:
        while self.waiting and len(self.hashing) < HASHING:
            # The oldest and the newest in turn: a backlog holds up neither of them.
            claim = self.waiting.pop() if self._newest_next else self.waiting.popleft()
            self._newest_next = not self._newest_next
            self._queued.discard(claim.name)
            if claim.save in self.given_up(claim.job):
                # Saves come faster than they are hashed: what was given up must not hold up the newest.
                self.sizes.pop(claim.name, None)
                self.node.announce("save_given_up", step=claim.save.step, rank=claim.key.rank)
                self.node.emit(DropClaim(claim))
                continue
            self.hashing[claim.name] = claim
            self.node.emit(HashClaim(claim))

    def _name(self, claim: Claim, tag: Tag) -> None:
        self.naming[claim.name] = (claim, tag)
        self.node.emit(NameShard(claim, tag))

    def _forgive(self, claim: Claim) -> None:
        self.node.faults.pop(("no_room", claim.save, claim.key), None)

    def _give_up(self, claim: Claim, kind: str, reason: str) -> None:
        self.sizes.pop(claim.name, None)
        self._forgive(claim)
        self.node.blame(Fault(kind=kind, reason=reason, save=claim.save, key=claim.key))
        self.node.complain(reason)
        self.node.emit(DropClaim(claim))

    def _repeated(self, tag: Tag, committed: Save | None) -> str | None:
        """None: a new save. Empty: the same again. Else why it is refused."""
        first = self.node.owned.get((tag.job, tag.save, tag.key))
        for _, other in self.naming.values():
            if (other.job, other.save, other.key) == (tag.job, tag.save, tag.key):
                first = other
        if first is not None:
            if first.address == tag.address:
                return ""
            return (
                f"step {tag.save.step} was saved again with other content: expected {first.address:.12}, "
                f"found {tag.address:.12}; the first one stays"
            )
        if committed is not None and committed.epoch == tag.save.epoch and tag.save.epoch and tag.save < committed:
            return f"step {tag.save.step} was saved after step {committed.step} was committed; it is refused"
        return None

    def _lacks_room(self, save: Save, snapshot: Snapshot, reserve: int, committed: Save | None) -> bool:
        """Whether this save must yield: an earlier one is in flight and the next one would not fit."""
        if save in self._skipped:
            return True
        session = self.node.session
        if session is None or session.state is not SessionState.RUNNING:
            return False
        if snapshot.room is None or snapshot.room.free + self.room.yielding >= reserve:
            return False
        in_flight = {saving.save for saving in self.on_the_way(self.node.job)} | {
            held.tag.save
            for held in self.node.held.values()
            if held.own
            and held.tag.job == self.node.job
            and not held.committed
            and (committed is None or held.tag.save > committed)
        }
        return save not in in_flight and any(other < save for other in in_flight)


def expected_name(spec: SessionSpec) -> str:
    """Say how a session's saves are named."""
    if spec.shape.framework not in FILES:
        return "a directory named by its step"
    return f"a file {spec.job}-s<step>-n{spec.rank}-w<0 to {spec.shape.workers - 1}>.save"


def misfit(found: Found, spec: SessionSpec) -> str:
    """Say why a finished entry is no save of a running session; empty where it is one."""
    if (found.job is not None) is not (spec.shape.framework in FILES):
        return "a directory" if found.job is None else "a file"
    if found.job is None:
        return ""
    if found.job != spec.job:
        return f"job {quote(found.job, MAX_NAME)}"
    if found.rank != spec.rank:
        return f"rank {found.rank}"
    return f"worker {found.worker}" if found.worker >= spec.shape.workers else ""


def claim_of(found: Found, lineage: Lineage | None, coming: SessionSpec | None) -> Claim | None:
    """Say whose save a finished entry is; None: nobody's that this node knows."""
    if lineage is not None:
        spec, epoch = lineage.spec, lineage.epoch
    elif coming is not None:
        spec, epoch = coming, Epoch(0)
    else:
        return None
    file = found.job is not None
    if file is not (spec.shape.framework in FILES):
        return None
    rank, worker = (found.rank, found.worker) if file else (spec.rank, found.worker)
    if file and (found.job != spec.job or worker >= spec.shape.workers):
        return None
    if rank != spec.rank and (epoch or rank >= spec.shape.nodes):
        return None
    save = Save(epoch, Step(found.step))
    key = ShardKey(rank, worker)
    return Claim(job=spec.job, save=save, shape=spec.shape, key=key)
