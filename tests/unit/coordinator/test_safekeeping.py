"""Saves, their backups and what may go, together; the stories are in `test_machine`."""

from support.coordination import Bench
from support.fake_nodes import Bucket


def test_a_backup_in_hand_goes_on_when_a_newer_save_commits() -> None:
    bucket = Bucket()
    bench = Bench(bucket=bucket)
    bench.coordinator()
    nodes = bench.cluster(2)
    assert bench.run(10, bench.all_running)
    for step in (1, 2, 3):
        for node in nodes:
            node.save(step)
        bench.run(0.5)
    assert bench.run(20, lambda: "lastbackup" in bench.hashes())
    assert bench.coordinators[0].said("backup_failed") == []
    bench.run(3)
    assert {str(tag.save) for node in nodes for tag in node.held} == {"1.3"}
