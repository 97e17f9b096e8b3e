from checkpoint_replicator.messages import Run
from checkpoint_transfer.budget import Budget
from checkpoint_transfer.holder import (
    ForgetPeer,
    Holder,
    HolderEffect,
    HolderEvent,
    LeavesLanded,
    LeavesUnsent,
    SayNotYet,
    SendLeaves,
    Wanted,
)
from checkpoint_transfer.leaves import LeafSet
from checkpoint_transfer.patience import Patience
from support.playbook import Playbook

MIB = 1 << 20


def run(first: int, count: int = 1) -> Run:
    return Run(first=first, count=count)


def play(
    leaves: int = 16, have: LeafSet | None = None, budget: int = 64 * MIB, limit: int = 64 * MIB
) -> tuple[Playbook[HolderEvent, HolderEffect], Holder, Budget]:
    lent = Budget(budget)
    holder = Holder([MIB] * leaves, have or LeafSet.full(leaves), lent, limit, Patience())
    return Playbook(holder), holder, lent


def test_leaves_are_sent_four_a_message_within_the_credit() -> None:
    book, _, _ = play()
    book.on(
        Wanted((run(0, 9),), 9 * MIB),
        SendLeaves((run(0, 4),), 4 * MIB),
        SendLeaves((run(4, 4),), 4 * MIB),
        SendLeaves((run(8),), MIB),
    )


def test_what_exceeds_the_credit_waits_for_the_acknowledgement() -> None:
    book, holder, _ = play()
    book.on(Wanted((run(0, 8),), 4 * MIB), SendLeaves((run(0, 4),), 4 * MIB))
    assert holder.in_flight_bytes == 4 * MIB
    book.on(Wanted((), 4 * MIB), SendLeaves((run(4, 4),), 4 * MIB))


def test_the_next_want_acknowledges_what_does_not_fit_beside_it() -> None:
    book, holder, budget = play()
    book.says(Wanted((run(0, 8),), 8 * MIB))
    book.on(Wanted((run(8, 4),), 8 * MIB), SendLeaves((run(8, 4),), 4 * MIB))
    assert holder.in_flight_bytes == 8 * MIB
    book.on(Wanted((), 0))
    assert (holder.in_flight_bytes, budget.used, holder.is_idle) == (0, 0, True)


def test_a_leaf_that_waits_is_not_queued_twice() -> None:
    book, _, _ = play()
    book.says(Wanted((run(0, 8),), 4 * MIB))
    book.on(Wanted((run(4, 4),), 4 * MIB), SendLeaves((run(4, 4),), 4 * MIB))
    book.on(Wanted((), 4 * MIB))


def test_a_leaf_that_was_sent_is_sent_again_when_asked() -> None:
    book, _, _ = play()
    book.says(Wanted((run(0),), MIB))
    book.on(Wanted((run(0),), MIB), SendLeaves((run(0),), MIB))


def test_leaves_that_are_not_here_are_parked_and_sent_when_they_land() -> None:
    have = LeafSet.empty(16)
    book, _, _ = play(have=have)
    book.on(Wanted((run(0, 4),), 4 * MIB))
    have.add(2)
    book.on(LeavesLanded(), SendLeaves((run(2),), MIB))


def test_parked_leaves_are_answered_not_yet_after_two_seconds() -> None:
    book, _, _ = play(have=LeafSet.empty(16))
    book.says(Wanted((run(0, 4),), 4 * MIB))
    assert book.wait(1.9) == []
    assert book.wait(0.2) == [SayNotYet((run(0, 4),), gone=False, reason="not here yet")]


def test_the_own_limit_and_the_budget_bound_what_is_in_memory() -> None:
    book, holder, _ = play(limit=4 * MIB)
    book.says(Wanted((run(0, 8),), 8 * MIB))
    assert holder.in_flight_bytes == 4 * MIB
    book, holder, budget = play(budget=5 * MIB)
    book.says(Wanted((run(0, 8),), 8 * MIB))
    assert (holder.in_flight_bytes, holder.is_starved) == (4 * MIB, True)
    budget.limit = 9 * MIB
    book.on(LeavesLanded(), SendLeaves((run(4, 4),), 4 * MIB))


def test_what_is_never_acknowledged_is_forgotten_and_the_socket_closed() -> None:
    book, holder, budget = play()
    book.says(Wanted((run(0, 4),), 4 * MIB))
    assert book.wait(9.9) == []
    assert book.wait(0.2) == [ForgetPeer()]
    assert (holder.in_flight_bytes, budget.used) == (0, 0)


def test_leaves_that_could_not_be_sent_give_their_bytes_back() -> None:
    book, holder, budget = play()
    book.says(Wanted((run(0, 4),), 4 * MIB))
    book.on(LeavesUnsent((run(0, 4),), 4 * MIB, "not connected"))
    assert (holder.in_flight_bytes, budget.used) == (0, 0)


def test_leaves_that_cannot_be_read_are_gone() -> None:
    book, _, _ = play()
    book.says(Wanted((run(0),), MIB))
    book.on(LeavesUnsent((run(0),), MIB, "truncated", gone=True), SayNotYet((run(0),), gone=True, reason="truncated"))


def test_a_silent_peer_can_be_forgotten_after_a_minute() -> None:
    book, holder, budget = play()
    book.says(Wanted((run(0),), MIB))
    book.wait(59)
    assert not holder.is_forgotten(book.now)
    assert holder.is_forgotten(book.now + 1)
    book.says(Wanted((run(0),), MIB))
    holder.close()
    assert budget.used == 0


def test_small_files_travel_many_a_message() -> None:
    sizes = [100] * 1000
    holder = Holder(sizes, LeafSet.full(1000), Budget(64 * MIB), 64 * MIB, Patience())
    book: Playbook[HolderEvent, HolderEffect] = Playbook(holder)
    book.on(Wanted((run(0, 1000),), 100_000), SendLeaves((run(0, 512),), 51_200), SendLeaves((run(512, 488),), 48_800))
