"""What goes wrong, and when: chance decides, from the seed."""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Final

import msgspec

from checkpoint_replicator.ids import Address, Rank
from checkpoint_replicator.session import SessionState
from simulation.content import spoil
from simulation.network import REDIS, Cut, Path
from simulation.node import Node
from simulation.process import Process
from simulation.training import Stage, Training

if TYPE_CHECKING:
    from simulation.world import World

__all__ = ["Faults"]

EVERY: Final = 0.3
"""Chance that not one copy is spoilt but every one of a shard."""
DAY: Final = 86400.0
BETWEEN: Final = 0.6
"""Chance that a file changes while the process that owns it is down."""
DAMAGED: Final = 0.5
UNSEEN: Final = 30.0
"""Seconds from the silence of the backup store until what was lost meanwhile is told as lost."""
PAUSES: Final = (1.0, 5.0, 12.0, 12.0, 30.0, 60.0)
"""Past every time-out: of a connection, a lease, a life, a rendezvous."""


class Faults:
    """The troubles of one run."""

    def __init__(self, world: "World", without: frozenset[str] = frozenset()) -> None:
        self.world = world
        self.chance = chance = Random(f"{world.seed} faults")
        """Of each stroke its own, so that one that is left out does not change the others."""
        self.troubles: list[str] = []
        self._without = without
        self._number = 0
        network = world.network
        network.loss = chance.choice((0.0, 0.0, 0.02, 0.1, 0.3))
        network.repeats = chance.choice((0.0, 0.05, 0.2))
        network.late = chance.choice((0.0, 0.02, 0.1, 0.3))
        network.garbled = chance.choice((0.0, 0.0, 0.1, 0.3))
        world.redis.doubt = chance.choice((0.0, 0.0, 0.02, 0.1))
        world.bucket.failing = chance.choice((0.0, 0.0, 0.05))
        world.bucket.deadly = chance.choice((0.0, 0.0, 0.01))
        world.doom_rate = chance.choice((0.0, 0.0, 0.001, 0.004))
        self._spare()
        self._kinds: list[tuple[Callable[[], None], int]] = [
            (self._crash_one, 5),
            (self._crash_node, 2),
            (self._crash_coordinator, 3),
            (self._pause, 3),
            (self._pause_coordinator, 2),
            (self._wipe, 3),
            (self._wipe_all, 3),
            (self._move, 1),
            (self._reshape, 1),
            (self._spoil, 8),
            (self._stop_redis, 2),
            (self._flush, 1),
            (self._save_redis, 1),
            (self._set_redis_back, 1),
            (self._restrict_redis, 1),
            (self._jump, 1),
            (self._stop_bucket, 1),
            (self._forbid_bucket, 1),
            (self._slow_bucket, 1),
            (self._vanish, 1),
            (self._cut_off, 2),
            (self._kill_trainer, 2),
            (self._restart_job, 2),
            (self._lose_record, 2),
            (self._rot, 3),
            (self._lose_unseen, 1),
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
        world.redis.doubt, world.redis.down, world.redis.read_only = 0.0, False, ""
        world.bucket.calm()
        world.doom_rate = 0.0
        world.log("faults", "over")
        for process in world.processes:
            process.start()
            if process.paused:
                process.paused_until = world.now
                process._resume(process.life)

    def _spare(self) -> None:
        """Leave out what is not wanted of that which is wrong all the time, and name the rest."""
        world = self.world
        for place, name in (
            (world.network, "loss"),
            (world.network, "repeats"),
            (world.network, "late"),
            (world.network, "garbled"),
            (world.redis, "doubt"),
            (world.bucket, "failing"),
            (world.bucket, "deadly"),
            (world, "doom_rate"),
        ):
            if name in self._without:
                setattr(place, name, 0.0)
            elif getattr(place, name):
                self.troubles.append(name)

    def _next(self) -> None:
        """Let the next stroke come; what and when is the number's alone, whatever the others do."""
        self._number += 1
        self.chance = chance = Random(f"{self.world.seed} {self._number}")
        gap = chance.expovariate(1 / self._gap)
        kinds, weights = zip(*self._kinds, strict=True)
        kind = chance.choices(kinds, weights)[0]

        def strike() -> None:
            if self._over:
                return
            name = f"{self._number}:{kind.__name__.strip('_')}"
            if name not in self._without:
                self.troubles.append(name)
                kind()
            self._next()

        self.world.timeline.after(gap, strike)

    def _later(self, least: float, most: float, action: Callable[[], None]) -> None:
        def act() -> None:
            if not self._over:
                action()

        self.world.timeline.after(self.chance.uniform(least, most), act)

    def _node(self) -> Node:
        return self.chance.choice(list(self.world.hosts.values()))

    # ---- processes

    def _crash_one(self) -> None:
        self._crash(self.chance.choice(self._node().processes))

    def _crash(self, process: Process) -> None:
        if process.running:
            process.crash()
        self._later(0.1, self.chance.choice((1.0, 4.0, 15.0)), process.start)

    def _crash_node(self) -> None:
        node = self._node()
        node.crash()
        self._later(0.5, self.chance.choice((3.0, 15.0)), node.start)

    def _crash_coordinator(self) -> None:
        self._crash(self.chance.choice(self.world.coordinators))

    def _pause(self) -> None:
        self.chance.choice(self._node().processes).pause(self.chance.choice(PAUSES))

    def _pause_coordinator(self) -> None:
        self.world.hits["coordinator paused"] += 1
        self.chance.choice(self.world.coordinators).pause(self.chance.choice((2.0, 7.0, 9.0, 25.0)))

    # ---- ramdisks

    def _wipe(self) -> None:
        self._lose(self._node())

    def _lose(self, node: Node) -> None:
        node.wipe()
        self.world.hits["node replaced"] += 1
        self._lose_trainers(node)
        self._later(0.5, self.chance.choice((2.0, 12.0)), node.start)

    def _wipe_all(self) -> None:
        """Every machine goes, mostly where a backup stands."""
        backed_up = any(training.laws.backed_up for training in self.world.trainings.values())
        if backed_up or self.chance.random() < 0.2:
            for node in self.world.hosts.values():
                self._lose(node)

    def _lose_trainers(self, node: Node) -> None:
        for training in self.world.trainings.values():
            for trainer in training.trainers.values():
                if trainer.node is node and trainer.stage is not Stage.DEAD:
                    trainer.enter(Stage.DEAD, "its machine is gone")
            training.look()

    def _move(self) -> None:
        """A rank goes to a host that has none, or two ranks change their hosts, be they of two jobs."""
        chance = self.chance
        training = self._training()
        taken = [node for one in self.world.trainings.values() for node in one.homes.values()]
        free = [node for node in self.world.hosts.values() if node not in taken]
        rank = Rank(chance.randrange(training.nodes))
        if free and chance.random() < 0.7:
            training.homes[rank] = chance.choice(free)
        else:
            other = self._training()
            its = Rank(chance.randrange(other.nodes))
            training.homes[rank], other.homes[its] = other.homes[its], training.homes[rank]
            if other is not training:
                self.world.hits["hosts changed their jobs"] += 1
                other.restart("its host was given away")
        self.world.hits["rank moved"] += 1
        training.restart("a rank moved")

    def _reshape(self) -> None:
        """A job comes back with another shape: of more or fewer twins, or one that does not fit."""
        chance, training = self.chance, self._training()
        shape = training.shape
        if shape.d > 1 or chance.random() < 0.5:
            d = chance.choice([d for d in (1, 2, 3) if d != shape.d])
            wanted = msgspec.structs.replace(shape, nodes=shape.columns * d, d=d)
        else:
            nodes = max(1, shape.nodes + chance.choice((-1, 1)))
            wanted = msgspec.structs.replace(shape, nodes=nodes)
        if wanted == shape or not training.reshape(wanted):
            return
        name = "job shrank" if wanted.nodes < shape.nodes else "job grew"
        self.world.hits[name if shape.fits(wanted) else "shape that does not fit"] += 1
        training.restart(f"with {wanted}")

    def _spoil(self) -> None:
        """Flip a bit at rest, in one copy; or in every copy of a shard of the newest save, which is restored next."""
        training = self._training()
        tags = [t for node in self.world.hosts.values() for t in node.disk.sidecars if t.job == training.job]
        if tags and self.chance.random() < EVERY:
            newest = max(tag.save for tag in tags)
            address = self.chance.choice(sorted({tag.address for tag in tags if tag.save == newest}))
            if sum(self._flip(node, address) for node in self.world.hosts.values()):
                self.world.hits["every copy spoiled"] += 1
                training.restart("its newest save is spoilt")
            return
        node = self._node()
        open_to = [address for address in node.disk.shards if self._may_flip(node, address)]
        if open_to:
            self._flip(node, self.chance.choice(open_to))

    def _may_flip(self, node: Node, address: Address) -> bool:
        """Not in bytes that were verified for a session that waits for them, or that its trainer was handed."""
        disk = node.disk
        if address not in disk.shards:
            return False
        waiting = disk.session is not None and disk.session.state is SessionState.OPEN
        handed = {id(content) for content in disk.handouts.values()}
        return not (waiting and address in disk.proven) and id(disk.shards[address]) not in handed

    def _flip(self, node: Node, address: Address) -> bool:
        if not self._may_flip(node, address):
            return False
        content = node.disk.shards[address]
        number = self.chance.randrange(len(content.leaves))
        content.leaves[number] = spoil(self.chance, content.leaves[number])
        node.disk.spoiled.add(address)
        node.disk.changes += 1
        self.world.log(node.host, "spoiled", address[:13])
        self.world.hits["copy spoiled"] += 1
        return True

    def _vanish(self) -> None:
        """Somebody removes a shard's bytes by hand."""
        disk = self._node().disk
        if not disk.shards:
            return
        address = self.chance.choice(list(disk.shards))
        if address in disk.readers or (disk.session is not None and disk.session.state is SessionState.OPEN):
            return
        del disk.shards[address]
        for name in [name for name, given in disk.given.items() if given == address]:
            del disk.given[name]
        disk.changes += 1
        self.world.hits["copy vanished"] += 1

    def _lose_record(self) -> None:
        """`session.json` or `fence.json` is gone or damaged: while the watcher runs, or between two of its lives."""
        node, chance = self._node(), self.chance
        between = chance.random() < BETWEEN
        name = chance.choice(("session", "fence", "fence"))
        damaged = chance.random() < DAMAGED
        if between:
            self._crash(node.watching)
        if name == "session" and node.disk.session is not None:
            node.disk.lose_session(damaged=damaged)
        elif name == "fence" and node.disk.fences:
            node.disk.lose_fences(damaged=damaged)
            self.world.court.fence_lost(node)
        else:
            return
        self.world.log(node.host, f"{name}.json", "damaged" if damaged else "lost")
        self.world.hits[f"{name}.json lost {'between two lives' if between else 'under a running watcher'}"] += 1

    def _rot(self) -> None:
        """Flip a bit in the next copy that comes, while it is received, or when its transfer was killed amid it."""
        chance = self.chance
        self.world.stored = lambda node, address: self.world.timeline.after(
            0.0, lambda: self._rot_one(chance, node, address)
        )

    def _rot_one(self, chance: Random, node: Node, address: Address) -> None:
        partial = node.disk.partials.get(address)
        if self._over or partial is None or not partial.leaves:
            return
        if chance.random() < BETWEEN:
            node.transferring.crash()
            self.world.timeline.after(chance.uniform(0.1, 4.0), node.transferring.start)
        if not self._may_rot(node, address):
            return
        number = chance.choice(sorted(partial.leaves))
        node.disk.rot(address, number, spoil(chance, partial.leaves[number]))
        state = "while it is received" if address in node.disk.readers else "while nobody receives it"
        self.world.log(node.host, "rot in", address[:13], state)
        self.world.hits[f"partial rotted {state}"] += 1

    def _may_rot(self, node: Node, address: Address) -> bool:
        """Not in what was verified for a session that waits for it, and is being received for it."""
        session = node.disk.session
        waiting = session is not None and session.state is SessionState.OPEN
        return not (waiting and address in node.disk.readers)

    # ---- the world outside

    def _stop_redis(self) -> None:
        self.world.redis.down = True
        self.world.log("redis", "down")

        def back() -> None:
            self.world.redis.down = False
            self.world.log("redis", "up")

        self._later(0.5, self.chance.choice((3.0, 12.0)), back)

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

    def _restrict_redis(self) -> None:
        """It refuses writes: it became a replica, or its memory is full."""
        redis = self.world.redis
        redis.read_only = self.chance.choice(("READONLY", "OOM", "LOADING"))

        def back() -> None:
            redis.read_only = ""

        self._later(1.0, self.chance.choice((4.0, 15.0)), back)

    def _jump(self) -> None:
        """Another machine serves Redis, whose clock is off."""
        self.world.redis.jump(self.chance.choice((-DAY, -60.0, 60.0, DAY)))
        self.world.hits["clock of Redis jumped"] += 1

    def _forbid_bucket(self) -> None:
        self.world.bucket.forbidden = True

        def back() -> None:
            self.world.bucket.forbidden = False

        self._later(1.0, 15.0, back)

    def _slow_bucket(self) -> None:
        """Orders take long, and listings show the past."""
        bucket, chance = self.world.bucket, self.chance
        bucket.slow, bucket.late = chance.choice((1.0, 8.0, 50.0)), chance.choice((0.0, 2.0, 5.0))

        def back() -> None:
            bucket.slow, bucket.late = 1.0, 0.0

        self._later(3.0, 25.0, back)

    def _cut_off(self) -> None:
        """One path breaks, or all of a host, or the hosts fall apart in two."""
        chance, network = self.chance, self.world.network
        names = [*self.world.hosts, *sorted({one.host for one in self.world.coordinators}), REDIS]
        some = frozenset(chance.sample(names, chance.randint(1, max(1, len(names) // 2))))
        one = frozenset({self._node().host})
        path = chance.choice(list(Path))
        cuts = chance.choice(
            (
                [Cut(None, one, None), Cut(None, None, one)],
                [Cut(None, some, frozenset(names) - some), Cut(None, frozenset(names) - some, some)],
                [Cut(path, one, None), Cut(path, None, one)],
                [Cut(path, one, None)],
                [Cut(path, None, one)],
                [Cut(path, None, None)],
            )
        )
        network.cuts += cuts
        self.world.log("network", "cut", *cuts)

        def heal() -> None:
            for cut in cuts:
                if cut in network.cuts:
                    network.cuts.remove(cut)
            self.world.log("network", "healed", *cuts)

        self._later(0.5, chance.choice((3.0, 12.0, 25.0)), heal)

    # ---- the job

    def _training(self) -> Training:
        return self.chance.choice(list(self.world.trainings.values()))

    def _kill_trainer(self) -> None:
        """One trainer comes again while its fellows go on."""
        training = self._training()
        rank = Rank(self.chance.randrange(training.nodes))
        training.trainers[rank].stage = Stage.DEAD
        training.again(rank)

    def _lose_unseen(self) -> None:
        """What is committed is lost while the backup store says nothing: not known at first, then lost."""
        world, training = self.world, self._training()
        if world.root is None or training.laws.backed_up:
            return
        world.bucket.forbidden = True
        world.trouble = max(world.trouble, world.now + UNSEEN)
        self._lose_when_committed(training, world.now + UNSEEN / 3)

    def _lose_when_committed(self, training: Training, end: float) -> None:
        world = self.world
        if self._over or training.laws.backed_up:
            return
        if training.laws.committed and training.running:
            world.hits["all lost while the backup store is silent"] += 1
            for node in world.hosts.values():
                self._lose(node)
        elif world.now < end:
            world.timeline.after(0.5, lambda: self._lose_when_committed(training, end))

    def _restart_job(self) -> None:
        self._training().restart("as people wished")
