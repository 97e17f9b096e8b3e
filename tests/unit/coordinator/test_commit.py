import pytest

from checkpoint_coordinator.commit import Crew, SaveState, judge, protection
from checkpoint_coordinator.inventory import Found, Line, take_stock
from checkpoint_replicator.ids import Address, Epoch, Host, Job, Rank, SessionId, Step, Worker
from checkpoint_replicator.messages import Fault, Held
from checkpoint_replicator.placement import place
from checkpoint_replicator.records import Member
from checkpoint_replicator.save import Save, ShardKey, Tag
from checkpoint_replicator.shape import Shape
from support.fake_nodes import hash_of

SAVE = Save(Epoch(1), Step(10))
SHAPE = Shape(3, 1, 1, "pytorch")


def crew(factor: int = 1, live: str = "abc") -> Crew:
    hosts = {Rank(rank): Host(name) for rank, name in enumerate("abc")}
    members = tuple(Member(rank=rank, host=host, session=SessionId(host)) for rank, host in hosts.items())
    placements = {rank: place(rank, hosts, peers_per_node=factor) for rank in hosts}
    return Crew(shape=SHAPE, members=members, placements=placements, live=frozenset(map(Host, live)))


def held(rank: int, *, own: bool = True) -> Held:
    key = ShardKey(Rank(rank), Worker(0))
    return Held(tag=Tag(Job("run"), SAVE, SHAPE, key, Address(f"{hash_of(SAVE, key):064x}"), 1), own=own)


def found(**hosts: list[Held]) -> Found | None:
    return take_stock({Host(host): (shards, None) for host, shards in hosts.items()}).lines.get(Line(SAVE, SHAPE))


def fault(host: str, kind: str, reason: str, key: ShardKey | None = None) -> tuple[Host, Fault]:
    return Host(host), Fault(kind=kind, reason=reason, save=SAVE, key=key)


OWN = {"a": [held(0)], "b": [held(1)], "c": [held(2)]}
FULL = {"a": [held(0), held(1, own=False)], "b": [held(1), held(0, own=False), held(2, own=False)], "c": [held(2)]}


def test_a_save_commits_when_every_shard_has_its_copies() -> None:
    verdict = judge(SAVE, found(**FULL), crew())
    assert (verdict.state, verdict.reason, verdict.copies_min, verdict.unprotected) == (
        SaveState.COMMITTED,
        "",
        1,
        False,
    )


def test_s03_a_missing_copy_is_named() -> None:
    verdict = judge(SAVE, found(**OWN), crew())
    assert verdict.state is SaveState.REPLICATING
    assert "rank 0 lacks 1 of 1 copies (to rank 1)" in verdict.reason


def test_a_missing_shard_is_named_with_its_host() -> None:
    verdict = judge(SAVE, found(a=[held(0)], b=[held(1)]), crew())
    assert verdict.state is SaveState.SAVING
    assert verdict.reason == "rank 2 on c did not save it yet"
    assert judge(SAVE, None, crew()).state is SaveState.SAVING


def test_a_copy_without_its_owners_own_is_not_enough() -> None:
    shards = {"a": [held(0), held(1, own=False), held(2, own=False)], "b": [held(1), held(0, own=False)]}
    assert judge(SAVE, found(**shards), crew()).state is SaveState.SAVING


def test_s80_required_is_what_was_asked_at_most_the_other_live_hosts() -> None:
    assert crew(2).required(Rank(0)) == 2
    assert crew(2, live="ab").required(Rank(0)) == 1
    assert crew(2, live="a").required(Rank(0)) == 0


def test_without_peers_a_save_commits_with_its_own_copies_and_is_unprotected() -> None:
    verdict = judge(SAVE, found(**OWN), crew(0))
    assert (verdict.state, verdict.unprotected) == (SaveState.COMMITTED, True)


def test_a_save_that_lacks_copies_says_why_peers_took_none() -> None:
    verdict = judge(SAVE, found(**OWN), crew(), faults=[fault("a", "uncopied", "b took no copy: no room")])
    assert verdict.state is SaveState.REPLICATING
    assert verdict.reason.endswith("; b took no copy: no room")


def test_s45_a_mutated_or_skipped_save_never_commits() -> None:
    for kind, state in (("mutated", SaveState.MUTATED), ("skipped", SaveState.SKIPPED)):
        verdict = judge(SAVE, found(**FULL), crew(), faults=[fault("b", kind, "why")])
        assert (verdict.state, verdict.reason) == (state, "b: why")


@pytest.mark.parametrize("kind", ["unsupported", "refused"])
def test_why_a_rank_could_not_be_taken_is_told_and_not_that_it_did_not_save(kind: str) -> None:
    verdict = judge(SAVE, found(a=[held(0)], b=[held(1)]), crew(), faults=[fault("c", kind, "a socket")])
    assert (verdict.state, verdict.reason) == (SaveState.INCOMPLETE, "rank 2 on c: a socket")
    nobody = judge(SAVE, None, crew(), faults=[fault(host, kind, "a socket") for host in "abc"])
    assert nobody.reason == "rank 0 on a: a socket; rank 1 on b: a socket; rank 2 on c: a socket"


@pytest.mark.parametrize("kind", ["unsupported", "refused"])
def test_a_second_draft_that_was_not_taken_says_nothing_of_a_shard_that_stands(kind: str) -> None:
    verdict = judge(SAVE, found(**FULL), crew(), faults=[fault("b", kind, "other content")])
    assert (verdict.state, verdict.reason) == (SaveState.COMMITTED, "")
    absent = judge(SAVE, found(a=[held(0)], b=[held(1)]), crew(), faults=[fault("b", kind, "other content")])
    assert absent.reason == "rank 2 on c did not save it yet"


def test_a_fault_of_another_worker_does_not_speak_for_one_that_still_saves() -> None:
    other = ShardKey(Rank(2), Worker(1))
    verdict = judge(SAVE, found(a=[held(0)], b=[held(1)]), crew(), faults=[fault("c", "refused", "why", other)])
    assert verdict.state is SaveState.SAVING


def test_protection_is_the_number_of_hosts_that_may_be_lost() -> None:
    whole = found(**FULL)
    assert whole is not None
    shards = judge(SAVE, whole, crew()).shards
    assert protection(whole, shards, frozenset(map(Host, "abc"))) == 1
    assert protection(whole, shards, frozenset(map(Host, "ac"))) == 0
