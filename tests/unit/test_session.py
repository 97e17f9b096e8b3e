import msgspec

from checkpoint_replicator.ids import Epoch, Job, Rank, SessionId
from checkpoint_replicator.session import Session, SessionSpec, SessionState
from checkpoint_replicator.shape import Shape


def test_a_session_survives_its_file() -> None:
    spec = SessionSpec(Job("j"), Rank(1), Shape(2, 1, 1, "pytorch"), peer_ranks=(Rank(0),), backup_interval_steps=10)
    session = Session(SessionId("a"), spec, SessionState.RUNNING, epoch=Epoch(3), consumed=True)
    assert msgspec.json.decode(msgspec.json.encode(session), type=Session) == session


def test_a_fresh_session_belongs_to_no_epoch_and_its_yaml_still_stands() -> None:
    session = Session(SessionId("a"), SessionSpec(Job("j"), Rank(0), Shape(1, 1, 1, "pytorch")), SessionState.OPEN)
    assert session.epoch == 0
    assert not session.consumed
