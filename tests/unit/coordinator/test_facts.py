import json

from checkpoint_coordinator.facts import facts
from checkpoint_replicator.messages import Fault
from support.coordination import Bench
from support.fake_nodes import Bucket


def test_people_read_nodes_liveness_and_inventories() -> None:
    bench = Bench(bucket=Bucket())
    coordinator = bench.coordinator()
    nodes = bench.cluster(2)
    bench.run(10, bench.all_running)
    spare = bench.node("spare")
    for node in nodes:
        node.save(1)
    bench.run(3)
    nodes[1].alive = False
    bench.run(8)
    found = facts(coordinator.machine.desk, bench.clock.now)
    assert found["node:0"]["host"] == "node-0"
    assert found["node:0"]["epoch"] == "1"
    assert found["node:0"]["backup-root"] == "file:///bucket"
    assert json.loads(found["node:0"]["services"]) == {"transfer": "up", "uploader": "up"}
    states = {name: json.loads(text)["state"] for name, text in found["alive"].items()}
    assert states == {"0": "ok", "1": "suspect", f"host {spare.host}": "ok"}
    [own] = [json.loads(text) for field, text in found["inventory:0"].items() if field.endswith(f"{1_001_000_001:x}")]
    assert own == {"holds": ["1.1 n0/w0 committed"], "size": 10}


def test_a_rank_whose_host_serves_another_job_is_absent_and_not_lost() -> None:
    bench = Bench()
    coordinator = bench.coordinator()
    nodes = bench.cluster(2)
    assert bench.run(10, bench.all_running)
    nodes[1].session = None
    bench.run(30)
    found = facts(coordinator.machine.desk, bench.clock.now)
    told = json.loads(found["alive"]["1"])
    assert (told["state"], told["reason"]) == ("absent", "node-1 has no session of rank 1 any more")
    assert told["age"] < 2
    nodes[1].alive = False
    bench.run(30)
    told = json.loads(facts(coordinator.machine.desk, bench.clock.now)["alive"]["1"])
    assert (told["state"], told["reason"]) == ("lost", "node-1 has no session of rank 1 any more")


def test_a_node_that_lost_its_session_says_why() -> None:
    bench = Bench()
    coordinator = bench.coordinator()
    nodes = bench.cluster(2)
    assert bench.run(10, bench.all_running)
    nodes[1].session = None
    nodes[1].faults = (Fault(kind="session", reason="session.json: garbage"), Fault(kind="uid", reason="other"))
    bench.run(25)
    alive = json.loads(facts(coordinator.machine.desk, bench.clock.now)["alive"]["1"])
    assert (alive["state"], alive["reason"]) == (
        "absent",
        "node-1 has no session of rank 1 any more: session.json: garbage",
    )


def test_superseded_sessions_are_remembered_a_few_of_them() -> None:
    bench = Bench()
    coordinator = bench.coordinator()
    nodes = bench.cluster(1, peers_per_node=0)
    for _ in range(30):
        shape = nodes[0].session.spec.shape if nodes[0].session is not None else None
        assert shape is not None
        nodes[0].open(0, shape, peers_per_node=0)
        bench.run(0.3)
    found = facts(coordinator.machine.desk, bench.clock.now)
    assert len(json.loads(found["node:0"]["superseded"])) == 16
