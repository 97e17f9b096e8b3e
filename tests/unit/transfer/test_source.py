from checkpoint_replicator.ids import Host, Incarnation
from checkpoint_replicator.records import Peer
from checkpoint_transfer.source import Source, source_of


def test_a_peer_is_a_source_in_one_life() -> None:
    one = Peer(host=Host("a"), incarnation=Incarnation("1"), control="tcp://a:1", leaves=())
    two = Peer(host=Host("a"), incarnation=Incarnation("2"), control="tcp://a:1", leaves=())
    assert source_of(one) != source_of(two)
    assert (str(source_of(one)), source_of(one).kind) == ("a", "peer")


def test_a_backup_is_named_by_its_directory() -> None:
    source = Source(Host("a"), backup="2026-01-01_00-00")
    assert (str(source), source.kind) == ("backup 2026-01-01_00-00", "backup")
