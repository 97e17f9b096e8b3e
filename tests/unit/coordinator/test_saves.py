"""How far saves are; the stories are in `test_machine`."""

import pytest

from checkpoint_replicator.ids import Epoch, Host, Rank, Step, Worker
from checkpoint_replicator.messages import Fault
from checkpoint_replicator.save import Save, ShardKey
from support.coordination import Bench, restored_pair


def test_after_a_release_the_restored_save_stands_for_the_newest_committed() -> None:
    bench = restored_pair()
    assert bench.hashes()["keep"]["upto"] == "1.5"
    assert bench.hashes()["step:1.5"]["reason"] == "restored"
    assert bench.committed() == ["1.5"]


def test_old_saves_leave_the_index() -> None:
    bench = Bench()
    bench.coordinator()
    nodes = bench.cluster(1, peers_per_node=0)
    bench.run(3, bench.all_running)
    for step in range(80):
        nodes[0].save(step)
        bench.run(0.5)
    bench.run(3)
    assert len(bench.hashes()["steps"]) == 64
    assert len([key for key in bench.hashes() if key.startswith("step:")]) == 64


def fault(kind: str, save: Save, rank: int, reason: str) -> Fault:
    return Fault(kind=kind, reason=reason, save=save, key=ShardKey(Rank(rank), Worker(0)))


def test_a_save_that_no_rank_could_be_taken_of_says_why_although_nobody_holds_any_of_it() -> None:
    bench = restored_pair()
    nodes = [bench.nodes[Host(name)] for name in ("node-0", "node-1")]
    save = Save(Epoch(int(bench.epoch["number"])), Step(7))
    for rank, node in enumerate(nodes):
        node.faults = (fault("unsupported", save, rank, "a socket"),)
    bench.run(3)
    shown = bench.hashes()[f"step:{save}"]
    assert (shown["state"], shown["reason"]) == (
        "incomplete",
        "rank 0 on node-0: a socket; rank 1 on node-1: a socket",
    )


def test_a_save_that_was_given_up_before_its_hash_showed_why_it_is_refused_says_so_later() -> None:
    bench = restored_pair()
    nodes = [bench.nodes[Host(name)] for name in ("node-0", "node-1")]
    late = nodes[0].save(6)
    bench.run(3)
    for node in nodes:
        newest = node.save(7)
    bench.run(5)
    assert str(newest) in bench.committed()
    assert bench.hashes()[f"step:{late}"]["reason"].endswith("rank 1 on node-1 did not save it yet")
    nodes[1].faults = (fault("refused", late, 1, "it came too late"),)
    bench.run(3)
    shown = bench.hashes()[f"step:{late}"]
    assert (shown["state"], shown["reason"]) == (
        "abandoned",
        f"save {newest} was committed first; rank 1 on node-1: it came too late",
    )


@pytest.mark.parametrize("kind", ["refused", "unsupported"])
def test_a_second_draft_of_a_committed_save_changes_nothing_of_it(kind: str) -> None:
    bench = restored_pair()
    nodes = [bench.nodes[Host(name)] for name in ("node-0", "node-1")]
    for step in (6, 7):
        for node in nodes:
            save = node.save(step)
        bench.run(5)
    older = Save(save.epoch, Step(6))
    before = bench.hashes()
    for rank, node in enumerate(nodes):
        node.faults = (fault(kind, save, rank, "other content"), fault(kind, older, rank, "it came too late"))
    bench.run(5)
    for one in (older, save):
        assert bench.hashes()[f"step:{one}"] == before[f"step:{one}"]
        assert bench.hashes()[f"step:{one}"]["state"] == "committed"
