"""How far saves are; the stories are in `test_machine`."""

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
