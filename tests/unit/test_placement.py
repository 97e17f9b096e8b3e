from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint_replicator.ids import Host, Rank
from checkpoint_replicator.placement import neighbours, place


def apart(nodes: int) -> dict[Rank, Host]:
    return {Rank(rank): Host(f"node-{rank}") for rank in range(nodes)}


def test_the_contracts_neighbours_are_the_partner_then_the_farthest_on_the_ring() -> None:
    assert neighbours(Rank(0), 4) == (1, 2, 3)
    assert neighbours(Rank(3), 4) == (2, 1, 0)
    assert neighbours(Rank(0), 8)[:3] == (1, 4, 3)
    assert neighbours(Rank(2), 3) == (0, 1)
    assert neighbours(Rank(0), 1) == ()


@pytest.mark.parametrize("nodes", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("factor", [1, 2, 3])
def test_s36_any_number_of_nodes_works_with_any_factor(nodes: int, factor: int) -> None:
    hosts = apart(nodes)
    load: Counter[Rank] = Counter()
    for rank in hosts:
        placement = place(rank, hosts, peers_per_node=factor)
        assert rank not in placement.peers
        assert len(set(placement.peers)) == len(placement.peers) == min(factor, nodes - 1)
        assert not placement.same_host
        load.update(placement.peers)
    assert not load or max(load.values()) <= factor + 2


def test_named_peers_lose_self_duplicates_and_ranks_that_do_not_exist() -> None:
    placement = place(Rank(1), apart(3), peer_ranks=[Rank(1), Rank(2), Rank(2), Rank(9), Rank(0)])
    assert placement.peers == (2, 0)
    assert placement.asked == 2


def test_named_peers_win_over_a_number() -> None:
    assert place(Rank(0), apart(4), peer_ranks=[Rank(3)], peers_per_node=2).peers == (3,)


def test_no_peers_asked_means_none() -> None:
    assert place(Rank(0), apart(3)).peers == ()
    assert place(Rank(0), apart(3), peer_ranks=[], peers_per_node=2).peers == ()


def test_s80_a_copy_goes_to_another_host_where_there_is_one() -> None:
    hosts = {Rank(0): Host("a"), Rank(1): Host("a"), Rank(2): Host("b")}
    assert place(Rank(0), hosts, peers_per_node=1).peers == (2,)
    assert place(Rank(0), hosts, peers_per_node=2).peers == (2,)
    assert place(Rank(0), hosts, peer_ranks=[Rank(1)]).peers == (2,)


def test_the_next_neighbour_stands_in_for_a_lost_host() -> None:
    assert place(Rank(0), apart(4), peers_per_node=1, lost={Host("node-1")}).peers == (2,)
    assert place(Rank(0), apart(4), peer_ranks=[Rank(3)], lost={Host("node-3")}).peers == (1,)
    assert place(Rank(0), apart(2), peers_per_node=1, lost={Host("node-1")}).peers == ()


def test_the_same_host_counts_only_where_no_other_exists() -> None:
    hosts = {Rank(0): Host("a"), Rank(1): Host("a")}
    placement = place(Rank(0), hosts, peers_per_node=1)
    assert placement.peers == (1,)
    assert placement.same_host


@given(st.integers(1, 40), st.data())
def test_neighbours_are_all_others_once(nodes: int, data: st.DataObject) -> None:
    rank = Rank(data.draw(st.integers(0, nodes - 1)))
    assert sorted((rank, *neighbours(rank, nodes))) == list(range(nodes))


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=8), st.integers(0, 4))
def test_no_copy_lies_on_the_own_host_while_another_exists(names: list[str], factor: int) -> None:
    hosts = {Rank(rank): Host(name) for rank, name in enumerate(names)}
    for rank, own in hosts.items():
        placement = place(rank, hosts, peers_per_node=factor)
        on = [hosts[peer] for peer in placement.peers]
        if len(set(names)) > 1:
            assert own not in on
            assert len(set(on)) == len(on)
