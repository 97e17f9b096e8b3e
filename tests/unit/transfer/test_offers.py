from checkpoint_replicator.ids import Host, Incarnation
from checkpoint_replicator.messages import CopyState, OfferOrder
from checkpoint_replicator.records import Peer
from checkpoint_transfer.offers import (
    CheckShard,
    OfferRefused,
    Offers,
    OffersEffect,
    OffersEvent,
    OffersOrdered,
    OfferStored,
    OfferUnsent,
    PeerAsked,
    SendOffer,
    ShardChecked,
)
from checkpoint_transfer.patience import Patience
from support.playbook import Playbook
from support.transfer_net import address_of, tag_of

TAG = tag_of(1, 4)
ADDRESS = address_of(1)
B = Host("b")


def peer(name: str, incarnation: str = "1") -> Peer:
    return Peer(host=Host(name), incarnation=Incarnation(incarnation), control=f"c:{name}", leaves=())


ORDER = OffersOrdered((OfferOrder(tag=TAG, to=(peer("b"),)),))
SENT = SendOffer(peer("b"), ADDRESS, (TAG,))


def play() -> tuple[Playbook[OffersEvent, OffersEffect], Offers]:
    offers = Offers(Patience())
    return Playbook(offers), offers


def states(offers: Offers) -> list[CopyState]:
    return [copy.state for copy in offers.copies]


def test_an_ordered_shard_is_offered_at_once() -> None:
    book, offers = play()
    book.on(ORDER, SENT)
    assert states(offers) == [CopyState.OFFERED]


def test_a_repeated_order_does_not_repeat_the_offer() -> None:
    book, _ = play()
    book.says(ORDER)
    book.on(ORDER)


def test_an_unheard_offer_is_repeated_with_growing_delays() -> None:
    book, _ = play()
    book.says(ORDER)
    assert book.wait(0.9) == []
    assert book.wait(0.2) == [SENT]
    assert 4 <= len(book.wait(20)) <= 20


def test_while_the_peer_asks_nothing_is_repeated() -> None:
    book, offers = play()
    book.says(ORDER)
    for sent in range(1, 20):
        book.on(PeerAsked(ADDRESS, B, sent))
        assert book.wait(4) == []
    assert states(offers) == [CopyState.SENDING]
    assert offers.copies[0].sent == 19
    assert book.wait(1.1) == [SENT]


def test_a_stored_offer_rests_and_is_offered_again_much_later() -> None:
    book, offers = play()
    book.says(ORDER)
    book.on(OfferStored(ADDRESS, B, (TAG,)))
    assert states(offers) == [CopyState.STORED]
    assert book.wait(299) == []
    assert book.wait(1.5) == [SENT]
    assert states(offers) == [CopyState.STORED]


def test_stored_under_other_tags_is_not_stored() -> None:
    book, offers = play()
    book.says(ORDER)
    book.says(OfferStored(ADDRESS, B, (tag_of(2, 4),)))
    assert states(offers) == [CopyState.OFFERED]


def test_a_refusal_is_reported_with_its_reason_and_tried_again() -> None:
    book, offers = play()
    book.says(ORDER)
    book.on(OfferRefused(ADDRESS, B, "no_room", "5 of 10 bytes", retry=True))
    assert (states(offers), offers.copies[0].reason) == ([CopyState.REFUSED], "no_room: 5 of 10 bytes")
    assert book.wait(1.1)[0] == SENT


def test_a_refusal_for_good_is_not_tried_again() -> None:
    book, offers = play()
    book.says(ORDER)
    book.says(OfferRefused(ADDRESS, B, "clash", "another shard has the name", retry=False))
    assert book.wait(1000) == []
    assert states(offers) == [CopyState.REFUSED]


def test_a_complaint_lets_the_own_shard_be_hashed_again() -> None:
    book, offers = play()
    book.says(ORDER)
    book.on(OfferRefused(ADDRESS, B, "corrupt", "leaf 3 came corrupt 2 times", retry=True), CheckShard(ADDRESS))
    book.says(ShardChecked(ADDRESS, "1 leaves differ, first 3"))
    assert (states(offers), offers.copies[0].reason) == ([CopyState.MUTATED], "1 leaves differ, first 3")
    assert book.wait(1000) == []


def test_a_shard_that_is_well_is_offered_on_after_a_complaint() -> None:
    book, offers = play()
    book.says(ORDER)
    book.says(OfferRefused(ADDRESS, B, "corrupt", "leaf 3 came corrupt 2 times", retry=True))
    book.says(ShardChecked(ADDRESS, ""))
    assert SENT in book.wait(1.1)
    assert states(offers) == [CopyState.REFUSED]


def test_another_life_of_the_peer_is_asked_anew_and_stays_stored_until_then() -> None:
    book, offers = play()
    book.says(ORDER)
    book.says(OfferStored(ADDRESS, B, (TAG,)))
    new = peer("b", "2")
    book.on(OffersOrdered((OfferOrder(tag=TAG, to=(new,)),)), SendOffer(new, ADDRESS, (TAG,)))
    assert states(offers) == [CopyState.STORED]


def test_two_tags_of_one_shard_travel_in_one_offer() -> None:
    book, offers = play()
    other = tag_of(1, 5)
    book.on(
        OffersOrdered((OfferOrder(tag=TAG, to=(peer("b"),)), OfferOrder(tag=other, to=(peer("b"),)))),
        SendOffer(peer("b"), ADDRESS, (TAG, other)),
    )
    assert offers.tags_of(ADDRESS) == (TAG, other)


def test_an_offer_that_is_not_ordered_any_more_stops() -> None:
    book, offers = play()
    book.says(ORDER)
    book.on(OffersOrdered(()))
    assert (offers.copies, offers.addresses, offers.next_deadline()) == ((), frozenset(), None)


def test_a_shard_that_is_not_here_says_so_in_the_report() -> None:
    book, offers = play()
    book.says(ORDER)
    book.says(OfferUnsent(ADDRESS, "is not here"))
    assert offers.copies[0].reason == "is not here"
