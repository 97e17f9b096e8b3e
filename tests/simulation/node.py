"""One host: a ramdisk and three processes."""

from typing import TYPE_CHECKING

from checkpoint_replicator.ids import Host
from simulation.process import Process
from simulation.ramdisk import Ramdisk
from simulation.transferring import Transferring
from simulation.uploading import Uploading
from simulation.watching import Watching

if TYPE_CHECKING:
    from simulation.world import World

__all__ = ["Node"]


class Node:
    """A machine; what is on its ramdisk goes with `wipe`."""

    def __init__(self, world: "World", host: Host, size: int, inodes: int, skew: float) -> None:
        self.world = world
        self.host = host
        self.size = size
        self.inodes = inodes
        self.skew = skew
        self.disk = Ramdisk(size, entries_limit=inodes)
        self.replaced = 0
        self.watching = Watching(world, self)
        self.transferring = Transferring(world, self)
        self.uploading = Uploading(world, self)

    @property
    def processes(self) -> tuple[Process, ...]:
        return (self.watching, self.transferring, self.uploading)

    def start(self) -> None:
        """Start what does not run."""
        for process in self.processes:
            process.start()

    def crash(self) -> None:
        """Kill all three; the ramdisk stays."""
        for process in self.processes:
            process.crash()

    def wipe(self) -> None:
        """Lose the machine: processes and ramdisk; a new one takes its name."""
        self.crash()
        self.disk = Ramdisk(self.size, entries_limit=self.inodes)
        self.replaced += 1
        self.world.log(self.host, "wiped")
