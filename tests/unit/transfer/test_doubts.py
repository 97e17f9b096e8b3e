from checkpoint_transfer.doubts import Doubts
from support.transfer_net import address_of

FIRST, SECOND = address_of(1), address_of(2)


def test_shards_are_hashed_one_after_another() -> None:
    doubts = Doubts()
    doubts.found((FIRST, SECOND))
    assert (doubts.next(), doubts.next()) == (FIRST, None)
    doubts.checked(FIRST)
    assert (doubts.next(), doubts.next()) == (SECOND, None)
    doubts.checked(SECOND)
    assert doubts.next() is None


def test_a_shard_that_was_hashed_for_a_peer_is_not_hashed_again() -> None:
    doubts = Doubts()
    doubts.found((FIRST, SECOND))
    doubts.checked(FIRST)
    assert doubts.next() == SECOND


def test_what_was_not_doubted_changes_nothing() -> None:
    doubts = Doubts()
    doubts.found((FIRST,))
    assert doubts.next() == FIRST
    doubts.checked(SECOND)
    assert doubts.next() is None
