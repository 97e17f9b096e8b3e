import pytest

from checkpoint_replicator.errors import ProtocolError
from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Epoch, Host, Job, Rank
from checkpoint_replicator.records import EpochRecord, EpochState, NodeView, Outcome, RestoreRecord
from checkpoint_replicator.store.fields import to_fields, to_json
from checkpoint_replicator.store.view import RawView, parse_view

JOB = Job("j")
HOST = Host("node-0")
EPOCH = EpochRecord(number=Epoch(4), stamp=Stamp(1, Epoch(4), 1), state=EpochState.RUNNING)


def test_nothing_in_redis_is_an_empty_view() -> None:
    assert parse_view(RawView(), JOB, HOST, Rank(0)) == NodeView()


def test_each_part_is_parsed_into_its_record() -> None:
    decision = RestoreRecord(stamp=EPOCH.stamp, outcome=Outcome.NONE)
    raw = RawView(store="s", fence=to_fields(EPOCH.stamp), epoch=to_fields(EPOCH), decision=to_json(decision))
    view = parse_view(raw, JOB, HOST, None)
    assert (view.store, view.fence, view.epoch, view.restore) == ("s", EPOCH.stamp, EPOCH, decision)


def test_a_bad_plan_is_named_with_its_epoch_and_rank() -> None:
    with pytest.raises(ProtocolError, match=r"ckpt:\{j\}:restore:4 n2: expected JSON of FetchPlan"):
        parse_view(RawView(epoch=to_fields(EPOCH), plan="?"), JOB, HOST, Rank(2))


def test_bad_orders_are_named_with_their_host() -> None:
    with pytest.raises(ProtocolError, match=r"ckpt:\{j\}:orders node-0"):
        parse_view(RawView(orders="?"), JOB, HOST, None)
