import msgspec

from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Epoch, Step
from checkpoint_replicator.records import EpochRecord, EpochState, KeepList, NodeView
from checkpoint_replicator.save import Save


def test_records_are_json_that_people_can_read_without_the_defaults() -> None:
    keep = KeepList(stamp=Stamp(1, Epoch(2), 3), upto=Save(Epoch(2), Step(20)), keep=(Save(Epoch(2), Step(20)),))
    assert msgspec.json.encode(keep) == (
        b'{"stamp":{"token":1,"epoch":2,"number":3},"upto":{"epoch":2,"step":20},"keep":[{"epoch":2,"step":20}]}'
    )
    assert msgspec.json.decode(msgspec.json.encode(keep), type=KeepList) == keep


def test_refused_sessions_survive_json() -> None:
    record = EpochRecord(
        number=Epoch(1), stamp=Stamp(1, Epoch(1), 1), state=EpochState.GATHERING, refused={"s1": "node-rank 9"}
    )
    assert msgspec.json.decode(msgspec.json.encode(record), type=EpochRecord) == record


def test_a_node_that_finds_nothing_sees_an_empty_view() -> None:
    assert NodeView() == NodeView(store=None, lease=None, fence=None, epoch=None, restore=None, plan=None, keep=None)
