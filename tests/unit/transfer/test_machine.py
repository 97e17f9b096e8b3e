import msgspec
import pytest

from checkpoint_replicator.ids import Address, Host, Incarnation, Rank, Worker
from checkpoint_replicator.machine import Ticked
from checkpoint_replicator.messages import (
    CopyState,
    FetchOrder,
    FetchState,
    Leaves,
    NotYet,
    Offer,
    OfferOrder,
    Party,
    Refused,
    Run,
    Service,
    Stored,
    TransferOrders,
    Want,
)
from checkpoint_replicator.save import ShardKey
from checkpoint_transfer import effects as do
from checkpoint_transfer.machine import Limits
from checkpoint_transfer.source import source_of
from support.transfer_net import BAD, JOB, MIB, Net, address_of, fetch, offer, pair, tag_of, token


def test_a_shard_is_offered_sent_stored_and_reported() -> None:
    net, a, b = pair(100)
    offer(a, 1, 100, b)
    net.wait(1)
    assert a.copy(1, "b").state is CopyState.STORED
    assert b.holds(1)
    assert b.machine.report.landed == 1
    assert b.open == a.open == set()


def test_every_peer_of_an_order_gets_the_shard() -> None:
    net = Net("a", "b", "c")
    a, b, c = net.nodes.values()
    a.disk.put(tag_of(1, 20), 20)
    offer(a, 1, 20, b, c)
    net.wait(1)
    assert b.holds(1)
    assert c.holds(1)


def test_an_offer_without_room_beside_the_reserve_is_refused_before_the_first_byte_and_tried_again() -> None:
    net, a, b = pair(20)
    b.disk.room = 30 * MIB
    b.reserve = 11 * MIB
    b.order()
    offer(a, 1, 20, b)
    net.wait(0.5)
    assert a.copy(1, "b").state is CopyState.REFUSED
    assert a.copy(1, "b").reason.startswith("no_room: ")
    assert not any(isinstance(message, Want) for message in b.told)
    assert b.report is not None
    assert b.report.lacking == {JOB: MIB}
    b.reserve = 10 * MIB
    b.order()
    net.wait(10)
    assert b.holds(1)
    assert b.report.lacking == {}


def test_law_8_nothing_is_known_of_the_trainers_save_but_that_there_is_one() -> None:
    net, a, b = pair(20)
    b.trainer = True
    b.order()
    offer(a, 1, 20, b)
    net.wait(1)
    (opened,) = b.opened
    assert opened.reserve == do.Reserve(0, 0, alike=True)


def test_law_8_old_partials_are_looked_at_every_ten_seconds_and_yield_only_to_a_trainer() -> None:
    net = Net("a", "b")
    a = net.nodes["a"]
    a.reserve = 7
    a.order()
    fetch(a, 1, 20, net.nodes["b"])
    net.wait(9)
    a.trainer = True
    a.order()
    net.wait(20)
    busy = frozenset({address_of(1)})
    first, *others = a.trimmed
    assert first.reserve == 0
    assert others == [do.TrimPartials(7, busy)] * 2


def test_a_shard_that_stands_already_is_stored_at_once() -> None:
    net = Net("a", "b")
    a, b = net.nodes["a"], net.nodes["b"]
    for node in (a, b):
        node.disk.put(tag_of(1, 20), 20)
    offer(a, 1, 20, b)
    net.wait(1)
    assert a.copy(1, "b").state is CopyState.STORED
    assert b.disk.stored == {}


def test_a_fetch_takes_leaves_from_all_holders_at_once() -> None:
    net = Net("a", "b", "c")
    a, b, c = net.nodes.values()
    for node in (a, b):
        node.disk.put(tag_of(1, 100), 100)
    fetch(c, 1, 100, a, b)
    net.settle()
    assert c.holds(1)
    report = c.fetch(1)
    assert (report.state, report.have, report.by_source) == (FetchState.DONE, 100 * MIB, {"peer": 100 * MIB})
    assert c.disk.stored[address_of(1)] == 100


def test_a_node_serves_what_it_is_still_receiving() -> None:
    net = Net("a", "b", "c")
    a, b, c = net.nodes.values()
    a.disk.put(tag_of(1, 40), 40)
    fetch(c, 1, 40, b)
    fetch(b, 1, 40, a)
    net.wait(5)
    assert b.holds(1)
    assert c.holds(1)


def test_the_backup_serves_when_no_peer_has_the_shard() -> None:
    net, _a, b = pair(6)
    net.backup["b1"] = {address_of(1)}
    fetch(b, 1, 6, backup="b1")
    net.wait(1)
    assert b.holds(1)
    assert b.fetch(1).by_source == {"backup": 6 * MIB}


def test_a_fetch_that_no_source_can_complete_says_why_of_each() -> None:
    net = Net("a", "b")
    b = net.nodes["b"]
    fetch(b, 1, 6, net.nodes["a"], backup="b1")
    net.wait(60)
    assert b.fetch(1).state is FetchState.FAILED
    assert "a: not here" in b.fetch(1).reason
    assert "backup b1: is not in the backup" in b.fetch(1).reason


def test_a_corrupt_copy_is_never_named_and_the_next_source_used() -> None:
    net = Net("a", "b", "c")
    a, b, c = net.nodes.values()
    for node in (a, b):
        node.disk.put(tag_of(1, 20), 20)
    a.disk.shards[address_of(1)][7] = BAD
    fetch(c, 1, 20, a, b)
    net.wait(5)
    assert c.holds(1)


def test_a_shard_rewritten_after_hashing_is_mutated_and_offered_no_more() -> None:
    net, a, b = pair(20)
    a.disk.shards[address_of(1)][7] = BAD
    offer(a, 1, 20, b)
    net.wait(5)
    assert a.copy(1, "b").state is CopyState.MUTATED
    [fault] = a.machine.report.corrupt
    assert (fault.kind, fault.address) == ("mutated", address_of(1))
    assert not b.holds(1)
    told = len(a.told)
    net.wait(30)
    assert len(a.told) == told


def test_a_corrupt_copy_that_is_served_is_checked_reported_and_served_no_more() -> None:
    net, a, b = pair(20)
    a.disk.shards[address_of(1)][7] = BAD
    fetch(b, 1, 20, a)
    net.wait(5)
    [fault] = a.machine.report.corrupt
    assert fault.kind == "corrupt"
    assert b.fetch(1).state is FetchState.FAILED
    assert "a: " in b.fetch(1).reason


def test_a_shard_that_vanished_is_told_to_be_gone() -> None:
    net, a, b = pair(100)
    fetch(b, 1, 100, a)
    for _ in range(12):
        net.deliver()
    del a.disk.shards[address_of(1)]
    net.wait(1)
    assert "is gone" in b.fetch(1).reason


def test_a_stopped_offer_and_fetch_stop_and_the_partial_stays() -> None:
    net, a, b = pair(100)
    fetch(b, 1, 100, a)
    while b.disk.stored.get(address_of(1), 0) < 8:
        net.deliver()
    b.fetches = ()
    b.order()
    net.wait(2)
    assert b.machine.report.fetches == ()
    assert 8 <= len(b.disk.partials[address_of(1)]) < 100
    assert b.machine._incoming.used == 0


def test_a_restarted_receiver_goes_on_from_its_partial() -> None:
    net, a, b = pair(100)
    fetch(b, 1, 100, a)
    while b.disk.stored.get(address_of(1), 0) < 8:
        net.deliver()
    b = net.start("b")
    fetch(b, 1, 100, a)
    net.wait(3)
    assert b.holds(1)
    assert b.disk.stored[address_of(1)] == 100


def test_s62_another_life_of_the_peer_is_offered_the_shard_anew() -> None:
    net, a, b = pair(20)
    offer(a, 1, 20, b)
    net.wait(1)
    b.disk.wipe()
    b = net.start("b")
    a.offers = ()
    offer(a, 1, 20, b)
    net.wait(1)
    assert b.holds(1)


def test_late_orders_of_one_watcher_change_nothing() -> None:
    net, a, b = pair(20)
    offer(a, 1, 20, b)
    offer(a, 1, 20, b)
    late = TransferOrders(version=1)
    a.take(do.MessageCame(a.watcher, JOB, late))
    net.wait(1)
    assert b.holds(1)


def test_orders_of_another_hosts_watcher_are_not_obeyed() -> None:
    net = Net("a")
    a = net.nodes["a"]
    stranger = Party(host=Host("b"), service=Service.WATCHER, incarnation=Incarnation("1"))
    a.take(do.MessageCame(stranger, JOB, TransferOrders(version=5, fetches=(FetchOrder(tags=(tag_of(1, 1),)),))))
    assert a.machine.report.fetches == ()


def test_more_copies_at_once_than_allowed_are_refused_as_busy() -> None:
    net = Net("a", "b", limits=Limits(copies=1))
    a, b = net.nodes["a"], net.nodes["b"]
    for number in (1, 2):
        a.disk.put(tag_of(number, 4), 4)
    for number in (1, 2):
        message = Offer(tags=(tag_of(number, 4),), answer_to=a.peer, address=address_of(number))
        b.take(do.MessageCame(a.me, JOB, message, (b"4",)))
    refused = [message for message in b.told if isinstance(message, Refused)]
    assert [(message.address, message.kind) for message in refused] == [(address_of(2), "busy")]


def test_an_offer_of_two_addresses_is_refused_for_good() -> None:
    net = Net("a", "b")
    a, b = net.nodes["a"], net.nodes["b"]
    message = Offer(tags=(tag_of(1, 4), tag_of(2, 4)), answer_to=a.peer)
    b.take(do.MessageCame(a.me, JOB, message, (b"4",)))
    [refused] = b.told
    assert isinstance(refused, Refused)
    assert (refused.kind, refused.retry) == ("unsupported", False)


def test_the_same_shard_under_a_second_name_is_named_without_sending() -> None:
    net, a, b = pair(20)
    offer(a, 1, 20, b)
    net.wait(1)
    other = tag_of(1, 20)
    twin = msgspec.structs.replace(other, key=ShardKey(Rank(0), Worker(1)))
    a.offers = (*a.offers, OfferOrder(tag=twin, to=(b.peer,)))
    a.order()
    net.wait(1)
    assert {(address_of(1), other), (address_of(1), twin)} <= b.disk.named
    assert b.disk.stored[address_of(1)] == 20


def test_an_ordered_fetch_and_an_offer_of_one_shard_share_the_leaves() -> None:
    net, a, b = pair(60)
    fetch(b, 1, 60, a)
    offer(a, 1, 60, b)
    net.wait(2)
    assert b.holds(1)
    assert b.fetch(1).state is FetchState.DONE
    assert a.copy(1, "b").state is CopyState.STORED
    assert b.disk.stored[address_of(1)] == 60


def test_a_lost_holder_gives_way_to_the_other() -> None:
    net = Net("a", "b", "c")
    a, b, c = net.nodes.values()
    for node in (a, b):
        node.disk.put(tag_of(1, 100), 100)
    fetch(c, 1, 100, a, b)
    for _ in range(10):
        net.deliver()
    net.start("a")
    c.take(do.PeerLost(source_of(a.peer), "its connection ended"))
    net.settle()
    assert c.holds(1)


@pytest.mark.parametrize("runs", [(Run(first=90, count=20),), (Run(first=0, count=1),) * 101])
def test_a_want_outside_of_the_shard_is_answered_and_changes_nothing(runs: tuple[Run, ...]) -> None:
    _net, a, b = pair(100)
    a.take(do.MessageCame(b.me, JOB, Want(address=address_of(1), answer_to=b.peer, runs=runs, credit=MIB)))
    a.settle()
    assert [type(message) for message in a.told] == [NotYet]
    assert a.machine._outgoing.used == 0


def test_messages_about_nothing_known_are_dropped() -> None:
    net = Net("a", "b")
    a, b = net.nodes["a"], net.nodes["b"]
    run = (Run(first=0, count=1),)
    for message in (
        Leaves(address=address_of(9), runs=run),
        NotYet(address=address_of(9), runs=run),
        Stored(address=address_of(9), tags=()),
        Refused(address=address_of(9), kind="no_room", reason=""),
        Want(address=address_of(9), answer_to=b.peer),
        Want(address=Address("../../etc/passwd"), answer_to=b.peer, tree=True),
        Offer(tags=(), answer_to=b.peer, address=address_of(9)),
    ):
        a.take(do.MessageCame(b.me, JOB, message, (b"x",)))
        a.settle()
    assert a.told == []


def test_leaves_whose_frames_do_not_match_their_runs_are_dropped() -> None:
    net, a, b = pair(4)
    fetch(b, 1, 4, a)
    for _ in range(4):
        net.deliver()
    b.take(do.MessageCame(a.me, JOB, Leaves(address=address_of(1), runs=(Run(first=0, count=4),)), ()))
    net.wait(1)
    assert b.holds(1)


def test_a_second_complaint_within_a_minute_does_not_hash_the_shard_again() -> None:
    net, a, b = pair(4)
    complaint = do.MessageCame(b.me, JOB, Refused(address=address_of(1), kind="corrupt", reason="leaf 1"))
    first = a.machine.handle(complaint, net.now)
    assert do.CheckShard(address_of(1)) in first
    assert do.CheckShard(address_of(1)) not in a.machine.handle(complaint, net.now + 59)


def test_a_complaint_that_died_with_the_transfer_is_looked_into_by_its_next_life() -> None:
    net, a, b = pair(4)
    a.disk.shards[address_of(1)][2] = BAD
    complaint = do.MessageCame(b.me, JOB, Refused(address=address_of(1), kind="corrupt", reason="leaf 2"))
    assert do.CheckShard(address_of(1)) in a.machine.handle(complaint, net.now)  # and it dies before it has looked
    again = net.start("a")
    again.look()
    again.order()
    net.wait(2)
    assert again.report is not None
    [fault] = again.report.corrupt
    assert (fault.kind, fault.address, fault.reason) == ("corrupt", address_of(1), "1 leaves differ")


def test_what_stood_before_is_hashed_one_after_another_as_soon_as_the_watcher_speaks() -> None:
    net = Net("a")
    a = net.nodes["a"]
    for number in (1, 2):
        a.disk.put(tag_of(number, 1), 1)

    def checked(event: do.TransferEvent) -> list[do.TransferEffect]:
        effects = a.machine.handle(event, net.now)
        return [effect for effect in effects if isinstance(effect, do.CheckShard)]

    assert checked(do.ShardsFound((address_of(1), address_of(2)))) == []
    assert checked(do.MessageCame(a.watcher, JOB, TransferOrders(version=1))) == [do.CheckShard(address_of(1))]
    assert checked(do.MessageCame(a.watcher, JOB, TransferOrders(version=2))) == []
    assert checked(do.ShardChecked(address_of(1), "")) == [do.CheckShard(address_of(2))]
    assert checked(do.ShardChecked(address_of(2), "")) == []


def test_reports_come_each_second_and_at_changes_but_not_too_often() -> None:
    net = Net("a")
    a = net.nodes["a"]
    a.take(Ticked())
    assert a.report is not None
    assert a.machine.next_deadline() == net.now + 1.0
    a.fetches = (FetchOrder(tags=(tag_of(1, 1),)),)
    a.order()
    assert a.machine.next_deadline() == net.now + 0.1


def test_many_fetches_share_the_window() -> None:
    net = Net("a", "b")
    a, b = net.nodes["a"], net.nodes["b"]
    for number in range(4):
        a.disk.put(tag_of(number, 50), 50)
    for number in range(4):
        fetch(b, number, 50, a)
    net.wait(5)
    assert all(b.holds(number) for number in range(4))
    assert token(address_of(0), 0) == b.disk.shards[address_of(0)][0]


def test_nothing_is_kept_of_shards_that_peers_ask_for_in_vain() -> None:
    net = Net("a", "b")
    a, b = net.nodes["a"], net.nodes["b"]
    sender = Party(host=Host("b"), service=Service.TRANSFER, incarnation=b.peer.incarnation)
    machine = a.machine
    before = vars(machine)["_jobs"].copy()
    for number in range(3000):
        want = Want(address=address_of(number), answer_to=b.peer, tree=True)
        machine.handle(do.MessageCame(sender, JOB, want), net.now)
        machine.handle(do.ShardAbsent(address_of(number), "not here"), net.now)
    for second in range(1, 10):
        machine.handle(Ticked(), net.now + second)
    assert vars(machine)["_jobs"] == before


def test_strangers_complaints_of_shards_have_few_hashed_again() -> None:
    net = Net("a")
    machine = net.nodes["a"].machine
    sender = Party(host=Host("b"), service=Service.TRANSFER)
    wanted = 0
    for number in range(1000):
        refused = Refused(address=address_of(number), kind="corrupt", reason="x")
        effects = machine.handle(do.MessageCame(sender, JOB, refused), net.now)
        wanted += sum(isinstance(effect, do.CheckShard) for effect in effects)
    assert wanted == 64


def test_a_minute_later_a_strangers_complaint_is_looked_into_again() -> None:
    net = Net("a")
    machine = net.nodes["a"].machine
    sender = Party(host=Host("b"), service=Service.TRANSFER)

    def hashed(numbers: range, now: float) -> int:
        complaints = (Refused(address=address_of(number), kind="corrupt", reason="x") for number in numbers)
        effects = [one for said in complaints for one in machine.handle(do.MessageCame(sender, JOB, said), now)]
        return sum(isinstance(effect, do.CheckShard) for effect in effects)

    assert hashed(range(32), net.now) == 32
    assert hashed(range(32, 100), net.now + 30) == 32
    assert hashed(range(100), net.now + 60) == 32
    assert hashed(range(100), net.now + 89) == 0
    assert hashed(range(100), net.now + 90) == 32


def test_a_tree_is_not_sent_again_and_again_to_one_peer() -> None:
    net = Net("a", "b")
    a, b = net.nodes["a"], net.nodes["b"]
    sender = Party(host=Host("b"), service=Service.TRANSFER, incarnation=b.peer.incarnation)
    want = do.MessageCame(sender, JOB, Want(address=address_of(1), answer_to=b.peer, tree=True, credit=1))

    def sent(event: do.TransferEvent, now: float) -> int:
        return sum(isinstance(effect, do.SendOffer) for effect in a.machine.handle(event, now))

    assert sent(want, net.now) == 0
    assert sent(do.ShardOpened(address_of(1), [MIB]), net.now) == 1
    assert [sent(want, net.now) for _ in range(5)] == [0] * 5
    assert sent(want, net.now + 1) == 1


def test_what_peers_say_is_repeated_shortly() -> None:
    net, a, b = pair(1)
    offer(a, 1, 1, b)
    sender = Party(host=Host("b"), service=Service.TRANSFER, incarnation=b.peer.incarnation)
    refused = Refused(address=address_of(1), kind="k" * 1000, reason="new\nline" * 100_000)
    a.machine.handle(do.MessageCame(sender, JOB, refused), net.now)
    [copy] = a.machine.report.copies
    assert len(copy.reason) < 500
    assert copy.reason.isprintable()
