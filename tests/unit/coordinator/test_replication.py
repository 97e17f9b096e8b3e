from checkpoint_coordinator.commit import Crew
from checkpoint_coordinator.inventory import Line, take_stock
from checkpoint_coordinator.replication import missing_copies, peers_of, placements
from checkpoint_coordinator.restore import whole
from checkpoint_replicator.ids import Address, Epoch, Host, Incarnation, Job, Rank, SessionId, Step, Worker
from checkpoint_replicator.messages import Held
from checkpoint_replicator.records import Member, Peer
from checkpoint_replicator.save import Save, ShardKey, Tag
from checkpoint_replicator.session import SessionSpec
from checkpoint_replicator.shape import Shape
from support.fake_nodes import hash_of

SAVE = Save(Epoch(1), Step(10))
SHAPE = Shape(4, 1, 1, "pytorch")
MEMBERS = tuple(Member(rank=Rank(rank), host=Host(name), session=SessionId(name)) for rank, name in enumerate("abcd"))
SPECS = {
    member.rank: SessionSpec(job=Job("run"), rank=member.rank, shape=SHAPE, peers_per_node=1) for member in MEMBERS
}


def peer(host: str) -> Peer:
    return Peer(host=Host(host), incarnation=Incarnation("i"), control="tcp://h:1", leaves=())


def held(rank: int) -> Held:
    key = ShardKey(Rank(rank), Worker(0))
    return Held(tag=Tag(Job("run"), SAVE, SHAPE, key, Address(f"{hash_of(SAVE, key):064x}"), 1))


def orders(hosts: dict[str, list[int]], live: str = "abcd") -> dict[str, list[tuple[int, list[str]]]]:
    """Return for each giver which rank's shard goes to whom."""
    alive = {Host(host) for host in live}
    stock = take_stock(
        {Host(host): ([held(r) for r in ranks], peer(host)) for host, ranks in hosts.items() if host in live}
    )
    lost = frozenset(member.host for member in MEMBERS if member.host not in alive)
    crew = Crew(shape=SHAPE, members=MEMBERS, placements=placements(MEMBERS, SPECS, lost), live=frozenset(alive))
    found = stock.lines[Line(SAVE, SHAPE)]
    made = missing_copies(found, whole(found), crew, stock, {host: peer(host) for host in alive})
    return {
        host: [(order.tag.key.rank, [target.host for target in order.to]) for order in listed]
        for host, listed in made.items()
    }


def test_s29_after_a_restore_every_rank_gives_its_shard_to_its_placement() -> None:
    assert orders({"a": [0], "b": [1], "c": [2], "d": [3]}) == {
        "a": [(0, ["b"])],
        "b": [(1, ["a"])],
        "c": [(2, ["d"])],
        "d": [(3, ["c"])],
    }


def test_a_copy_on_any_other_live_host_counts_wherever_it_lies() -> None:
    assert orders({"a": [0, 1, 2, 3], "b": [1], "c": [2], "d": [3, 0]}) == {}


def test_a_lost_hosts_copies_are_made_anew_by_whoever_has_them() -> None:
    full = {"a": [0, 1], "b": [1, 0], "c": [2, 3], "d": [3, 2]}
    assert orders(full) == {}
    made = orders(full, live="abc")
    assert {rank for listed in made.values() for rank, _ in listed} == {2, 3}
    assert {host for listed in made.values() for _, targets in listed for host in targets} <= {"a", "b"}


def test_nothing_is_ordered_of_nobody_and_for_nobody() -> None:
    assert orders({"a": [0]}, live="a") == {}


def test_every_rank_is_placed_by_its_own_yaml() -> None:
    specs = {**SPECS, Rank(1): SessionSpec(job=Job("run"), rank=Rank(1), shape=SHAPE, peer_ranks=(Rank(3), Rank(2)))}
    placed = placements(MEMBERS, specs)
    assert placed[Rank(0)].peers == (1,)
    assert placed[Rank(1)].peers == (3, 2)
    hosts = {member.host: peer(member.host) for member in MEMBERS}
    assert [one.host for one in peers_of(placed[Rank(1)], MEMBERS, hosts)] == ["d", "c"]
    assert [one.host for one in peers_of(placed[Rank(1)], MEMBERS, {**hosts, Host("d"): None})] == ["c"]
