from checkpoint_replicator.ids import Host
from checkpoint_replicator.machine import Ticked
from checkpoint_replicator.messages import Run
from checkpoint_transfer.budget import Budget
from checkpoint_transfer.leaves import LeafSet
from checkpoint_transfer.patience import Patience
from checkpoint_transfer.receiver import Phase, Receiver
from checkpoint_transfer.receiving import (
    AskLeaves,
    AskTree,
    Complain,
    LeavesAbsent,
    LeavesArrived,
    LeavesStored,
    NameShard,
    NamingFailed,
    OpenPartial,
    PartialAbsent,
    PartialOpened,
    PartialRefused,
    ReceiverEffect,
    ReceiverEvent,
    RoomMissing,
    ShardNamed,
    ShardStood,
    SourceLost,
    SourcesChanged,
    StoreFailed,
    StoreLeaves,
    TreeArrived,
    TreeSpoiled,
)
from checkpoint_transfer.source import Source
from support.playbook import Playbook

MIB = 1 << 20
A, B, BACKUP = Source(Host("a")), Source(Host("b")), Source(Host("me"), backup="b1")
BODY = (b"",)


def run(first: int, count: int = 1) -> Run:
    return Run(first=first, count=count)


class Fetch(Playbook[ReceiverEvent, ReceiverEffect]):
    """A receiver, and what a disk and holders would do."""

    def __init__(self, *sources: Source, leaves: int = 4, window: int = 32 * MIB, budget: int = 64 * MIB) -> None:
        self.budget = Budget(budget)
        self.receiver = Receiver(self.budget, window, Patience())
        super().__init__(self.receiver)
        self.leaves = leaves
        self.on(SourcesChanged(sources), OpenPartial())

    def open(self, have: LeafSet | None = None) -> list[ReceiverEffect]:
        return self.says(PartialOpened([MIB] * self.leaves, have or LeafSet.empty(self.leaves)))

    def give(self, source: Source, *runs: Run, bad: tuple[int, ...] = ()) -> list[ReceiverEffect]:
        """Let leaves arrive and be stored."""
        [store] = self.says(LeavesArrived(source, runs, BODY * len(runs)))
        assert isinstance(store, StoreLeaves)
        leaves = [leaf for one in runs for leaf in range(one.first, one.first + one.count)]
        good = tuple(leaf for leaf in leaves if leaf not in bad)
        return self.says(LeavesStored(source, good, bad, store.size))


def test_a_fetch_takes_tree_then_leaves_then_names() -> None:
    book = Fetch(A)
    book.on(PartialAbsent(), AskTree(A))
    book.on(TreeArrived(A, BODY), OpenPartial(A, BODY))
    assert book.open() == [AskLeaves(A, (run(0, 4),), 4 * MIB)]
    book.on(LeavesArrived(A, (run(0, 4),), BODY), StoreLeaves(A, (run(0, 4),), BODY, 4 * MIB))
    book.on(LeavesStored(A, (0, 1, 2, 3), (), 4 * MIB), AskLeaves(A, (), 0), NameShard())
    book.on(ShardNamed())
    assert (book.receiver.phase, book.receiver.by_source, book.budget.used) == (Phase.DONE, {"peer": 4 * MIB}, 0)


def test_a_resumed_fetch_asks_only_for_what_is_missing() -> None:
    book = Fetch(A, leaves=6)
    assert book.open(LeafSet(b"\1\1\0\1\0\0")) == [AskLeaves(A, (run(2), run(4, 2)), 3 * MIB)]


def test_a_shard_that_stands_under_another_name_is_only_named() -> None:
    book = Fetch(A)
    book.on(ShardStood(), NameShard())


def test_an_empty_shard_is_named_at_once() -> None:
    book = Fetch(A, leaves=0)
    assert book.open() == [NameShard()]


def test_several_holders_share_the_leaves() -> None:
    book = Fetch(A, B, leaves=16)
    assert book.open() == [
        AskLeaves(A, (run(0, 4), run(8, 4)), 8 * MIB),
        AskLeaves(B, (run(4, 4), run(12, 4)), 8 * MIB),
    ]


def test_s67_the_window_bounds_what_is_asked_and_not_stored() -> None:
    book = Fetch(A, leaves=16, window=8 * MIB)
    assert book.open() == [AskLeaves(A, (run(0, 8),), 8 * MIB)]
    book.says(LeavesArrived(A, (run(0, 4),), BODY))
    book.on(LeavesStored(A, (0, 1, 2, 3), (), 4 * MIB), AskLeaves(A, (run(8, 4),), 8 * MIB))


def test_the_budget_is_shared_and_waited_for() -> None:
    book = Fetch(A, leaves=16, budget=4 * MIB)
    assert book.open() == [AskLeaves(A, (run(0, 4),), 4 * MIB)]
    assert book.receiver.is_starved
    book.budget.limit = 8 * MIB
    book.on(Ticked(), AskLeaves(A, (run(4, 4),), 8 * MIB))


def test_leaves_that_nobody_asked_for_are_dropped() -> None:
    book = Fetch(A, leaves=16, window=4 * MIB)
    book.open()
    book.on(LeavesArrived(A, (run(4, 4),), BODY))
    book.on(LeavesArrived(B, (run(0, 4),), BODY))
    book.on(LeavesArrived(A, (run(12, 8),), BODY))


def test_leaves_that_come_twice_are_stored_once() -> None:
    book = Fetch(A, leaves=8)
    book.open()
    book.give(A, run(0, 4))
    book.on(LeavesArrived(A, (run(0, 4),), BODY))


def test_a_corrupt_leaf_is_asked_again_alone() -> None:
    book = Fetch(A)
    book.open()
    assert book.give(A, run(0, 4), bad=(2,)) == [AskLeaves(A, (run(2),), MIB)]
    assert book.give(A, run(2)) == [AskLeaves(A, (), 0), NameShard()]
    assert book.receiver.corrupt == {A: 1}


def test_a_corrupt_leaf_is_asked_of_another_holder_first() -> None:
    book = Fetch(A, B)
    book.open()
    caused = book.give(A, run(0, 4), bad=(2,))
    assert AskLeaves(B, (run(2),), MIB) in caused


def test_a_leaf_that_another_gives_right_is_a_complaint_to_the_first() -> None:
    book = Fetch(A, B)
    book.open()
    book.give(A, run(0, 4), bad=(2,))
    assert Complain(A, "leaf 2 came corrupt, and right from b") in book.give(B, run(2))


def test_s13_a_leaf_that_comes_corrupt_twice_fails_a_fetch_without_another_source() -> None:
    book = Fetch(A)
    book.open()
    book.give(A, run(0, 4), bad=(2,))
    assert book.give(A, run(2), bad=(2,)) == [Complain(A, "leaf 2 came corrupt 2 times")]
    assert book.receiver.phase is Phase.FAILED
    assert book.receiver.reason == "a: gave leaf 2 corrupt 2 times"
    assert book.budget.used == 0


def test_the_backup_gives_the_leaf_that_no_peer_can_give() -> None:
    book = Fetch(A, BACKUP)
    assert book.open() == [AskLeaves(A, (run(0, 4),), 4 * MIB)]
    book.give(A, run(0, 4), bad=(2,))
    caused = book.give(A, run(2), bad=(2,))
    assert AskLeaves(BACKUP, (run(2),), MIB) in caused
    book.give(BACKUP, run(2))
    assert book.receiver.by_source == {"peer": 3 * MIB, "backup": MIB}


def test_s63_a_silent_source_is_asked_again_then_given_up_with_its_name() -> None:
    book = Fetch(A)
    book.open()
    caused = book.wait(5.3)
    assert caused == [AskLeaves(A, (run(0, 4),), 4 * MIB)]
    book.wait(20)
    assert book.receiver.phase is Phase.FAILED
    assert book.receiver.reason == "a: did not answer for 5 s (3 times)"
    assert book.budget.used == 0


def test_a_silent_sources_leaves_go_to_another_holder() -> None:
    book = Fetch(A, B, leaves=8)
    book.open()
    book.give(B, run(4, 4))
    caused = book.wait(5.1)
    assert AskLeaves(B, (run(0, 4),), 4 * MIB) in caused


def test_a_lost_source_gives_its_leaves_to_another_at_once() -> None:
    book = Fetch(A, B, leaves=8)
    book.open()
    book.on(SourceLost(A, "its connection ended"), AskLeaves(B, (run(0, 4),), 8 * MIB))


def test_a_lost_source_that_was_asked_for_nothing_stays_healthy() -> None:
    book = Fetch(A, B)
    book.open()
    book.on(SourceLost(B, "its connection ended"))


def test_a_late_leaf_is_dropped_when_it_was_asked_of_another() -> None:
    book = Fetch(A, B, leaves=8)
    book.open()
    book.says(SourceLost(A, "its connection ended"))
    book.on(LeavesArrived(A, (run(0, 4),), BODY))


def test_not_yet_rests_the_source_shortly_and_is_no_failure() -> None:
    book = Fetch(A)
    book.open()
    book.on(LeavesAbsent(A, (run(0, 4),), gone=False, reason="not here yet"))
    assert book.wait(0.3) == [AskLeaves(A, (run(0, 4),), 4 * MIB)]


def test_the_backup_is_asked_when_the_peers_have_had_nothing_new_for_a_while() -> None:
    book = Fetch(A, BACKUP)
    book.open()
    caused: list[ReceiverEffect] = []
    for _ in range(4):
        caused += book.says(LeavesAbsent(A, (run(0, 4),), gone=False, reason="not here yet"))
        caused += book.wait(2)
    assert any(isinstance(effect, AskLeaves) and effect.source == BACKUP for effect in caused)


def test_a_holder_that_never_has_anything_is_given_up() -> None:
    book = Fetch(A)
    book.open()
    for _ in range(16):
        book.says(LeavesAbsent(A, (), gone=False, reason="not here yet"))
        book.wait(2)
    assert book.receiver.phase is Phase.FAILED
    assert book.receiver.reason == "a: not here yet for 30 s"


def test_a_holder_that_lost_the_shard_is_not_asked_again() -> None:
    book = Fetch(A, B)
    book.open()
    book.on(LeavesAbsent(A, (), gone=True, reason="truncated"), AskLeaves(B, (run(0, 4),), 4 * MIB))
    book.says(LeavesAbsent(B, (), gone=True, reason="dropped"))
    assert book.receiver.reason == "a: truncated; b: dropped"


def test_the_tree_is_asked_of_the_next_source_when_the_first_is_silent() -> None:
    book = Fetch(A, B)
    book.on(PartialAbsent(), AskTree(A))
    assert AskTree(B) in book.wait(5.1)


def test_a_wrong_tree_ends_the_trust_in_its_source() -> None:
    book = Fetch(A, B)
    book.says(PartialAbsent())
    book.says(TreeArrived(A, BODY))
    book.on(TreeSpoiled(A, "hashes to 123"), AskTree(B))
    book.says(TreeArrived(B, BODY))
    book.says(TreeSpoiled(B, "is no tree"))
    assert book.receiver.phase is Phase.FAILED
    assert "a: sent a tree that is not the shard's: hashes to 123; b: " in book.receiver.reason


def test_without_room_a_fetch_fails_before_it_asks_for_a_leaf() -> None:
    book = Fetch(A)
    book.says(PartialAbsent())
    book.says(TreeArrived(A, BODY))
    book.on(RoomMissing("4 MiB do not fit"))
    assert (book.receiver.phase, book.receiver.fault) == (Phase.FAILED, "no_room")


def test_a_ramdisk_that_refuses_a_copy_does_not_lack_room() -> None:
    book = Fetch(A)
    book.says(PartialAbsent())
    book.says(TreeArrived(A, BODY))
    book.on(PartialRefused("Read-only file system"))
    assert (book.receiver.phase, book.receiver.fault) == (Phase.FAILED, "failed")
    assert book.receiver.reason == "Read-only file system"


def test_without_sources_a_fetch_says_so() -> None:
    book = Fetch()
    book.says(PartialAbsent())
    assert book.receiver.reason == "no source was named"


def test_a_failed_fetch_starts_afresh_after_ten_seconds_and_is_well_at_the_first_leaf() -> None:
    book = Fetch(A)
    book.open()
    book.says(LeavesAbsent(A, (), gone=True, reason="dropped"))
    assert book.wait(9.9) == []
    assert book.wait(0.2) == [OpenPartial()]
    book.open()
    assert book.receiver.reason == "a: dropped"
    book.give(A, run(0, 4))
    assert book.receiver.reason == ""


def test_a_new_source_restarts_a_failed_fetch_at_once() -> None:
    book = Fetch(A)
    book.open()
    book.says(LeavesAbsent(A, (), gone=True, reason="dropped"))
    book.says(SourcesChanged((A, B)))
    assert book.wait(0) == [OpenPartial()]


def test_a_ramdisk_that_takes_no_leaves_fails_the_fetch() -> None:
    book = Fetch(A, leaves=8)
    book.open()
    [store] = book.says(LeavesArrived(A, (run(0, 4),), BODY))
    assert isinstance(store, StoreLeaves)
    book.says(StoreFailed(A, store.size, "no bytes left"))
    assert (book.receiver.phase, book.receiver.reason, book.budget.used) == (Phase.FAILED, "no bytes left", 0)


def test_a_shard_is_named_only_when_no_thread_writes_any_more() -> None:
    book = Fetch(A, leaves=8)
    book.open()
    book.says(LeavesArrived(A, (run(0, 4),), BODY))
    book.says(LeavesArrived(A, (run(4, 4),), BODY))
    book.on(LeavesStored(A, (4, 5, 6, 7), (), 4 * MIB), AskLeaves(A, (), 0))
    assert not book.receiver.is_quiet
    book.on(LeavesStored(A, (0, 1, 2, 3), (), 4 * MIB), AskLeaves(A, (), 0), NameShard())


def test_a_naming_that_clashes_says_so() -> None:
    book = Fetch(A, leaves=0)
    book.open()
    book.says(NamingFailed("another shard has the name", clash=True))
    assert (book.receiver.phase, book.receiver.fault) == (Phase.FAILED, "clash")


def test_a_source_that_is_dropped_gives_its_leaves_back() -> None:
    book = Fetch(A, B, leaves=8)
    book.open()
    book.on(SourcesChanged((B,)), AskLeaves(B, (run(0, 4),), 8 * MIB))
    book.receiver.close()
    assert book.budget.used == 0


def test_a_source_of_garbage_is_given_up_before_it_costs_much() -> None:
    book = Fetch(A, B, leaves=32)
    book.open()
    book.give(A, run(0, 4), bad=(0, 1, 2, 3))
    complaints: list[Complain] = []
    for first in (8, 16, 24):
        if book.receiver.phase is Phase.LEAVES and A in book.receiver.corrupt:
            book.says(LeavesArrived(A, (run(first, 4),), BODY))
            caused = book.says(LeavesStored(A, (), (first, first + 1, first + 2, first + 3), 4 * MIB))
            complaints += [effect for effect in caused if isinstance(effect, Complain)]
    assert book.receiver.corrupt[A] == 16
    assert complaints == [Complain(A, "16 leaves came corrupt")]
    assert "gave 16 corrupt leaves" in book.receiver._supplies[A].verdict
