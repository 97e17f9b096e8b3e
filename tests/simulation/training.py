"""The training job: a trainer a node that speaks the file contract, and a controller that starts them again."""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from checkpoint_replicator.ids import Epoch, Job, Rank, Step, Worker
from checkpoint_replicator.save import Save, ShardKey
from checkpoint_replicator.shape import Shape
from simulation.content import Content, make
from simulation.laws import Laws
from simulation.ramdisk import entries

if TYPE_CHECKING:
    from simulation.node import Node
    from simulation.world import World

__all__ = ["Stage", "Trainer", "Training"]

NEVER: Final = Epoch(0)
FOREVER: Final = float("inf")
LATE: Final = 0.3
"""Chance that the trainers of a job do not all die at one moment."""
POLL: Final = 0.7
"""Seconds between two looks of a trainer at its directory."""


class Stage(Enum):
    """Where a trainer is."""

    BEGINNING = auto()
    WRITTEN = auto()
    WAITING = auto()
    RUNNING = auto()
    DEAD = auto()


@dataclass
class Trainer:
    """One life of the trainer of one rank."""

    training: "Training"
    rank: Rank
    node: "Node"
    stage: Stage = Stage.BEGINNING
    since: float = 0.0
    why: str = ""
    step: int | None = None
    epoch: Epoch = NEVER
    until: float = FOREVER
    """When it dies although nobody told it yet: its fellows are dead, and it goes on for a moment."""
    machine: int = 0
    """How often its host was replaced before."""
    taken: dict[int, tuple[int, Content | None]] = field(default_factory=dict)

    @property
    def world(self) -> "World":
        return self.training.world

    def enter(self, stage: Stage, why: str = "") -> None:
        self.stage, self.since, self.why = stage, self.world.now, why
        if stage is Stage.DEAD:
            self.training.reasons.append(why)
        self.world.log(f"{self.training.job} {self.rank}", f"{stage.name} {why}")

    def poll(self) -> None:
        """Look at the directory and do what comes next."""
        world, disk = self.world, self.node.disk
        match self.stage:
            case Stage.BEGINNING:
                if disk.yaml is None:
                    disk.write_yaml(self.training.yaml(self.rank))
                    self.node.watching.look()
                    self.enter(Stage.WRITTEN)
            case Stage.WRITTEN:
                if disk.yaml is None:
                    self.enter(Stage.WAITING)
                    self.poll()
            case Stage.WAITING:
                if "replicator.failed" in disk.files:
                    self.training.laws.failed(self, disk.files["replicator.failed"])
                    self.enter(Stage.DEAD, disk.files["replicator.failed"])
                    return
                self._take_markers()
                if len(self.taken) == self.training.workers:
                    self._begin()
                elif world.now - self.since > world.times.client:
                    self.world.hits["trainer timed out"] += 1
                    self.enter(Stage.DEAD, "timed out")
            case _:
                pass

    def _take_markers(self) -> None:
        disk = self.node.disk
        for name in [name for name in disk.files if name.endswith(".restore")]:
            address = disk.files.pop(name)
            stem = name.removesuffix(".restore")
            step, worker = int(stem.split("-s")[-1].split("-")[0]), int(stem.split("-w")[-1])
            self.taken[worker] = (step, disk.handouts[name] if address else None)

    def _begin(self) -> None:
        record = self.node.disk.handed
        steps = {(step, content is None) for step, content in self.taken.values()}
        assert record is not None
        assert len(steps) == 1, f"markers of {steps} on {self.node.host}"
        ((step, nothing),) = steps
        self.epoch = record.epoch
        self.step = None if nothing else step
        self.training.laws.loaded(self)
        self.enter(Stage.RUNNING, f"from {self.step} in epoch {self.epoch}")

    def save(self, step: int) -> None:
        """Finish a save of a step, every worker its shard."""
        training, world = self.training, self.world
        if self.node.replaced != self.machine:
            return
        if "superseded" in self.node.disk.files.get("replicator.errors", ""):
            self.enter(Stage.DEAD, "people read that it is superseded")
            return
        if self._session_lost():
            return
        for worker in range(training.workers):
            key = ShardKey(self.rank, Worker(worker))
            content = training.content(key, Save(self.epoch, Step(step)))
            if self.node.disk.free < content.size or self.node.disk.entries_free < entries(content.tree) + 1:
                world.hits["save had no room"] += 1
                self.enter(Stage.DEAD, "the ramdisk is full")
                return
            name = str(step) if training.directories else f"{training.job}-s{step}-n{self.rank}-w{worker}.save"
            if name in self.node.disk.public:
                return  # the watcher is down and an older save of this name is still there
            save = Save(self.epoch, Step(step))
            training.laws.saved(save, key, content)
            self.node.disk.save(name, step, content, training.job_of_name, key)
        self.node.watching.look()

    def _session_lost(self) -> bool:
        """Whether people see that its saves are nobody's any more: its `session.json` is lost."""
        disk = self.node.disk
        if disk.session is not None or not self.node.watching.running:
            return False
        if self.node.watching.machine.node.session is not None:
            return False  # the watcher's memory has it, and writes it again
        told = "session.json" in disk.files.get("replicator.errors", "")
        self.world.hits["session lost and told" if told else "session lost, seen by failing saves"] += 1
        self.enter(Stage.DEAD, "people read that its session is lost")
        return True


class Training:
    """One job; it runs only while every rank does.

    Attributes:
        shape: of the next start.
        homes: where each rank is started.
        laws: what is true of it, and what must be.
        reasons: why trainers ended, in order.
    """

    def __init__(self, world: "World", job: Job, shape: Shape, peers: int) -> None:
        self.world = world
        self.job = job
        self.shape = shape
        self.peers = peers
        self.laws = Laws(world, self)
        self.trainers: dict[Rank, Trainer] = {}
        self.homes: dict[Rank, Node] = {}
        self.restarts = 0
        self.backup_steps: int | None = None
        self.saving = True
        self.stopped = False
        """People ended it, and nothing starts it but they."""
        self.next_step = 0
        self.reasons: list[str] = []
        self.alike = False
        """Data-parallel twins save the same bytes."""
        self._last: dict[ShardKey, Content] = {}
        self._twins: dict[ShardKey, tuple[Content, Save]] = {}
        self._stepping = 0
        self._begun = False
        self._shapes: list[Shape] = []
        """Of earlier starts."""

    @property
    def nodes(self) -> int:
        return self.shape.nodes

    @property
    def workers(self) -> int:
        return self.shape.workers

    @property
    def directories(self) -> bool:
        """Whether a save is a directory, and not a file."""
        return self.shape.framework != "pytorch"

    @property
    def job_of_name(self) -> Job | None:
        return None if self.directories else self.job

    def yaml(self, rank: Rank) -> bytes:
        """What a trainer writes."""
        keys: dict[str, object] = {
            "job-name": self.job,
            "framework": self.shape.framework,
            "node-rank": rank,
            "nodes": self.nodes,
            "workers-per-node": self.workers,
            "peers-per-node": self.peers,
        }
        if self.shape.d > 1:
            keys["assume-data-parallelism"] = self.shape.d
        if self.backup_steps is not None:
            keys["backup-interval-steps"] = self.backup_steps
        return "".join(f"{key}: {value}\n" for key, value in keys.items()).encode()

    def content(self, key: ShardKey, save: Save) -> Content:
        """Make up a shard; now and then the same bytes as before, or as another rank's.

        Twins save the same bytes, or, where people were wrong to say that they do, each its own.
        """
        if not self.alike:
            return self._make(key)
        first = ShardKey(Rank(key.rank % self.shape.columns), key.worker)
        if first not in self._twins or self._twins[first][1] != save:
            self._twins[first] = self._make(first), save
        return self._twins[first][0].copy()

    def _make(self, key: ShardKey) -> Content:
        chance = self.world.chance
        old = self._last.get(key)
        if old is None or chance.random() < 0.85:
            old = make(chance, directory=self.directories)
        elif chance.random() < 0.3:
            old = chance.choice(list(self._last.values()))
        self._last[key] = old
        return old.copy()

    # ---- the controller

    def restart(self, why: str) -> None:
        """End all trainers and start new ones, seconds apart; each ends before the next of its rank begins."""
        world, chance = self.world, self.world.chance
        if self.stopped:
            return
        world.people.read(self, why)
        self.restarts += 1
        self._stepping += 1
        world.log(self.job, f"restarted: {why}")
        before = next((one for one in self._shapes if f"is of {one}, the job is of {self.shape}" in why), None)
        if before is not None:
            world.hits["shape that does not fit told"] += 1
            self.reshape(before)
        late = chance.random() < LATE
        spread = chance.choice((2.5, 2.5, 6.0, 15.0))
        for trainer in self.trainers.values():
            if late and trainer.stage is Stage.RUNNING:
                trainer.until = world.now + chance.uniform(0.0, 2.0)
            else:
                trainer.stage = Stage.DEAD
        old, self.trainers = self.trainers, {}
        for rank in map(Rank, range(self.nodes)):
            ended = max(0.0, old[rank].until - world.now) if rank in old and old[rank].until < FOREVER else 0.0
            self.start(rank, ended + chance.uniform(0.2, spread))

    def stop(self, why: str) -> None:
        """End all trainers, and start none."""
        self.world.log(self.job, f"stopped: {why}")
        self.stopped = True
        self._stepping += 1
        for trainer in self.trainers.values():
            trainer.stage = Stage.DEAD

    def reshape(self, shape: Shape) -> bool:
        """Begin with another shape from the next start on; False: there are too few hosts."""
        homes = {rank: node for rank, node in self.homes.items() if rank < shape.nodes}
        taken = {node for training in self.world.trainings.values() for node in training.homes.values()}
        free = [node for node in self.world.hosts.values() if node not in taken]
        for rank in map(Rank, range(shape.nodes)):
            if rank not in homes:
                if not free:
                    return False
                homes[rank] = free.pop(0)
        self._shapes.append(self.shape)
        self.shape, self.homes = shape, homes
        self.world.log(self.job, f"is of {shape} now")
        return True

    def start(self, rank: Rank, delay: float) -> None:
        """Start one trainer."""
        self._begun = False
        trainer = Trainer(self, rank, self.homes[rank], machine=self.homes[rank].replaced)
        self.trainers[rank] = trainer
        trainer.enter(Stage.BEGINNING)

        def poll() -> None:
            if self.trainers.get(rank) is trainer and trainer.stage is not Stage.DEAD:
                trainer.poll()
                if trainer.stage is not Stage.RUNNING:
                    self.world.timeline.after(POLL, poll)
                self.look()

        self.world.timeline.after(delay, poll)

    def again(self, rank: Rank) -> None:
        """Start one trainer anew; the others stop where they are until it is there."""
        if self.stopped:
            return
        self._stepping += 1
        self.start(rank, self.world.chance.uniform(0.2, 2.5))

    def look(self) -> None:
        """See whether all run, or one is dead."""
        trainers = self.trainers.values()
        if any(trainer.stage is Stage.DEAD for trainer in trainers):
            why = next(trainer.why for trainer in trainers if trainer.stage is Stage.DEAD)
            self._stepping += 1
            turn = self._stepping
            self.world.timeline.after(
                self.world.chance.uniform(0.5, 2.0), lambda: self.restart(why) if turn == self._stepping else None
            )
        elif self.running and not self._begun:
            self._begun = True
            epochs = {trainer.epoch for trainer in trainers}
            steps = {trainer.step for trainer in trainers}
            assert len(steps) == 1, f"trainers begin at steps {steps} in epochs {epochs}"
            (step,) = steps
            self.next_step = 0 if step is None else step + 1
            self.world.hits["job ran"] += 1
            self._stepping += 1
            self._later(self._stepping)

    def _stop_if_dead(self, trainer: Trainer) -> None:
        if trainer.stage is Stage.DEAD:
            self.look()

    @property
    def running(self) -> bool:
        """Whether every rank trains."""
        return all(trainer.stage is Stage.RUNNING for trainer in self.trainers.values())

    def _later(self, turn: int) -> None:
        self.world.timeline.after(self.world.chance.uniform(1.5, 6.0), lambda: self._save(turn))

    def _save(self, turn: int) -> None:
        """All ranks save a step, not quite at the same time; a rank that cannot go on stops all."""
        if turn != self._stepping or not self.running or not self.saving:
            return
        step, self.next_step = self.next_step, self.next_step + 1
        for trainer in list(self.trainers.values()):

            def save(one: Trainer = trainer) -> None:
                if one.stage is Stage.RUNNING and (turn == self._stepping or self.world.now < one.until < FOREVER):
                    self.world.hits["saved after its fellows died"] += turn != self._stepping
                    one.save(step)
                    if self.trainers.get(one.rank) is one:
                        self._stop_if_dead(one)

            self.world.timeline.after(self.world.chance.uniform(0.0, 1.0), save)
        self._later(turn)
