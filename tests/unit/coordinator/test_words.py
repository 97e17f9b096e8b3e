from checkpoint_coordinator.words import Write
from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Epoch, Host, Incarnation
from checkpoint_replicator.records import Lease
from checkpoint_replicator.store import AddEvent, Delete, SetHash, SetScores

LEASE = Lease(incarnation=Incarnation("c"), token=1, host=Host("c"), reports="r", beacons="b")


def test_a_write_says_which_keys_it_writes_and_into_which_state() -> None:
    changes = (
        SetHash("step:1.4", {"state": "committed"}),
        SetHash("step:1.3", {"copies": "1"}),
        Delete("step:1.2"),
        SetScores("steps", {"1.4": 1.0}),
        SetHash("keep", {"upto": "1.4"}),
        SetHash("step:1.5", {"state": "committed"}),
        AddEvent({"event": "save_committed"}),
    )
    write = Write(LEASE, Stamp(1, Epoch(1), 7), changes)
    assert write.kinds == ("step=committed", "step", "-step", "steps", "keep", "event")
