"""What the watcher writes down."""

import msgspec

from checkpoint_replicator.ids import Epoch, Rank, SessionId, Worker
from checkpoint_replicator.save import ShardKey
from checkpoint_replicator.session import SessionSpec, SessionState
from checkpoint_watcher.record import Claim, Lineage, SessionRecord
from checkpoint_watcher.snapshot import YamlIdentity
from support.watcher_story import JOB, SHAPE, save

SPEC = SessionSpec(JOB, Rank(0), SHAPE)
BEFORE = Lineage(SPEC, Epoch(3))


def record(**changes: object) -> SessionRecord:
    base = SessionRecord(SessionId("x"), YamlIdentity(1, 2, 3, "d"), 1.5, SPEC, SessionState.OPEN, before=BEFORE)
    return msgspec.structs.replace(base, **changes)


def test_a_record_survives_its_file() -> None:
    for one in (record(), record(spec=None, failure="why"), record(epoch=Epoch(4), published=True)):
        assert msgspec.json.decode(msgspec.json.encode(one), type=SessionRecord) == one


def test_saves_belong_to_the_session_before_until_this_one_is_released() -> None:
    assert record().lineage == BEFORE
    assert record(epoch=Epoch(4)).lineage == Lineage(SPEC, Epoch(4))
    assert record(spec=None).lineage == BEFORE


def test_a_bad_yaml_is_no_session() -> None:
    assert record(spec=None).session(gone=True) is None
    session = record().session(gone=True)
    assert session is not None
    assert (session.id, session.consumed) == ("x", True)


def test_a_claim_is_found_by_epoch_and_name() -> None:
    claim = Claim(JOB, save(7), SHAPE, ShardKey(Rank(1), Worker(2)))
    assert claim.name == "1/j-s7-n1-w2"
