"""Coordinators, nodes and a model of Redis under seeded faults: laws are checked after every tick, then all heals."""

import os
from random import Random

import pytest

from checkpoint_replicator.ids import Epoch
from checkpoint_replicator.save import Save, parse_save, shards_of
from checkpoint_replicator.session import SessionState
from checkpoint_replicator.shape import Shape
from support.coordination import JOB, Bench
from support.fake_nodes import Bucket, FakeNode

SEEDS = range(int(os.environ.get("SEEDS", "16")))


class Storm:
    """One seed: a job of a few nodes and everything that may happen to it."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.nodes_wanted = self.chance.choice([2, 3, 4])
        self.shape = Shape(self.nodes_wanted, self.chance.choice([1, 2]), 1, "pytorch")
        self.bench = Bench(bucket=Bucket() if self.chance.random() < 0.3 else None)
        self.nodes = [self.bench.node(f"node-{rank}") for rank in range(self.nodes_wanted)]
        for name in ("c1", "c2"):
            self.bench.coordinator(name)
        self.committed: set[Save] = set()
        self.agreed: dict[Epoch, Save | None] = {}
        self.steps = dict.fromkeys(range(self.nodes_wanted), 0)
        self.log: list[str] = []
        self.bench.laws.append(self.check)

    # ---- laws

    def check(self) -> None:
        if self.bench.store.down is None:
            self.committed.update(map(parse_save, self.bench.committed()))
        newest = max(self.committed, default=None)
        if newest is not None:
            have = {tag.key for node in self.nodes for tag in node.held if tag.save == newest}
            missing = set(shards_of(self.shape)) - have
            assert not missing, f"law 3: committed save {newest} lost {missing}: {self.log}"
        for node in self.nodes:
            session = node.session
            if session is None or session.state is not SessionState.RUNNING:
                continue
            save = node.restored[-1][0]
            known = self.agreed.setdefault(session.epoch, save)
            assert known == save, f"law 2: epoch {session.epoch} restored {known} and {save}: {self.log}"

    def restored_is_honest(self, before: Save | None) -> None:
        """What a restart brings back is not older than what was committed."""
        for node in self.nodes:
            save = node.restored[-1][0]
            assert before is None or (save is not None and save >= before), (
                f"law 10: {before} became {save}: {self.log}"
            )

    # ---- what happens

    def step(self) -> None:
        actions = {
            self.save: 8,
            self.restart: 2,
            self.one_session: 1,
            self.kill: 2,
            self.revive: 4,
            self.pause: 1,
            self.resume: 3,
            self.flush: 1,
            self.down: 1,
            self.up: 3,
            self.copies: 1,
            self.fault: 1,
            self.lose_a_node: 1,
            self.replace_a_coordinator: 1,
        }
        action = self.chance.choices(list(actions), list(actions.values()))[0]
        self.log.append(f"{self.bench.clock.now:.1f} {action.__name__}")
        action()
        self.bench.run(self.chance.choice([0.1, 0.3, 1, 3, 9]))

    def save(self) -> None:
        """Trainers save the next step; one or another may be late or skip it."""
        for rank, node in enumerate(self.nodes):
            session = node.session
            running = session is not None and session.state is SessionState.RUNNING and node.alive
            if running and self.chance.random() < 0.9:
                self.steps[rank] = max(self.steps.values()) if self.chance.random() < 0.8 else self.steps[rank] + 1
                node.save(self.steps[rank])
        for rank in self.steps:
            self.steps[rank] = max(self.steps.values()) + (rank == 0)

    def restart(self) -> None:
        for rank, node in enumerate(self.nodes):
            if node.alive:
                node.open(rank, self.shape)
                if self.chance.random() < 0.3:
                    self.bench.run(self.chance.choice([0.1, 1, 4]))

    def one_session(self) -> None:
        rank = self.chance.randrange(len(self.nodes))
        if self.nodes[rank].alive:
            self.nodes[rank].open(rank, self.shape)

    def any_node(self) -> FakeNode:
        return self.chance.choice(self.nodes)

    def kill(self) -> None:
        self.any_node().alive = False

    def revive(self) -> None:
        for node in self.nodes:
            if not node.alive:
                node.start()

    def pause(self) -> None:
        self.chance.choice(self.bench.coordinators).paused = True

    def resume(self) -> None:
        for coordinator in self.bench.coordinators:
            coordinator.paused = False

    def flush(self) -> None:
        self.bench.store.flush()

    def down(self) -> None:
        self.bench.store.down = "connection refused"

    def up(self) -> None:
        self.bench.store.down = None

    def copies(self) -> None:
        node = self.any_node()
        node.copies = not node.copies

    def fault(self) -> None:
        node = self.any_node()
        node.fetch_fault = None if node.fetch_fault else "every source was tried"

    def lose_a_node(self) -> None:
        """A ramdisk is gone, where the newest committed save can do without it."""
        node = self.any_node()
        newest = max(self.committed, default=None)
        others = {tag.key for one in self.nodes if one is not node for tag in one.held if tag.save == newest}
        if newest is None or others == set(shards_of(self.shape)):
            node.wipe()
            node.start()

    def replace_a_coordinator(self) -> None:
        """One is killed and another comes, which remembers nothing."""
        coordinators = self.bench.coordinators
        coordinators.remove(self.chance.choice(coordinators))
        self.bench.coordinator(f"c{self.bench.clock.now:.1f}")

    # ---- the end

    def heal(self) -> None:
        self.up()
        self.resume()
        self.revive()
        for node in self.nodes:
            node.copies, node.fetch_fault = True, None
        for _ in range(2):  # a decision to fail may still be on its way to the first ones
            for rank, node in enumerate(self.nodes):
                node.open(rank, self.shape)
            if self.bench.run(120, self.bench.all_running):
                break
        before = max(self.committed, default=None)
        assert self.bench.all_running(), f"{self.bench.store.snapshot(JOB).hashes.get('epoch')}: {self.log}"
        self.restored_is_honest(before)
        step = max(self.steps.values()) + 5
        save = {node.save(step) for node in self.nodes}.pop()
        committed = self.bench.run(30, lambda: str(save) in self.bench.committed())
        assert committed, f"{save} never committed: {self.bench.store.snapshot(JOB).hashes}: {self.log}"
        self.bench.run(5)
        left = {tag.save for node in self.nodes for tag in node.held}
        pinned = {parse_save(f["save"]) for k, f in self.bench.store.snapshot(JOB).hashes.items() if k == "lastbackup"}
        assert left <= {save, *pinned}, f"left over: {left}: {self.log}"


@pytest.mark.parametrize("seed", SEEDS)
def test_no_storm_breaks_a_law_and_all_is_well_afterwards(seed: int) -> None:
    storm = Storm(seed)
    for rank, node in enumerate(storm.nodes):
        node.open(rank, storm.shape)
    for _ in range(40):
        storm.step()
    storm.heal()
