"""What goes wrong, and when: chance decides, from the seed."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from checkpoint_replicator.ids import Rank
from checkpoint_replicator.session import SessionState
from simulation.content import spoil
from simulation.node import Node
from simulation.process import Process
from simulation.training import Stage

if TYPE_CHECKING:
    from simulation.world import World

__all__ = ["Faults"]


class Faults:
    """The troubles of one run."""

    def __init__(self, world: "World") -> None:
        self.world = world
        chance = world.chance
        network = world.network
        network.loss = chance.choice((0.0, 0.0, 0.02, 0.1, 0.3))
        network.repeats = chance.choice((0.0, 0.05, 0.2))
        network.late = chance.choice((0.0, 0.02, 0.1, 0.3))
        network.garbled = chance.choice((0.0, 0.0, 0.1, 0.3))
        world.redis.doubt = chance.choice((0.0, 0.0, 0.02, 0.1))
        world.bucket.failing = chance.choice((0.0, 0.0, 0.05))
        world.bucket.deadly = chance.choice((0.0, 0.0, 0.01))
        world.doom_rate = chance.choice((0.0, 0.0, 0.001, 0.004))
        self._kinds: list[tuple[Callable[[], None], int]] = [
            (self._crash_one, 5),
            (self._crash_node, 2),
            (self._crash_coordinator, 3),
            (self._pause, 3),
            (self._pause_coordinator, 2),
            (self._wipe, 3),
            (self._wipe_all, 3),
            (self._move, 1),
            (self._spoil, 4),
            (self._stop_redis, 2),
            (self._flush, 1),
            (self._save_redis, 1),
            (self._set_redis_back, 1),
            (self._stop_bucket, 1),
            (self._cut_off, 2),
            (self._kill_trainer, 2),
            (self._restart_job, 2),
        ]
        self._gap = chance.choice((1.5, 3.0, 6.0) if world.small else (2.0, 4.0, 8.0, 15.0))
        self._over = False

    def begin(self) -> None:
        """Let trouble come for a while."""
        self._next()

    def end(self) -> None:
        """From now on all is well, and what was stopped is started."""
        world = self.world
        self._over = True
        world.network.calm()
        world.redis.doubt, world.redis.down = 0.0, False
        world.bucket.calm()
        world.doom_rate = 0.0
        world.log("faults", "over")
        for process in world.processes:
            process.start()
            if process.paused:
                process.paused_until = world.now
                process._resume(process.life)

    def _next(self) -> None:
        world = self.world

        def strike() -> None:
            if self._over:
                return
            kinds, weights = zip(*self._kinds, strict=True)
            kind = world.chance.choices(kinds, weights)[0]
            kind()
            self._next()

        world.timeline.after(world.chance.expovariate(1 / self._gap), strike)

    def _later(self, least: float, most: float, action: Callable[[], None]) -> None:
        def act() -> None:
            if not self._over:
                action()

        self.world.timeline.after(self.world.chance.uniform(least, most), act)

    def _node(self) -> Node:
        return self.world.chance.choice(list(self.world.hosts.values()))

    # ---- processes

    def _crash_one(self) -> None:
        self._crash(self.world.chance.choice(self._node().processes))

    def _crash(self, process: Process) -> None:
        if process.running:
            process.crash()
        self._later(0.1, self.world.chance.choice((1.0, 4.0, 15.0)), process.start)

    def _crash_node(self) -> None:
        node = self._node()
        node.crash()
        self._later(0.5, self.world.chance.choice((3.0, 15.0)), node.start)

    def _crash_coordinator(self) -> None:
        self._crash(self.world.chance.choice(self.world.coordinators))

    def _pause(self) -> None:
        self.world.chance.choice(self._node().processes).pause(self.world.chance.choice((1.0, 5.0, 12.0)))

    def _pause_coordinator(self) -> None:
        self.world.hits["coordinator paused"] += 1
        self.world.chance.choice(self.world.coordinators).pause(self.world.chance.choice((2.0, 7.0, 9.0)))

    # ---- ramdisks

    def _wipe(self) -> None:
        self._lose(self._node())

    def _lose(self, node: Node) -> None:
        node.wipe()
        self.world.hits["node replaced"] += 1
        self._lose_trainers(node)
        self._later(0.5, self.world.chance.choice((2.0, 12.0)), node.start)

    def _wipe_all(self) -> None:
        """Every machine goes, mostly where a backup stands."""
        if self.world.laws.backed_up or self.world.chance.random() < 0.2:
            for node in self.world.hosts.values():
                self._lose(node)

    def _lose_trainers(self, node: Node) -> None:
        training = self.world.training
        for trainer in training.trainers.values():
            if trainer.node is node and trainer.stage is not Stage.DEAD:
                trainer.enter(Stage.DEAD, "its machine is gone")
        training.look()

    def _move(self) -> None:
        """A rank goes to a host that has none, or two ranks change their hosts."""
        world, training = self.world, self.world.training
        free = [node for node in world.hosts.values() if node not in training.homes.values()]
        rank = Rank(world.chance.randrange(training.nodes))
        if free:
            training.homes[rank] = free[0]
        else:
            other = Rank(world.chance.randrange(training.nodes))
            homes = training.homes
            homes[rank], homes[other] = homes[other], homes[rank]
        world.hits["rank moved"] += 1
        self._restart_job()

    def _spoil(self) -> None:
        """Flip a bit at rest, in bytes that nobody verified for the session that waits for them."""
        node = self._node()
        disk = node.disk
        waiting = disk.session is not None and disk.session.state is SessionState.OPEN
        handed = {id(content) for content in disk.handouts.values()}
        open_to = [
            address
            for address, content in disk.shards.items()
            if not (waiting and address in disk.proven) and id(content) not in handed
        ]
        if not open_to:
            return
        address = self.world.chance.choice(open_to)
        content = disk.shards[address]
        number = self.world.chance.randrange(len(content.leaves))
        content.leaves[number] = spoil(self.world.chance, content.leaves[number])
        disk.spoiled.add(address)
        disk.changes += 1
        self.world.log(node.host, "spoiled", address[:13])
        self.world.hits["copy spoiled"] += 1

    # ---- the world outside

    def _stop_redis(self) -> None:
        self.world.redis.down = True
        self.world.log("redis", "down")

        def back() -> None:
            self.world.redis.down = False
            self.world.log("redis", "up")

        self._later(0.5, self.world.chance.choice((3.0, 12.0)), back)

    def _flush(self) -> None:
        self.world.redis.model.flush()
        self.world.log("redis", "flushed")
        self.world.hits["redis flushed"] += 1

    def _save_redis(self) -> None:
        self.world.redis.save()

    def _set_redis_back(self) -> None:
        self.world.redis.go_back()
        self.world.log("redis", "went back")
        self.world.hits["redis went back"] += 1

    def _stop_bucket(self) -> None:
        self.world.bucket.down = True

        def back() -> None:
            self.world.bucket.down = False

        self._later(1.0, 15.0, back)

    def _cut_off(self) -> None:
        host = self._node().host
        self.world.network.cut_off.add(host)
        self.world.log(host, "cut off")
        self._later(0.5, 12.0, lambda: self.world.network.cut_off.discard(host))

    # ---- the job

    def _kill_trainer(self) -> None:
        """One trainer comes again while its fellows go on."""
        training = self.world.training
        rank = Rank(self.world.chance.randrange(training.nodes))
        training.trainers[rank].stage = Stage.DEAD
        training.again(rank)

    def _restart_job(self) -> None:
        self.world.training.restart("as people wished")
