from typing import TypeVar

from checkpoint_replicator.ids import Address, Host, Incarnation, Job
from checkpoint_replicator.machine import Ticked
from checkpoint_replicator.messages import Party, Run, Service, Want
from checkpoint_replicator.records import Peer
from checkpoint_uploader.holder import (
    Absent,
    Bounds,
    CloseShard,
    Holder,
    HolderEffect,
    LeavesFailed,
    LeavesSent,
    Opened,
    OpenShard,
    ReadLeaves,
    SayNotYet,
    SendTree,
    ShardId,
    Wanted,
)

JOB = Job("job")
ADDRESS = Address("a" * 64)
BACKUP = "2026-01-02_03-04"
SHARD = ShardId(JOB, BACKUP, ADDRESS)
ASKER = Party(host=Host("h"), service=Service.TRANSFER, incarnation=Incarnation("t1"))
ME = Peer(host=Host("h"), incarnation=Incarnation("t1"), control="ipc:///t", leaves=())
MIB = 1 << 20
SIZES = [MIB] * 9 + [100]
BOUNDS = Bounds(reads=2, queue=6 * MIB, message=4 * MIB, leaves=64, shards=2, idle=60.0)
Kind = TypeVar("Kind")


def wanted(*runs: tuple[int, int], credit: int = 100 * MIB, tree: bool = False, backup: str = BACKUP) -> Wanted:
    asked = tuple(Run(first=first, count=count) for first, count in runs)
    return Wanted(JOB, ASKER, Want(address=ADDRESS, answer_to=ME, runs=asked, credit=credit, tree=tree, backup=backup))


def opened() -> Holder:
    holder = Holder(BOUNDS)
    holder.handle(wanted(tree=True), 0.0)
    holder.handle(Opened(SHARD, SIZES), 0.0)
    return holder


def run(first: int, count: int) -> Run:
    return Run(first=first, count=count)


def only(kind: type[Kind], effects: list[HolderEffect]) -> list[Kind]:
    return [effect for effect in effects if isinstance(effect, kind)]


def test_the_first_want_opens_the_shard_and_the_tree_is_sent_when_it_is_there() -> None:
    holder = Holder(BOUNDS)
    assert holder.handle(wanted(tree=True), 0.0) == [OpenShard(SHARD)]
    opening = "the backup is being looked through"
    assert holder.handle(wanted(tree=True), 0.1) == [SayNotYet(SHARD, ASKER, (), gone=False, reason=opening)]
    assert holder.handle(Opened(SHARD, SIZES), 0.2) == [SendTree(SHARD, ASKER)]
    assert holder.handle(wanted(tree=True), 0.3) == [SendTree(SHARD, ASKER)]


def test_leaves_asked_for_while_the_shard_is_opened_are_read_then() -> None:
    holder = Holder(BOUNDS)
    holder.handle(wanted((2, 2)), 0.0)
    assert len(only(SayNotYet, holder.handle(wanted((4, 1), tree=True), 0.1))) == 1
    assert holder.handle(wanted(credit=0), 0.1) == []
    assert holder.handle(Opened(SHARD, SIZES), 0.2) == [SendTree(SHARD, ASKER), ReadLeaves(SHARD, ASKER, (run(2, 2),))]


def test_a_message_has_at_most_four_leaves_of_a_mebibyte_and_reads_are_bounded() -> None:
    holder = opened()
    effects = holder.handle(wanted((0, 6)), 1.0)
    assert effects == [ReadLeaves(SHARD, ASKER, (run(0, 4),)), ReadLeaves(SHARD, ASKER, (run(4, 2),))]
    assert holder.handle(wanted((6, 4)), 1.1) == []
    assert holder.handle(LeavesSent(SHARD, (run(0, 4),)), 1.2) == [ReadLeaves(SHARD, ASKER, (run(6, 4),))]


def test_small_leaves_of_several_files_go_together() -> None:
    holder = Holder(BOUNDS)
    holder.handle(wanted((0, 100), credit=MIB), 0.0)
    first, second = only(ReadLeaves, holder.handle(Opened(SHARD, [10] * 100), 0.1))
    assert (first.runs, second.runs) == ((run(0, 64),), (run(64, 36),))


def test_leaves_that_are_on_their_way_are_not_read_twice_and_later_may_be() -> None:
    holder = opened()
    holder.handle(wanted((0, 2)), 1.0)
    assert holder.handle(wanted((0, 3)), 1.1) == [ReadLeaves(SHARD, ASKER, (run(2, 1),))]
    holder.handle(LeavesSent(SHARD, (run(0, 2),)), 1.2)
    assert holder.handle(wanted((0, 2)), 1.3) == [ReadLeaves(SHARD, ASKER, (run(0, 2),))]


def test_what_the_credit_does_not_cover_is_not_read_and_said_so() -> None:
    holder = opened()
    effects = holder.handle(wanted((0, 3), credit=2 * MIB), 1.0)
    assert only(ReadLeaves, effects) == [ReadLeaves(SHARD, ASKER, (run(0, 2),))]
    (refused,) = only(SayNotYet, effects)
    assert (refused.runs, refused.gone) == ((run(2, 1),), False)


def test_leaves_beyond_the_shard_never_come() -> None:
    holder = opened()
    for first, count in ((9, 2), (10, 1), (0, 1 << 62)):
        (refused,) = only(SayNotYet, holder.handle(wanted((first, count)), 1.0))
        assert refused.gone
        assert "beyond the 10 of the shard" in refused.reason


def test_a_shard_that_is_not_there_is_answered_with_the_reason_and_asked_for_anew_it_is_looked_for_anew() -> None:
    holder = Holder(BOUNDS)
    holder.handle(wanted((1, 1)), 0.0)
    effects = holder.handle(Absent(SHARD, "no such shard", gone=True), 0.1)
    assert effects == [SayNotYet(SHARD, ASKER, (run(1, 1),), gone=True, reason="no such shard")]
    assert holder.handle(wanted(tree=True), 0.2) == [OpenShard(SHARD)]


def test_leaves_that_cannot_be_read_are_answered_with_the_reason() -> None:
    holder = opened()
    holder.handle(wanted((0, 1)), 1.0)
    effects = holder.handle(LeavesFailed(SHARD, (run(0, 1),), "no answer", gone=False), 1.1)
    assert effects == [SayNotYet(SHARD, ASKER, (run(0, 1),), gone=False, reason="no answer")]
    assert only(ReadLeaves, holder.handle(wanted((0, 1)), 1.2)) != []


def test_the_last_acknowledgement_of_a_fetch_opens_nothing() -> None:
    assert Holder(BOUNDS).handle(wanted(credit=0), 0.0) == []


def test_a_shard_that_nobody_asks_for_is_closed() -> None:
    holder = opened()
    holder.handle(wanted((0, 1)), 5.0)
    assert holder.next_deadline() is None
    holder.handle(LeavesSent(SHARD, (run(0, 1),)), 6.0)
    assert holder.next_deadline() == 65.0
    assert holder.handle(Ticked(), 64.0) == []
    assert holder.handle(Ticked(), 65.0) == [CloseShard(SHARD)]
    assert holder.handle(LeavesSent(SHARD, ()), 66.0) == []


def test_no_more_than_so_many_shards_are_open_and_an_idle_one_makes_room() -> None:
    holder = opened()
    other = ShardId(JOB, "2026-01-02_03-05", ADDRESS)
    third = ShardId(JOB, "2026-01-02_03-06", ADDRESS)
    assert holder.handle(wanted(tree=True, backup=other.backup), 1.0) == [OpenShard(other)]
    assert holder.handle(wanted(tree=True, backup=third.backup), 2.0) == [CloseShard(SHARD), OpenShard(third)]
    (refused,) = holder.handle(wanted((0, 1)), 3.0)
    assert isinstance(refused, SayNotYet)
    assert (refused.gone, refused.reason) == (False, "2 shards are being read already")


def test_shards_take_turns() -> None:
    holder = opened()
    other = ShardId(JOB, "2026-01-02_03-05", ADDRESS)
    holder.handle(wanted((0, 6)), 1.0)
    holder.handle(wanted((6, 3)), 1.0)
    holder.handle(wanted((0, 2), backup=other.backup), 1.0)
    holder.handle(Opened(other, SIZES), 1.1)
    (read,) = only(ReadLeaves, holder.handle(LeavesSent(SHARD, (run(0, 4),)), 1.2))
    assert read.shard == other


def test_a_shard_closed_before_it_was_opened_is_closed_again() -> None:
    assert Holder(BOUNDS).handle(Opened(SHARD, SIZES), 0.0) == [CloseShard(SHARD)]
