"""The restore decision: the table of outcomes is a golden file, the choice is compared with a brute-force model."""

import itertools
from collections.abc import Mapping, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint_coordinator.inventory import Inventory, take_stock
from checkpoint_coordinator.restore import (
    Choice,
    Facts,
    candidate_ranks,
    choose,
    newest_epoch,
    ordered_fault,
    plan,
    whole,
)
from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Address, Epoch, Host, Incarnation, Job, Rank, SessionId, Step, Worker
from checkpoint_replicator.messages import BackupEntry, Held
from checkpoint_replicator.records import Member, Outcome, Peer
from checkpoint_replicator.save import Save, ShardKey, Tag, shards_of
from checkpoint_replicator.shape import Shape
from checkpoint_replicator.wishes import Forced
from support.fake_nodes import hash_of

JOB = Job("run")
TWO = Shape(2, 1, 1, "pytorch")
FOUR = Shape(4, 1, 1, "pytorch")


def save(step: int, epoch: int = 1) -> Save:
    return Save(Epoch(epoch), Step(step))


def tag(which: Save, rank: int, shape: Shape = TWO, worker: int = 0, content: int = 0) -> Tag:
    key = ShardKey(Rank(rank), Worker(worker))
    return Tag(JOB, which, shape, key, Address(f"{content or hash_of(which, key):064x}"), 10)


def peer(host: str) -> Peer:
    return Peer(host=Host(host), incarnation=Incarnation("i"), control=f"tcp://{host}:1", leaves=())


def stock(held: Mapping[str, Sequence[Held | Tag]], backups: Sequence[BackupEntry] = ()) -> Inventory:
    reports = {
        Host(host): ([one if isinstance(one, Held) else Held(tag=one) for one in shards], peer(host))
        for host, shards in held.items()
    }
    return take_stock(reports, backups)


def backup(name: str, which: Save, shape: Shape = TWO) -> BackupEntry:
    tags = tuple(tag(which, key.rank, shape, key.worker) for key in shards_of(shape))
    return BackupEntry(name=name, whole=True, tags=tags)


def decide(held: Mapping[str, Sequence[Held | Tag]], shape: Shape = TWO, **facts: object) -> Choice:
    return choose(Facts(shape=shape, stock=stock(held), **facts))  # type: ignore[arg-type]


def members(shape: Shape, hosts: Sequence[str]) -> tuple[Member, ...]:
    return tuple(
        Member(rank=Rank(rank), host=Host(hosts[rank]), session=SessionId(f"s{rank}")) for rank in range(shape.nodes)
    )


# ---- what is chosen


def test_the_newest_whole_save_is_chosen_committed_or_not() -> None:
    choice = decide({"a": [tag(save(1), 0), tag(save(2), 0)], "b": [tag(save(1), 1), tag(save(2), 1)]}, trace=save(1))
    assert (choice.outcome, choice.save) == (Outcome.RESTORE, save(2))


def test_s08_every_newer_save_is_rejected_with_the_missing_shard() -> None:
    choice = decide({"a": [tag(save(1), 0), tag(save(2), 0), tag(save(3), 1)], "b": [tag(save(1), 1)]})
    assert choice.save == save(1)
    assert [(str(one.save), one.reason) for one in choice.rejected] == [
        ("1.3", "missing n0/w0"),
        ("1.2", "missing n1/w0"),
    ]


def test_s07_node_1_has_only_10_and_the_peer_of_20_decides() -> None:
    local = {"a": [tag(save(10), 0), tag(save(20), 0)], "b": [tag(save(10), 1)]}
    assert decide(local).save == save(10)
    assert decide({**local, "c": [tag(save(20), 1)]}).save == save(20)


def test_a_higher_epoch_is_newer_whatever_the_step() -> None:
    both = [tag(save(9, 1), 0), tag(save(9, 1), 1), tag(save(2, 2), 0), tag(save(2, 2), 1)]
    assert decide({"a": both}).save == save(2, 2)


def test_shards_of_two_epochs_never_form_one_save() -> None:
    choice = decide({"a": [tag(save(5, 1), 0), tag(save(5, 2), 1)]})
    assert choice.outcome is Outcome.NONE
    assert "unfinished" in choice.reason


def test_hosts_and_backups_complete_one_save_together() -> None:
    facts = Facts(shape=TWO, stock=stock({"a": [tag(save(3), 0)]}, [backup("2026-01-01_00-00", save(3))]))
    choice = choose(facts)
    assert (choice.save, choice.backup) == (save(3), "2026-01-01_00-00")


def test_a_backup_that_does_not_count_is_not_looked_at() -> None:
    broken = BackupEntry(name="2026-01-01_00-00", whole=False, tags=backup("x", save(3)).tags)
    assert choose(Facts(shape=TWO, stock=stock({}, [broken]))).outcome is Outcome.NONE


def test_backups_of_googles_are_in_order_by_name_and_below_every_epoch() -> None:
    google = Shape(2, 1, 1, "")
    older = backup("2026-01-01_00-00", save(100, 0), google)
    newer = backup("2026-01-02_00-00", save(50, 0), google)
    assert choose(Facts(shape=TWO, stock=stock({}, [older, newer]))).save == save(50, 0)
    mine = [tag(save(1, 1), 0), tag(save(1, 1), 1)]
    assert choose(Facts(shape=TWO, stock=stock({"a": mine}, [older, newer]))).save == save(1, 1)
    assert choose(Facts(shape=FOUR, stock=stock({}, [newer]))).outcome is not Outcome.RESTORE


def test_two_contents_of_one_shard_are_no_save_unless_one_was_committed() -> None:
    first, second = tag(save(1), 0, content=1), tag(save(1), 0, content=2)
    rest = tag(save(1), 1)
    assert decide({"a": [first, rest], "b": [second]}).outcome is Outcome.NONE
    chosen = decide({"a": [first, rest], "b": [Held(tag=second, committed=True)]})
    assert chosen.tags[first.key] == second


# ---- what is not chosen


def test_an_older_save_waits_while_a_silent_witness_may_hold_the_committed_one() -> None:
    held = {"a": [tag(save(1), 0), tag(save(1), 1)]}
    silent = decide(held, trace=save(2), silent=("rank 1 on b (no report)",))
    assert silent.outcome is Outcome.UNKNOWN
    assert "rank 1 on b (no report)" in silent.reason
    answered = decide(held, trace=save(2))
    assert (answered.outcome, answered.save) == (Outcome.RESTORE, save(1))
    assert [str(one.save) for one in answered.rejected] == ["1.2"]


def test_whoever_is_silent_does_not_hold_up_the_newest_whole_save() -> None:
    held = {"a": [tag(save(2), 0), tag(save(2), 1)]}
    choice = decide(held, trace=save(2), silent=("host c (no report)",))
    assert choice.outcome is Outcome.RESTORE
    assert choice.reason == "the newest whole save is 1.2; without an answer of host c (no report)"


def test_a_committed_save_that_does_not_fit_is_lost_and_no_older_one_is_taken() -> None:
    held = {"a": [tag(save(1), 0), tag(save(1), 1), *(tag(save(2), rank, FOUR) for rank in range(4))]}
    choice = decide(held, trace=save(2), trace_shape=FOUR)
    assert choice.outcome is Outcome.LOST
    assert "4 nodes" in choice.reason


def test_a_configured_fresh_start_turns_lost_into_none_with_its_reason() -> None:
    assert decide({}, trace=save(2)).outcome is Outcome.LOST
    fresh = decide({}, trace=save(2), fresh_start=True)
    assert fresh.outcome is Outcome.NONE
    assert "save 1.2 was committed" in fresh.reason


def test_s09_a_save_that_could_not_be_completed_is_passed_over() -> None:
    held = {"a": [tag(save(1), 0), tag(save(1), 1), tag(save(2), 0), tag(save(2), 1)]}
    choice = decide(held, spent={save(2): "leaf 3 differs everywhere"})
    assert choice.save == save(1)
    assert choice.rejected[0].reason == "leaf 3 differs everywhere"


def test_a_forced_restore_is_exact_or_an_error() -> None:
    held = {"a": [tag(save(1), 0), tag(save(1), 1), tag(save(2), 0), tag(save(2), 1), tag(save(3), 0)]}
    assert decide(held, forced=Forced(save=save(1)), trace=save(2)).save == save(1)
    torn = decide(held, forced=Forced(save=save(3)))
    assert (torn.outcome, torn.reason) == (Outcome.LOST, "save 1.3 was ordered: missing n1/w0")
    assert decide(held, forced=Forced(save=save(9))).outcome is Outcome.LOST
    assert decide(held, forced=Forced(backup="x"), silent=("the store",)).outcome is Outcome.UNKNOWN
    assert decide(held, forced=Forced(none=True), trace=save(2)).outcome is Outcome.NONE


# ---- who fetches what from whom


def test_an_order_of_what_only_a_damaged_backup_holds_names_it_and_what_it_lacks() -> None:
    name, other = "2026-01-01_00-00", "2026-01-01_01-00"
    lacking = msgspec.structs.replace(backup(name, save(3)), whole=False, reason="n1/w0.meta is missing")
    unread = BackupEntry(name=other, whole=False, reason="ordered, not finished")
    found = stock({"a": [tag(save(4), 0)]}, [lacking, unread])
    assert ordered_fault(Forced(save=save(3)), found) == (
        f"nobody holds it; backup {name} does not count: n1/w0.meta is missing"
    )
    assert ordered_fault(Forced(backup=name), found) == (
        f"the backup store has no whole backup of this name; backup {name} does not count: n1/w0.meta is missing"
    )
    assert ordered_fault(Forced(backup=other), found).endswith(
        f"; backup {other} does not count: ordered, not finished"
    )
    assert ordered_fault(Forced(save=save(4)), found) == "missing n1/w0"
    choice = choose(Facts(shape=TWO, stock=found, forced=Forced(save=save(3))))
    assert choice.outcome is Outcome.LOST
    assert choice.reason.endswith("n1/w0.meta is missing")


def test_a_plan_names_every_holder_but_the_own_host_and_turns_with_the_rank() -> None:
    shards = [tag(save(1), 0), tag(save(1), 1)]
    found = stock({"a": shards, "b": shards, "c": shards})
    choice = choose(Facts(shape=TWO, stock=found))
    plans = plan(choice, TWO, members(TWO, ["a", "d"]), found, Stamp(1, Epoch(2), 3))
    assert [one.host for one in plans[Rank(0)].shards[0].holders] == ["b", "c"]
    assert [one.host for one in plans[Rank(1)].shards[0].holders] == ["b", "c", "a"]
    assert {one.key for one in plans[Rank(1)].shards} == {ShardKey(Rank(1), Worker(0))}


def test_s32_data_follows_the_rank_and_not_the_host() -> None:
    found = stock({"a": [tag(save(1), 0)], "b": [tag(save(1), 1)]})
    choice = choose(Facts(shape=TWO, stock=found))
    plans = plan(choice, TWO, members(TWO, ["b", "a"]), found, Stamp(1, Epoch(2), 3))
    assert plans[Rank(0)].shards[0].tag.key.rank == 0
    assert [one.host for one in plans[Rank(0)].shards[0].holders] == ["a"]


def test_a_missing_rank_takes_a_twin() -> None:
    twins = Shape(4, 1, 2, "pytorch")
    held = {"a": [tag(save(1), 0, twins), tag(save(1), 1, twins)], "b": [tag(save(1), 3, twins)]}
    choice = decide(held, twins)
    assert choice.outcome is Outcome.RESTORE
    plans = plan(choice, twins, members(twins, ["a", "b", "c", "d"]), stock(held), Stamp(1, Epoch(2), 3))
    assert plans[Rank(2)].shards[0].tag.key.rank == 0
    assert plans[Rank(2)].shards[0].key.rank == 2


def test_more_nodes_with_the_same_columns_restore_what_fewer_saved() -> None:
    small, large = Shape(2, 1, 1, "pytorch"), Shape(4, 1, 2, "pytorch")
    assert small.fits(large)
    choice = decide({"a": [tag(save(1), 0, small), tag(save(1), 1, small)]}, large)
    assert choice.outcome is Outcome.RESTORE
    assert [candidate_ranks(small, large, Rank(rank))[0] for rank in range(4)] == [0, 1, 0, 1]


def test_a_new_epoch_is_above_all_data() -> None:
    assert newest_epoch(stock({"a": [tag(save(1, 7), 0), tag(save(5, 3), 1)]})) == 7
    assert newest_epoch(Inventory()) == 0


# ---- the model of S07 and S08


@st.composite
def scenes(draw: st.DrawFn) -> tuple[Shape, dict[str, list[Tag]]]:
    nodes = draw(st.sampled_from([1, 2, 3, 5]))
    workers = draw(st.integers(1, 2))
    shape = Shape(nodes, workers, 1, "pytorch")
    saves = [save(step, epoch) for epoch in (1, 2) for step in (10, 20)]
    every = [tag(one, key.rank, shape, key.worker) for one in saves for key in shards_of(shape)]
    hosts = [f"h{number}" for number in range(nodes + 1)]
    return shape, {host: draw(st.lists(st.sampled_from(every), unique=True)) for host in hosts}


@given(scenes())
def test_s08_the_choice_is_the_newest_save_that_a_brute_force_model_finds(
    scene: tuple[Shape, dict[str, list[Tag]]],
) -> None:
    shape, held = scene
    have = {(one.save, one.key) for shards in held.values() for one in shards}
    wholes = [one for one in {one for one, _ in have} if all((one, key) in have for key in shards_of(shape))]
    choice = decide(held, shape)
    assert choice.save == max(wholes, default=None)
    newer = {one for one, _ in have if choice.save is None or one > choice.save}
    assert {one.save for one in choice.rejected} == newer
    for one in choice.rejected:
        missing = [str(key) for key in shards_of(shape) if (one.save, key) not in have]
        assert missing[0] in one.reason


@given(scenes())
def test_s07_all_nodes_get_shards_of_one_save_and_every_source_holds_them(
    scene: tuple[Shape, dict[str, list[Tag]]],
) -> None:
    shape, held = scene
    found = stock(held)
    choice = choose(Facts(shape=shape, stock=found))
    crew = members(shape, [f"h{rank}" for rank in range(shape.nodes)])
    plans = plan(choice, shape, crew, found, Stamp(1, Epoch(9), 1))
    if choice.outcome is not Outcome.RESTORE:
        assert plans == {}
        return
    shards = [one for fetch in plans.values() for one in fetch.shards]
    assert {one.tag.save for one in shards} == {choice.save}
    assert sorted(one.key for one in shards) == sorted(shards_of(shape))
    for one in shards:
        for holder in one.holders:
            assert one.tag in held[holder.host]
    assert choice.line is not None
    assert set(whole(found.lines[choice.line])) == set(shards_of(shape))


@given(scenes(), st.none() | st.builds(save, st.sampled_from([5, 10, 20, 30]), st.integers(1, 2)), st.booleans())
def test_none_is_said_only_when_all_answered_and_nothing_was_ever_committed(
    scene: tuple[Shape, dict[str, list[Tag]]], trace: Save | None, silent: bool
) -> None:
    shape, held = scene
    choice = decide(held, shape, trace=trace, silent=("somebody",) if silent else ())
    if choice.outcome is Outcome.NONE:
        assert trace is None
        assert not silent
    if choice.outcome is Outcome.LOST:
        assert trace is not None
        assert not silent
    if choice.outcome is Outcome.RESTORE and silent and trace is not None:
        assert choice.save is not None
        assert choice.save >= trace


def test_the_newest_sixteen_rejected_saves_are_named() -> None:
    held = {"a": [tag(save(step), 0) for step in range(30)]}
    choice = decide(held)
    assert [one.save.step for one in choice.rejected] == list(range(29, 13, -1))


@pytest.mark.parametrize("order", list(itertools.permutations(["a", "b", "c"])))
def test_the_choice_does_not_depend_on_who_reported_first(order: tuple[str, ...]) -> None:
    shards = {"a": [tag(save(1), 0)], "b": [tag(save(1), 1)], "c": [tag(save(2), 0)]}
    assert decide({host: shards[host] for host in order}) == decide(shards)


def test_none_and_lost_name_the_hosts_that_were_given_up() -> None:
    gone = tuple(f"host {name} without a rank (lost, no report)" for name in "abcdef")
    assert decide({}, given_up=gone[:1]).reason == f"no checkpoint anywhere; without an answer of {gone[0]}"
    lost = decide({}, trace=save(1), given_up=gone)
    assert lost.outcome is Outcome.LOST
    assert lost.reason.endswith(f"; without an answer of {', '.join(gone[:4])} and 2 more")
