import re

import msgspec

from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Epoch, Host, Incarnation, Job, Rank, SessionId, Step
from checkpoint_replicator.records import EpochRecord, EpochState, HostRecord, KeepList, Lease, Member, NodeView
from checkpoint_replicator.save import Save
from checkpoint_replicator.shape import Shape
from checkpoint_replicator.status import (
    UNJUDGED,
    UNREADABLE,
    BackupStatus,
    ClusterStatus,
    JobStatus,
    MakingStatus,
    NodeStatus,
    Protection,
    SaveStatus,
    job_status,
    read_cluster,
)
from checkpoint_replicator.store.fields import to_fields, to_json
from checkpoint_replicator.wishes import Branch, Forgetting, WishAnswer, WishState
from support.memory_store import MemoryManifestStore, StoreModel

JOB = Job("j")
STAMP = Stamp(1, Epoch(2), 3)
LEASE = Lease(incarnation=Incarnation("i"), token=1, host=Host("coordinator-1"), reports="", beacons="")
EPOCH = EpochRecord(
    number=Epoch(2),
    stamp=STAMP,
    state=EpochState.RUNNING,
    reason="all restored",
    shape=Shape(2, 1, 1, "pytorch"),
    members=tuple(Member(rank=Rank(rank), host=Host(f"node-{rank}"), session=SessionId("s")) for rank in (0, 1)),
)


def test_a_job_without_anything_in_redis_is_unknown_and_unprotected_by_nothing() -> None:
    assert job_status(JOB, NodeView(), {}, 0.0) == JobStatus(job="j")


def test_the_picture_of_a_running_job() -> None:
    view = NodeView(
        lease=LEASE,
        epoch=EPOCH,
        keep=KeepList(stamp=STAMP, upto=Save(Epoch(2), Step(9)), keep=(Save(Epoch(2), Step(9)),)),
    )
    hashes = {
        "steps": {"2.10": "2", "2.9": "1", "1.30": "0"},
        "step:1.30": {"state": "committed", "copies": "1", "unprotected": "no"},
        "step:2.9": {"state": "committed", "copies": "1", "unprotected": "no"},
        "step:2.10": {"state": "saving", "copies": "0", "reason": "rank 1 did not save it yet"},
        "alive": {"0": '{"state":"ok","age":1.2,"since":7}', "1": '{"state":"stuck","age":12.6,"since":8}'},
        "node:0": {"room": '{"size":64,"free":4,"generations":1,"needed":142}', "faults": '["undersized: too small"]'},
        "node:1": {"room": '{"size":64,"free":4}', "faults": "[]"},
        "lastbackup": {"name": "2026-01-01_00-00", "save": "1.5", "verified_at": "940.0"},
    }
    assert job_status(JOB, view, hashes, 1000.0) == JobStatus(
        job="j",
        epoch=2,
        state="running",
        reason="all restored",
        shape="2 nodes x 1 worker, pytorch",
        coordinator="coordinator-1",
        committed="2.9",
        protection=Protection.PROTECTED,
        replicas=1,
        nodes=(
            NodeStatus(rank=0, host="node-0", state="ok", generations=1, faults=("undersized: too small",)),
            NodeStatus(rank=1, host="node-1", state="stuck", reason="last report 13 s ago"),
        ),
        laggards=("node-1: stuck",),
        saves=(
            SaveStatus(save="1.30", state="dropped", reason="save 2.9 is committed"),
            SaveStatus(save="2.9", state="committed", replicas=1),
            SaveStatus(save="2.10", state="saving", reason="rank 1 did not save it yet"),
        ),
        backup=BackupStatus(name="2026-01-01_00-00", save="1.5", age=60.0),
    )


def test_a_job_of_which_no_node_reports_any_more_is_not_called_protected() -> None:
    view = NodeView(
        lease=LEASE,
        epoch=EPOCH,
        keep=KeepList(stamp=STAMP, upto=Save(Epoch(2), Step(9)), keep=(Save(Epoch(2), Step(9)),)),
    )
    hashes = {"steps": {"2.9": "1"}, "step:2.9": {"state": "committed", "copies": "1", "unprotected": "no"}}
    status = job_status(JOB, view, hashes, 1000.0)
    assert (status.committed, status.protection, status.replicas) == ("2.9", Protection.UNKNOWN, 0)


def test_a_rank_of_no_member_stands_with_the_host_that_had_it_last() -> None:
    epoch = msgspec.structs.replace(EPOCH, state=EpochState.GATHERING, members=())
    hashes = {
        "alive": {"0": '{"state":"ok","age":0.2}', "1": '{"state":"suspect","age":9.0}'},
        "node:0": {"host": "node-0"},
        "node:1": {"host": "node-1"},
    }
    status = job_status(JOB, NodeView(lease=LEASE, epoch=epoch), hashes, 0.0)
    assert [node.host for node in status.nodes] == ["node-0", "node-1"]
    assert status.laggards == ("node-1: suspect",)


def test_without_a_coordinator_nothing_is_claimed_of_any_rank() -> None:
    keep = KeepList(stamp=STAMP, upto=Save(Epoch(2), Step(9)), keep=(Save(Epoch(2), Step(9)),))
    hashes = {
        "steps": {"2.9": "1"},
        "step:2.9": {"state": "committed", "copies": "1", "unprotected": "no"},
        "alive": {"0": '{"state":"ok","age":1.2}', "1": '{"state":"ok","age":1.2}'},
    }
    judged = job_status(JOB, NodeView(lease=LEASE, epoch=EPOCH, keep=keep), hashes, 0.0)
    assert (judged.protection, judged.laggards) == (Protection.PROTECTED, ())
    status = job_status(JOB, NodeView(epoch=EPOCH, keep=keep), hashes, 0.0)
    assert {(node.state, node.reason) for node in status.nodes} == {("unknown", UNJUDGED)}
    assert (status.coordinator, status.protection, status.replicas) == ("", Protection.UNKNOWN, 0)
    assert status.laggards == ("node-0: unknown", "node-1: unknown")


def test_a_backup_that_is_under_way_is_shown_with_why_it_does_not_go_on() -> None:
    full = "node-0: No space left on device"
    hashes = {
        "backup:2026-01-01_00-00": {"state": "complete", "save": "1.1"},
        "backup:2026-01-01_00-30": {"state": "superseded", "save": "1.2", "reason": "people went back"},
        "backup:2026-01-01_01-00": {"state": "reserving", "save": "2.9", "reason": full},
        "backup:2026-01-01_01-01": {"state": "abandoned", "save": "2.9", "reason": "no"},
    }
    made = MakingStatus(name="2026-01-01_01-00", save="2.9", state="reserving", reason=full)
    assert job_status(JOB, NodeView(), hashes, 0.0).making == made
    del hashes["backup:2026-01-01_01-00"]
    assert job_status(JOB, NodeView(), hashes, 0.0).making is None


def test_who_is_waited_for_while_a_job_is_forgotten_is_shown() -> None:
    hashes = {"forgetting": to_fields(Forgetting(wish="w"))}
    assert job_status(JOB, NodeView(), hashes, 0.0).forgetting == ""
    told = WishAnswer(kind="forget", state=WishState.TAKEN, reason="waiting for node-1")
    assert job_status(JOB, NodeView(), {**hashes, "wishes": {"w": to_json(told)}}, 0.0).forgetting == told.reason


def test_a_line_of_saves_that_people_began_and_a_start_that_failed_are_in_the_picture() -> None:
    view = NodeView(epoch=msgspec.structs.replace(EPOCH, failure="all is lost"))
    assert job_status(JOB, view, {}, 0.0).failure == "all is lost"
    fresh = {"branch": to_fields(Branch(epoch=Epoch(3)))}
    assert job_status(JOB, view, fresh, 0.0).line == "a fresh start in epoch 3"
    back = {"branch": to_fields(Branch(epoch=Epoch(3), save=Save(Epoch(1), Step(5))))}
    assert job_status(JOB, view, back, 0.0).line == "save 1.5 in epoch 3"


def test_the_committed_step_is_the_second_part_of_the_save() -> None:
    assert JobStatus(job="j").committed_step is None
    assert JobStatus(job="j", committed="4.0").committed_step == 0


async def test_a_store_is_read_job_by_job() -> None:
    store = MemoryManifestStore(StoreModel(lambda: 0.0))
    await store.register(HostRecord(host=Host("node-0"), incarnation=Incarnation("i")))
    await store.add_job(Job("k"))
    await store.add_job(JOB)
    found = await read_cluster(store)
    assert found == ClusterStatus(hosts=("node-0",), jobs=(JobStatus(job="j"), JobStatus(job="k")))


async def test_a_job_that_does_not_parse_is_named_and_hides_no_other() -> None:
    model = StoreModel(lambda: 0.0)
    store = MemoryManifestStore(model)
    await store.add_job(JOB)
    await store.add_job(Job("k"))
    model.put("ckpt:{j}:keys", {"steps": "zset", "step:1.1": "hash"})
    model.put("ckpt:{j}:steps", {"1.1": 1.0})
    model.put("ckpt:{j}:step:1.1", {"copies": "many"})
    spoilt, other = (await read_cluster(store)).jobs
    assert spoilt.state == UNREADABLE
    assert re.search(r"job j: .*invalid literal .*'many'", spoilt.reason)
    assert other == JobStatus(job="k")
