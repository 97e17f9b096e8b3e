"""What the parts of the machine share."""

import pytest

from checkpoint_replicator.ids import Host, Incarnation, Job
from checkpoint_replicator.messages import Fault, Held
from checkpoint_replicator.times import Times
from checkpoint_watcher.effects import AppendErrors, Register
from checkpoint_watcher.node import MAX_FAULTS, Node
from support.watcher_story import JOB, save, tag


@pytest.fixture
def node() -> Node:
    return Node(Host("node-0"), Incarnation("w1"), Times())


def test_the_inventory_knows_its_own_saves_by_shard(node: Node) -> None:
    own, copy = Held(tag=tag(1), own=True), Held(tag=tag(1, rank=1))
    node.stocktake([own, copy])
    assert node.of(JOB) == [own, copy]
    assert list(node.owned.values()) == [own.tag]
    assert node.standing(copy.tag.address)
    node.let_go(own.tag)
    assert not node.owned
    assert not node.standing(own.tag.address)
    node.let_go(own.tag)
    assert node.jobs == {JOB}


def test_a_commit_is_not_forgotten_by_an_inventory_that_was_taken_before_it_was_noted(node: Node) -> None:
    node.hold(Held(tag=tag(1), committed=True, own=True))
    node.stocktake([Held(tag=tag(1), own=True), Held(tag=tag(2), own=True)])
    assert [held.committed for held in node.held.values()] == [True, False]


def test_faults_are_told_once_and_bounded(node: Node) -> None:
    assert node.blame(Fault(kind="refused", reason="a", save=save(1)))
    assert not node.blame(Fault(kind="refused", reason="a", save=save(1)))
    assert node.blame(Fault(kind="refused", reason="b", save=save(1)))
    for step in range(2 * MAX_FAULTS):
        node.blame(Fault(kind="refused", reason="a", save=save(step)))
    assert len(node.faults) == MAX_FAULTS


def test_a_trainer_is_told_nothing_before_its_yaml_is_consumed(node: Node) -> None:
    node.complain("x")
    assert not [effect for effect in node.effects if isinstance(effect, AppendErrors)]


def test_one_event_registers_once(node: Node) -> None:
    node.jobs.add(Job("b"))
    node.jobs.add(Job("a"))
    node.register()
    node.register()
    assert node.effects == [Register((Job("a"), Job("b")))]


def test_a_reason_that_repeats_what_others_say_is_short_and_in_one_line(node: Node) -> None:
    fault = Fault(kind="uncopied", reason="new\nline\udcff" + "x" * 100_000, save=save(1))
    assert node.blame(fault)
    assert not node.blame(fault)
    [kept] = node.faults.values()
    assert kept.reason.startswith("new\\nline\\udcffxxx")
    assert len(kept.reason) < 1100
