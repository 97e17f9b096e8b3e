import msgspec

from checkpoint_replicator.ids import Host, Incarnation
from checkpoint_replicator.messages import Run, Want
from checkpoint_replicator.records import Peer
from checkpoint_transfer.budget import Budget
from checkpoint_transfer.holder import SayNotYet, SendLeaves
from checkpoint_transfer.leaves import LeafSet
from checkpoint_transfer.patience import Patience
from checkpoint_transfer.serving import MOST_RUNS, Serving
from checkpoint_transfer.source import source_of
from support.transfer_net import MIB, address_of

ONE = address_of(1)


def peer(name: str) -> Peer:
    return Peer(host=Host(name), incarnation=Incarnation("1"), control=f"c:{name}", leaves=())


def want(name: str, first: int, count: int) -> Want:
    return Want(address=ONE, answer_to=peer(name), runs=(Run(first=first, count=count),), credit=count * MIB)


def serving(budget: int = 64 * MIB, most: int = 10) -> Serving:
    return Serving(Budget(budget), 64 * MIB, most, Patience())


def test_a_want_for_an_unknown_shard_is_parked_until_it_is_known() -> None:
    peers = serving()
    assert peers.park(want("b", 0, 4), 0.0)
    assert peers.is_wanted(ONE)
    assert peers.open(ONE, [MIB] * 4, LeafSet.full(4)) == [want("b", 0, 4)]
    assert not peers.is_wanted(ONE)


def test_a_parked_want_comes_back_when_it_waited_too_long() -> None:
    peers = serving()
    peers.park(want("b", 0, 4), 0.0)
    assert peers.next_deadline() == 2.0
    assert peers.tick(1.9) == ([], [])
    assert peers.tick(2.0) == ([], [want("b", 0, 4)])


def test_only_so_many_wants_are_parked_and_peers_served() -> None:
    peers = serving(most=1)
    assert peers.park(want("b", 0, 4), 0.0)
    assert peers.park(want("b", 0, 2), 0.0)
    assert not peers.park(want("c", 0, 4), 0.0)
    peers.open(ONE, [MIB] * 4, LeafSet.full(4))
    assert peers.want(want("b", 0, 4), 0.0) is not None
    assert peers.want(want("c", 0, 4), 0.0) is None


def test_runs_outside_of_the_shard_are_not_taken() -> None:
    peers = serving()
    peers.open(ONE, [MIB] * 4, LeafSet.full(4))
    assert peers.want(want("b", 2, 3), 0.0) is None
    assert not peers.is_wanted(ONE)


def test_leaves_that_land_are_served_to_all_who_wait() -> None:
    peers = serving()
    have = LeafSet.empty(4)
    peers.open(ONE, [MIB] * 4, have)
    for name in ("b", "c"):
        assert peers.want(want(name, 1, 1), 0.0) == []
    have.add(1)
    sends = SendLeaves((Run(first=1, count=1),), MIB)
    assert peers.landed(ONE, 0.0) == [(peer("b"), sends), (peer("c"), sends)]
    assert peers.sent(ONE, peer("b")) == MIB


def test_leaves_known_anew_are_served_from_then_on() -> None:
    peers = serving()
    peers.open(ONE, [MIB] * 4, LeafSet.empty(4))
    assert peers.want(want("b", 0, 1), 0.0) == []
    peers.open(ONE, [MIB] * 4, LeafSet.full(4))
    assert len(peers.landed(ONE, 0.0)) == 1


def test_who_waited_for_the_budget_goes_on_when_it_is_free() -> None:
    peers = serving(budget=4 * MIB)
    peers.open(ONE, [MIB] * 8, LeafSet.full(8))
    assert peers.want(want("b", 0, 4), 0.0) != []
    assert peers.want(want("c", 4, 4), 0.0) == []
    assert peers.poke(0.0) == []
    peers.stop(ONE, source_of(peer("b")))
    assert peers.poke(0.0) == [(ONE, (peer("c"), SendLeaves((Run(first=4, count=4),), 4 * MIB)))]


def test_a_lost_or_silent_peer_gives_its_budget_back() -> None:
    budget = Budget(64 * MIB)
    peers = Serving(budget, 64 * MIB, 10, Patience())
    peers.open(ONE, [MIB] * 8, LeafSet.full(8))
    peers.want(want("b", 0, 4), 0.0)
    peers.lose(source_of(peer("b")))
    assert (budget.used, peers.is_wanted(ONE)) == (0, False)
    peers.want(want("b", 0, 4), 0.0)
    peers.tick(60.0)
    assert (budget.used, peers.is_wanted(ONE)) == (0, False)


def test_a_closed_shard_names_whom_it_served() -> None:
    peers = serving()
    peers.open(ONE, [MIB] * 8, LeafSet.empty(8))
    peers.want(want("b", 0, 4), 0.0)
    assert peers.close(ONE) == [peer("b")]
    assert peers.close(ONE) == []
    assert ONE not in peers


def test_parked_leaves_are_answered_not_yet_in_time() -> None:
    peers = serving()
    peers.open(ONE, [MIB] * 8, LeafSet.empty(8))
    peers.want(want("b", 0, 1), 0.0)
    effects, late = peers.tick(2.0)
    assert effects == [(ONE, (peer("b"), SayNotYet((Run(first=0, count=1),), gone=False, reason="not here yet")))]
    assert late == []


def test_parked_wants_name_so_many_runs_at_most() -> None:
    peers = serving()
    runs = (Run(first=0, count=1),) * (MOST_RUNS // 2)
    for name in ("b", "c"):
        assert peers.park(msgspec.structs.replace(want(name, 0, 1), runs=runs), 0.0)
    assert not peers.park(want("d", 0, 1), 0.0)
    peers.tick(2.0)
    assert peers.park(want("d", 0, 1), 2.0)


def test_a_want_that_is_parked_again_takes_the_place_of_the_first() -> None:
    peers = serving()
    whole = msgspec.structs.replace(want("b", 0, 1), runs=(Run(first=0, count=1),) * MOST_RUNS)
    for _ in range(2):
        assert peers.park(whole, 0.0)
    assert not peers.park(want("c", 0, 1), 0.0)
    assert peers.park(want("b", 0, 1), 0.0)
    assert peers.park(want("c", 0, 1), 0.0)
    assert len(peers.open(ONE, [MIB] * 4, LeafSet.full(4))) == 2
    assert not peers.is_wanted(ONE)
    assert peers.park(whole, 0.0)


def test_a_shard_is_wanted_as_long_as_one_peer_waits_for_it() -> None:
    peers = serving()
    peers.park(want("b", 0, 1), 0.0)
    peers.park(want("c", 0, 1), 1.0)
    assert len(peers.tick(2.0)[1]) == 1
    assert peers.is_wanted(ONE)
    assert len(peers.tick(3.0)[1]) == 1
    assert not peers.is_wanted(ONE)
