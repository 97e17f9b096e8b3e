"""The laws of a machine, whatever job its data is of; and who judges which job."""

from collections import defaultdict
from typing import TYPE_CHECKING

from checkpoint_replicator.fence import ZERO, Stamp
from checkpoint_replicator.ids import Address, Host, Job
from checkpoint_replicator.messages import NodeReport
from checkpoint_replicator.records import NodeView
from checkpoint_replicator.save import Save, Tag
from checkpoint_transfer import effects as to_do
from checkpoint_transfer import receiving
from checkpoint_watcher import effects as do
from checkpoint_watcher import events as did
from simulation.laws import LawBrokenError, Laws
from simulation.process import Process
from simulation.watching import Watching

if TYPE_CHECKING:
    from simulation.node import Node
    from simulation.transferring import Transferring
    from simulation.world import World

__all__ = ["Court"]

Machine = tuple[Host, int]
"""A host and how often it was replaced."""


class Court:
    """Hears of every effect before or after it is done."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.obeyed: dict[tuple[Machine, Job], Stamp] = {}
        self.adopted: dict[tuple[Machine, Job], NodeView] = {}
        self.told_corrupt: set[tuple[Machine, Address]] = set()
        self.touched: Process | None = None
        """Who took the last event."""

    def of(self, job: Job) -> Laws:
        """Return who judges a job."""
        return self.world.trainings[job].laws

    def check(self) -> None:
        """After every event."""
        touched, self.touched = self.touched, None
        if isinstance(touched, Watching):
            self._obeys(touched)
        changes = 0
        for host in self.world.hosts.values():
            changes += host.disk.changes
        for training in self.world.trainings.values():
            training.laws.check(changes)

    # ---- what watchers do

    def intended(self, watching: Watching, effect: do.Effect) -> None:
        """A machine decided something that others must not undo."""
        match effect:
            case do.DropSaves(tags):
                for job in {tag.job for tag in tags}:
                    keep = watching.machine.authorities[job].keep
                    self.of(job).dropping(watching, [tag for tag in tags if tag.job == job], keep)
                self.world.hits["saves dropped"] += 1
                if any(tag.job != watching.machine.node.job for tag in tags):
                    self.world.hits["dropped by a host without a rank"] += 1
            case do.Quarantine(address):
                content = watching.node.disk.shards.get(address)
                if (machine_of(watching), address) not in self.told_corrupt:
                    raise LawBrokenError(5, f"{watching.host} drops a corrupt copy that it did not report")
                if content is not None and not content.bad():
                    raise LawBrokenError(5, f"{watching.host} drops a good copy as corrupt")
                self.world.hits["corrupt copy found"] += 1
            case _:
                pass

    def doing(self, watching: Watching, effect: do.Effect) -> None:
        """Just before it is done."""
        if isinstance(effect, do.PublishMarkers):
            record = watching.node.disk.session
            if record is not None and record.id == effect.session and record.spec is not None:
                self.of(record.spec.job).publishing(watching, record)

    def done(self, watching: Watching, effect: do.Effect, answer: did.Event | None) -> None:
        """Just after it was done."""
        match effect:
            case do.NameShard(_, tag) if isinstance(answer, did.ShardNamed):
                self.of(tag.job).named(watching.host, tag)
            case do.WriteFence(job, record):
                name = (machine_of(watching), job)
                if record.stamp < self.obeyed.get(name, ZERO):
                    raise LawBrokenError(7, f"{watching.host} lowered its fence to {record.stamp}")
                self.obeyed[name] = record.stamp
            case do.ForgetJob(job) if isinstance(answer, did.JobForgotten) and not answer.reason:
                self.obeyed.pop((machine_of(watching), job), None)
                self.world.hits["host forgot a job"] += 1
            case do.DropSaves() if isinstance(answer, did.SavesDropped) and answer.busy:
                self.world.hits["deletion vetoed by a reader"] += 1
            case _:
                pass

    def reported(self, watching: Watching, report: NodeReport) -> None:
        """A report left the node."""
        for fault in report.faults:
            if fault.kind == "corrupt" and fault.address is not None:
                self.told_corrupt.add((machine_of(watching), fault.address))

    def _obeys(self, watching: Watching) -> None:
        """After an event of a watcher: what it follows is not older than what it followed."""
        for job, authority in watching.machine.authorities.items():
            name = (machine_of(watching), job)
            if authority.view is None or self.adopted.get(name) is authority.view:
                continue
            self.adopted[name] = authority.view
            fence = authority.view.fence or ZERO
            if fence < self.obeyed.get(name, ZERO):
                raise LawBrokenError(7, f"{watching.host} obeys {fence} after {self.obeyed[name]}")

    # ---- what transfers do

    def copy_named(
        self, transferring: "Transferring", effect: to_do.NameShard, answer: receiving.ReceiverEvent
    ) -> None:
        """A received shard got its names."""
        if not isinstance(answer, receiving.ShardNamed):
            return
        name = (machine_of(transferring), effect.address)
        if name in self.told_corrupt:
            self.told_corrupt.discard(name)
            self.world.hits["corrupt copy replaced"] += 1
        tags: list[Tag] = [tag for naming in effect.namings for tag in naming.tags]
        for tag in tags:
            self.of(tag.job).named(transferring.host, tag)

    def copy_admitted(self, transferring: "Transferring", reserve: int) -> None:
        """Room was given to a peer's copy beside a reserve: the trainer's next save must still have its own.

        An order of the watcher that asks for more may be on its way: that is nobody's fault.
        """
        disk, watcher = transferring.node.disk, transferring.node.watching.machine
        job, told = watcher.node.job, watcher.saves.room.reserve
        own: dict[Save, int] = defaultdict(int)
        for tag, held in disk.sidecars.items():
            if held.own and tag.job == job:
                own[tag.save] += tag.size
        need = max(own.values(), default=0)
        on_its_way = reserve < need <= told
        if disk.free < need and not on_its_way and transferring.machine.report.version:
            raise LawBrokenError(
                8, f"{transferring.host} admits a copy although {need} bytes of its trainer do not fit"
            )

    def fence_lost(self, node: "Node") -> None:
        """A fault took what a machine knew of stamps."""
        machine = (node.host, node.replaced)
        for name in [name for name in self.obeyed if name[0] == machine]:
            del self.obeyed[name]

    # ---- the backup

    def stored(self, log: list[str]) -> None:
        """Objects were written or removed."""
        for line in log:
            act, _, name = line.partition(" ")
            laws = self.of(Job(name.partition("/")[0]))
            if act == "put":
                laws.stored(name)


def machine_of(process: "Watching | Transferring") -> Machine:
    """Return which machine a process runs on; another one may have taken its name."""
    return process.host, process.node.replaced
