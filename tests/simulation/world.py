"""The whole cluster in one process: hosts, coordinators, Redis, a backup store, trainers, and one source of chance."""

from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Final

from checkpoint_replicator.ids import Address, Host, Incarnation, Job, Rank
from checkpoint_replicator.inputlog import InputLog
from checkpoint_replicator.shape import Shape
from checkpoint_replicator.times import Times
from simulation.bucket import Bucket
from simulation.coordinating import Coordinating
from simulation.court import Court
from simulation.network import Network, Redis
from simulation.node import Node
from simulation.people import People
from simulation.process import Process
from simulation.ramdisk import INODES
from simulation.timeline import Timeline
from simulation.training import Training

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["TIMES", "World", "is_small"]

TIMES: Final = Times(
    report_gap=0.3,
    report=2.0,
    orders=2.0,
    suspect=5.0,
    lost=9.0,
    stuck=5.0,
    lease_renewed=2.0,
    lease_ttl=6.0,
    lease_margin=1.5,
    look=0.15,
    facts=4.0,
    hosts=3.0,
    repair=12.0,
    beacon=1.5,
    beacon_silent=4.0,
    scan=2.0,
    empty_yaml=3.0,
    consumed=12.0,
    shape_quarrel=4.0,
    rendezvous=40.0,
    failed=50.0,
    client=56.0,
    abandoned_quiet=1.5,
    abandoned_most=6.0,
    bucket_silent=8.0,
    want_parked=1.0,
    acknowledged=2.5,
    uploader_turn=5.0,
    store_silent=20.0,
)
"""The product's times, closer together, so that a run is short."""


SMALL: Final = 0.85
"""So many worlds are small: one job of two or three nodes with a worker each, at most one host without a rank beside
them, and a short trouble. Each of the others has up to eight nodes a job, two jobs, or a long trouble."""


class World:
    """Everything; made from a seed, and the same from the same seed.

    Attributes:
        small: one job of two or three nodes, a short trouble; see SMALL.
        trouble: seconds in which things go wrong.
    """

    def __init__(self, seed: int, tell: "Callable[[str], None] | None" = None, inputs: InputLog | None = None) -> None:
        self.seed = seed
        self.chance = Random(seed)
        self.timeline = Timeline()
        self.times = TIMES
        self.hits: Counter[str] = Counter()
        self.events = 0
        self._tell = tell
        self.inputs = inputs or InputLog(None)
        self._ids = 0
        chance = self.chance
        self.root = "memory://bucket" if chance.random() < 0.6 else None
        self.doom_rate = 0.0
        self.stored: Callable[[Node, Address], None] | None = None
        """Hears once of a leaf that is stored."""
        self.network = Network(self)
        self.redis = Redis(self)
        self.bucket = Bucket(self, "memory://bucket")
        self.court = Court(self)
        self.people = People(self)
        self.small = chance.random() < SMALL
        self.trouble = chance.uniform(8.0, 16.0) if self.small else 45.0
        self.tight = chance.random() < 0.15
        self.trainings: dict[Job, Training] = {}
        self.hosts: dict[Host, Node] = {}
        counts = (2, 2, 3) if self.small else (2, 3, 3, 4, 4, 5, 6, 8)
        self._found(Job("run"), chance.choice(counts))
        if not self.small and chance.random() < 0.3:
            self._found(Job("try"), chance.choice((1, 2, 2, 3)))
        for _ in range(chance.choice((0, 0, 0, 1) if self.small else (0, 0, 0, 1, 1, 2))):
            self._add(max(node.size for node in self.hosts.values()))
        self.coordinators = [
            Coordinating(self, f"c{number}", job, chance.uniform(0, 1000))
            for number in range(2)
            for job in self.trainings
        ]

    def _found(self, job: Job, nodes: int) -> None:
        """Make up a job and the hosts that it begins on."""
        chance = self.chance
        workers = 1 if self.small else chance.choice((1, 1, 2))
        directories = workers == 1 and chance.random() < 0.5
        d = 2 if nodes % 2 == 0 and chance.random() < 0.25 else 1
        peers = chance.choice((1, 1, 1, 2)) if nodes > 2 else 1
        shape = Shape(nodes, workers, d, "pytorch.distributed" if directories else "pytorch")
        training = self.trainings[job] = Training(self, job, shape, peers)
        training.alike = d > 1 and chance.random() < 0.5
        if self.root is not None and chance.random() < 0.8:
            training.backup_steps = chance.choice((1, 2, 4))
        shard = 32 if directories else 8
        size = shard * workers * (2 * (2 + peers) if self.tight else chance.choice((1, 4)) * (3 * (3 + peers) + 3))
        few = self.tight and chance.random() < 0.5
        names = (1 + 4 * directories + 4) * workers
        limit = 40 + names * (2 + peers) * 2 if few else INODES
        for rank in map(Rank, range(nodes)):
            training.homes[rank] = self._add(size if not few else 8 * size, limit)
        self.log("seed", self.seed, job, f"{shape}, {peers} peers, {size} bytes a host, backup {self.root}")

    def _add(self, size: int, inodes: int = INODES) -> Node:
        host = Host(f"h{len(self.hosts)}")
        self.hosts[host] = Node(self, host, size, inodes, self.chance.uniform(0, 1000))
        return self.hosts[host]

    # ---- what all use

    @property
    def now(self) -> float:
        return self.timeline.now

    @property
    def processes(self) -> list[Process]:
        return [*self.coordinators, *(process for node in self.hosts.values() for process in node.processes)]

    def new_id(self) -> str:
        self._ids += 1
        return f"id{self._ids:06d}"

    def coordinator(self, incarnation: Incarnation) -> Coordinating | None:
        return next((one for one in self.coordinators if one.running and one.incarnation == incarnation), None)

    def doom(self, effects: int) -> int | None:
        """After how many effects the process dies; None: it lives."""
        if self.doom_rate and effects and self.chance.random() < self.doom_rate:
            self.hits["died between two effects"] += 1
            return self.chance.randrange(effects)
        return None

    def happened(self, process: Process, event: object) -> None:
        """An event is handed to a machine."""
        self.events += 1
        self.court.touched = process
        if self._tell is not None:
            self._tell(f"{self.now:9.3f} {process.name:14} < {event!r:.3000}")

    def noted(self, process: Process, event: str, fields: "Mapping[str, object]") -> None:
        """A machine announced something."""
        self.hits[event] += 1
        if self._tell is not None:
            self.log(process.name, event, *(f"{key}={value}" for key, value in fields.items()))

    def log(self, who: str, *what: object) -> None:
        """Say what happens, for who replays a seed."""
        if self._tell is not None:
            self._tell(f"{self.now:9.3f} {who:14} {' '.join(map(str, what))}")

    # ---- running

    def start(self) -> None:
        """Start all processes and the job."""
        for process in self.processes:
            self.timeline.after(self.chance.uniform(0, 1.0), process.start)
        for training in self.trainings.values():
            training.restart("first start")

    def run(self, until: float, over: "Callable[[], bool] | None" = None) -> bool:
        """Go on, checking the laws after every event; True soon after `over` holds."""
        timeline, check = self.timeline, self.court.check
        while timeline.next <= until:
            timeline.step()
            check()
            if over is not None and self.events % 8 == 0 and over():
                return True
        self.timeline.now = until
        return over is None

    def explain(self) -> str:
        """Say how all stands."""
        told: list[str] = []
        for job, training in self.trainings.items():
            told += [
                f"{job} {rank} on {trainer.node.host}: {trainer.stage.name} {trainer.why}"
                for rank, trainer in training.trainers.items()
            ]
            epoch = training.laws.epoch
            told.append(f"{job} epoch {epoch.number} {epoch.state} {epoch.reason}" if epoch is not None else "no epoch")
        for host, node in self.hosts.items():
            held = Counter(f"{tag.job} {tag.save}{'' if one.own else '*'}" for tag, one in node.disk.sidecars.items())
            names = ", ".join(f"{name} x{count}" for name, count in sorted(held.items()))
            told.append(f"{host}: {node.disk.free} of {node.disk.size} bytes free, holds {names or 'nothing'}")
        return "; ".join(told)


def is_small(seed: int) -> bool:
    """Tell whether a seed makes a small world."""
    return World(seed).small
