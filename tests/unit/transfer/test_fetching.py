import msgspec

from checkpoint_replicator.ids import Host, Incarnation, Rank, Worker
from checkpoint_replicator.messages import FetchOrder, FetchState, Party, Service
from checkpoint_replicator.records import Peer
from checkpoint_replicator.save import ShardKey
from checkpoint_transfer.budget import Budget
from checkpoint_transfer.effects import Naming
from checkpoint_transfer.fetching import Fetching
from checkpoint_transfer.patience import Patience
from checkpoint_transfer.receiver import Phase, Receiver
from checkpoint_transfer.receiving import SourcesChanged
from checkpoint_transfer.source import Source, source_of
from support.transfer_net import JOB, MIB, address_of, tag_of

HERE = Host("here")
TAG = tag_of(1, 4)
OTHER = msgspec.structs.replace(TAG, key=ShardKey(Rank(3), Worker(0)))


def peer(name: str, incarnation: str = "1") -> Peer:
    return Peer(host=Host(name), incarnation=Incarnation(incarnation), control=f"c:{name}", leaves=())


def fetching() -> Fetching:
    return Fetching(HERE, address_of(1), JOB, 1, Receiver(Budget(64 * MIB), 32 * MIB, Patience()))


def test_s78_the_sources_are_the_ordered_holders_then_who_offered_then_the_backup() -> None:
    fetch = fetching()
    fetch.order_is(FetchOrder(tags=(TAG,), holders=(peer("a"), peer("here")), backup="b1"))
    changed = fetch.offer(peer("c"), (TAG,))
    assert changed == SourcesChanged((source_of(peer("a")), source_of(peer("c")), Source(HERE, backup="b1")))
    assert fetch.peer(source_of(peer("a"))) == peer("a")
    assert fetch.peer(Source(HERE, backup="b1")) is None


def test_another_life_of_a_peer_takes_the_place_of_the_one_before() -> None:
    fetch = fetching()
    fetch.offer(peer("a", "1"), (TAG,))
    assert fetch.offer(peer("a", "2"), (TAG,)) == SourcesChanged((source_of(peer("a", "2")),))


def test_the_local_uploader_speaks_for_the_backup() -> None:
    fetch = fetching()
    fetch.receiver.handle(fetch.order_is(FetchOrder(tags=(TAG,), holders=(peer("a"),), backup="b1")), 0.0)
    uploader = Party(host=HERE, service=Service.UPLOADER, incarnation=Incarnation("9"))
    assert fetch.source(uploader) == Source(HERE, backup="b1")
    stranger = Party(host=Host("a"), service=Service.UPLOADER, incarnation=Incarnation("1"))
    assert fetch.source(stranger) == source_of(peer("a"))


def test_tags_are_named_once_by_their_origin_and_told_to_who_offered_them() -> None:
    fetch = fetching()
    fetch.order_is(FetchOrder(tags=(TAG,), own=True))
    fetch.offer(peer("a"), (TAG, OTHER))
    assert fetch.begin_naming() == (Naming((TAG,), own=True), Naming((OTHER,), own=False))
    assert fetch.begin_naming() == ()
    assert fetch.is_naming
    assert fetch.named() == [(peer("a"), (TAG, OTHER))]
    assert fetch.begin_naming() == ()


def test_tags_offered_during_a_naming_are_named_afterwards() -> None:
    fetch = fetching()
    fetch.offer(peer("a"), (TAG,))
    assert fetch.begin_naming() == (Naming((TAG,), own=False),)
    fetch.offer(peer("a"), (TAG, OTHER))
    assert fetch.named() == [(peer("a"), (TAG,))]
    assert fetch.begin_naming() == (Naming(tuple(sorted((TAG, OTHER))), own=False),)


def test_a_failed_naming_can_begin_again() -> None:
    fetch = fetching()
    fetch.offer(peer("a"), (TAG,))
    fetch.begin_naming()
    fetch.naming_failed()
    assert fetch.begin_naming() != ()


def test_a_refusal_takes_leave_of_all_who_offered() -> None:
    fetch = fetching()
    fetch.offer(peer("a"), (TAG,))
    assert fetch.refuse() == [(peer("a"), (TAG,))]
    assert not fetch.is_wanted


def test_a_fetch_is_done_only_when_all_its_ordered_tags_are_named() -> None:
    fetch = fetching()
    fetch.order_is(FetchOrder(tags=(TAG,)))
    fetch.receiver.phase = Phase.DONE
    assert fetch.report.state is FetchState.FETCHING
    fetch.begin_naming()
    fetch.named()
    assert (fetch.report.state, fetch.report.have, fetch.report.size) == (FetchState.DONE, TAG.size, TAG.size)


def test_a_failed_fetch_reports_its_reason() -> None:
    fetch = fetching()
    fetch.order_is(FetchOrder(tags=(TAG,)))
    fetch.receiver.reason = "a: silent"
    assert (fetch.report.state, fetch.report.reason) == (FetchState.FAILED, "a: silent")
