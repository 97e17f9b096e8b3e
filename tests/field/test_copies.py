"""Rows about shards on their way: transfers' machines on paper, over a network that the test rules."""

import pytest

from checkpoint_replicator.machine import Ticked
from checkpoint_replicator.messages import CopyState, FetchState
from checkpoint_transfer.machine import Limits
from support.transfer_net import BAD, MIB, Net, address_of, fetch, offer, pair, tag_of, token


def test_s05_of_three_holders_with_two_corrupt_ones_the_third_gives_what_is_named() -> None:
    net = Net("a", "b", "c", "d")
    a, b, c, d = net.nodes.values()
    for node in (a, b, c):
        node.disk.put(tag_of(1, 20), 20)
    a.disk.shards[address_of(1)][7] = BAD
    b.disk.shards[address_of(1)][7] = BAD
    fetch(d, 1, 20, a, b, c)
    net.wait(10)
    assert d.holds(1)
    assert [fault.kind for node in (a, b) for fault in node.machine.report.corrupt] == ["corrupt", "corrupt"]
    assert not c.machine.report.corrupt


def test_s13_one_of_fifty_pieces_fails_and_nothing_is_replicated_until_it_is_right() -> None:
    net, a, b = pair(50)
    good = a.disk.shards[address_of(1)][31]
    a.disk.shards[address_of(1)][31] = BAD
    fetch(b, 1, 50, a)
    net.wait(5)
    assert b.fetch(1).state is FetchState.FAILED
    assert b.fetch(1).have == 49 * MIB
    assert "leaf 31" in b.fetch(1).reason
    assert b.disk.named == set()
    a.disk.shards[address_of(1)][31] = good
    a = net.start("a")
    fetch(b, 1, 50, a)
    net.wait(15)
    assert b.holds(1)
    assert b.disk.stored[address_of(1)] == 50


def test_s45_a_save_of_which_everything_was_rewritten_is_mutated_and_not_sent_for_ever() -> None:
    net, a, b = pair(40)
    a.disk.shards[address_of(1)] = [BAD] * 40
    offer(a, 1, 40, b)
    net.wait(5)
    assert a.copy(1, "b").state is CopyState.MUTATED
    assert not b.disk.named


@pytest.mark.parametrize("dead", ["a", "b"])
def test_s60_what_a_dead_peer_was_asked_for_is_asked_of_another_and_nothing_is_lost(dead: str) -> None:
    net = Net("a", "b", "c")
    a, b, c = net.nodes.values()
    for node in (a, b):
        node.disk.put(tag_of(1, 200), 200)
    fetch(c, 1, 200, a, b)
    for _ in range(8):
        net.deliver()
    kept = [posted for posted in net.posted if dead not in {posted.receiver.host, posted.sender.host}]
    net.posted[:] = kept  # every message from and to it is lost without an error
    net.disks[dead].shards.clear()
    net.start(dead)
    net.wait(30)
    assert c.holds(1)
    assert c.disk.stored[address_of(1)] == 200


def test_s60_messages_for_an_earlier_life_are_dropped() -> None:
    net, a, b = pair(20)
    offer(a, 1, 20, b)
    late = list(net.posted)
    b = net.start("b")
    for posted in late:
        net.hand(posted)
    assert (b.told, b.disk.partials) == ([], {})


def test_s67_a_receiver_that_stalls_makes_its_sender_hold_no_more_than_the_window() -> None:
    net = Net("a", "b", limits=Limits(outgoing=32 * MIB, serve=16 * MIB, window=16 * MIB, incoming=16 * MIB))
    a, b = net.nodes["a"], net.nodes["b"]
    a.disk.put(tag_of(1, 2048), 2048)
    fetch(b, 1, 2048, a)
    sent = 0
    for _ in range(200):  # what the receiver is sent is never delivered
        posted = next((one for one in net.posted if one.receiver.host == "a"), None)
        if posted is None:
            break
        net.posted.remove(posted)
        net.hand(posted)
    a.settle()
    sent = sum(len(frame.split(b",")) for one in net.posted for frame in one.body if one.receiver.host == "b")
    assert 0 < sent <= 16 + 2048 // 2048
    assert a.machine._outgoing.used <= 32 * MIB


def test_fault_5_a_copier_that_is_killed_leaves_a_copy_that_is_not_called_one_and_goes_on() -> None:
    """There the copy was called replicated and the older save deleted, while the replica was missing."""
    net, a, b = pair(100)
    offer(a, 1, 100, b)
    while b.disk.stored.get(address_of(1), 0) < 40:
        net.deliver()
    b = net.start("b")  # the kernel killed it for its memory
    assert a.copy(1, "b").state is not CopyState.STORED
    assert b.disk.named == set()
    for _ in range(3):
        net.wait(1)
        assert a.copy(1, "b").state is not CopyState.STORED
    offer(a, 1, 100, b)  # the orders name its new life
    net.wait(3)
    assert a.copy(1, "b").state is CopyState.STORED
    assert b.holds(1)
    assert b.disk.stored[address_of(1)] == 100


def test_fault_5_a_sender_that_is_killed_begins_anew_by_itself() -> None:
    net, a, b = pair(100)
    offer(a, 1, 100, b)
    while b.disk.stored.get(address_of(1), 0) < 40:
        net.deliver()
    a = net.start("a")
    offer(a, 1, 100, b)
    net.wait(60)
    assert a.copy(1, "b").state is CopyState.STORED
    assert b.disk.stored[address_of(1)] == 100


def test_fault_9_a_bit_error_in_the_backup_is_never_named_and_the_fetch_says_where() -> None:
    net, a, b = pair(20)
    net.backup["2026-01-01_00-00"] = {address_of(1)}
    net.spoiled.add((address_of(1), 13))
    fetch(b, 1, 20, backup="2026-01-01_00-00")
    net.wait(20)
    assert b.fetch(1).state is FetchState.FAILED
    assert b.disk.named == set()
    assert "backup 2026-01-01_00-00: gave leaf 13 corrupt 2 times" in b.fetch(1).reason
    fetch(b, 1, 20, a, backup="2026-01-01_00-00")  # a peer has it: its good leaves and the backup's make the shard
    net.wait(20)
    assert b.holds(1)
    assert b.disk.stored[address_of(1)] == 20


def test_fault_24_a_peer_that_cannot_be_reached_gets_nothing_and_is_named_until_it_is_back() -> None:
    net, a, b = pair(20)
    offer(a, 1, 20, b)
    net.posted.clear()
    for _ in range(30):
        net.now += 1
        a.take(Ticked())
        a.settle()
        assert a.copy(1, "b").state is not CopyState.STORED
        net.posted.clear()
    assert a.copy(1, "b").host == "b"
    net.wait(30)
    assert a.copy(1, "b").state is CopyState.STORED
    assert b.disk.shards[address_of(1)] == [token(address_of(1), leaf) for leaf in range(20)]
