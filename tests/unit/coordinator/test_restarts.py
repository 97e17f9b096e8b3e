from checkpoint_coordinator.restarts import loop_text, older, restores
from checkpoint_replicator.ids import Epoch, Host, Job, Rank, Step
from checkpoint_replicator.save import Save
from checkpoint_replicator.shape import Shape
from support.coordination import JOB, Bench

SHAPE = Shape(2, 1, 1, "pytorch")


def save(epoch: int, step: int) -> Save:
    return Save(Epoch(epoch), Step(step))


def decided(text: str) -> dict[str, str]:
    return {"save": text, "released": "yes"}


def test_only_restores_in_a_row_count() -> None:
    decisions = [(number, decided(text)) for number, text in enumerate(("1.5", "1.4", "1.5", "1.5"), start=1)]
    assert restores(save(1, 5), Epoch(5), decisions) == 3
    assert restores(save(1, 5), Epoch(4), decisions) == 2
    assert restores(save(1, 6), Epoch(5), decisions) == 1
    assert restores(save(1, 5), Epoch(5), [(4, {})]) == 1


def test_an_epoch_that_was_abandoned_before_its_release_is_no_restore() -> None:
    abandoned = {**decided("1.5"), "released": "no"}
    other = {**decided("1.6"), "released": "no"}
    decisions = [(1, decided("1.5")), (2, abandoned), (3, other), (4, decided("1.5")), (5, abandoned)]
    assert restores(save(1, 5), Epoch(6), decisions) == 3
    assert restores(save(1, 5), Epoch(3), decisions) == 2


def test_redis_tells_of_each_decision_whether_it_was_released() -> None:
    bench = Bench()
    bench.coordinator()
    nodes = bench.cluster(2)
    for rank, node in enumerate(nodes):
        node.hold(save(1, 5), rank, 0, SHAPE, own=True)
    assert bench.run(10, bench.all_running)
    first = f"restore:{bench.epoch['number']}"
    assert bench.run(5, lambda: bench.hashes()[first]["released"] == "yes")
    bench.restart()
    assert bench.run(10, lambda: f"restore:{bench.epoch['number']}" != first)
    assert bench.run(10, bench.all_running)
    assert bench.hashes()[first]["released"] == "yes"


def test_the_way_out_is_a_command() -> None:
    text = loop_text(Job("run"), save(1, 5), 3, [(save(1, 4), "2026-01-01_00-00"), (save(1, 2), "")])
    assert text == (
        "save 1.5 was restored 3 times without a newer commit; older ones: 1.4 (backup 2026-01-01_00-00), 1.2; "
        "`checkpoint-replicator restore --job run --save 1.4` takes one"
    )
    assert loop_text(Job("run"), save(1, 5), 3, []).endswith("; no older one is whole")


def test_three_restores_without_a_newer_commit_are_told_to_people_and_change_nothing() -> None:
    bench = Bench()
    bench.coordinator()
    nodes = bench.cluster(2)
    for rank, node in enumerate(nodes):
        node.hold(save(1, 5), rank, 0, SHAPE, own=True)
        node.hold(save(1, 4), rank, 0, SHAPE, own=True)
    nodes[0].hold(save(1, 3), 0, 0, SHAPE, own=True)
    assert [(one, name) for one, name in older(save(1, 5), bench.coordinators[0].machine.desk.stock)] == []
    assert bench.run(10, bench.all_running)
    assert bench.ordered("hold").state == "done"
    for node, rank in zip(nodes, range(2), strict=True):
        node.hold(save(1, 4), rank, 0, SHAPE, own=True)
    for _ in range(3):
        assert not bench.coordinators[0].said("restart_loop")
        assert bench.restore.warning == ""
        bench.restart()
        assert bench.run(10, bench.all_running)
        bench.run(2)
        if len(nodes[0].restored) == 3:
            break
    [note] = bench.coordinators[0].said("restart_loop")
    assert "older ones: 1.4; `checkpoint-replicator restore --job run --save 1.4` takes one" in note.fields["reason"]
    assert bench.restore.warning == note.fields["reason"]
    assert {str(one) for one, _ in nodes[0].restored} == {"1.5"}


def test_a_rank_that_joins_again_and_again_is_a_loop_too() -> None:
    bench = Bench()
    bench.coordinator()
    nodes = bench.cluster(2)
    for rank, node in enumerate(nodes):
        node.hold(save(1, 5), rank, 0, SHAPE, own=True)
    assert bench.run(10, bench.all_running)
    for _ in range(2):
        nodes[1].open(Rank(1), SHAPE)
        assert bench.run(10, bench.all_running)
    bench.run(2)
    assert bench.coordinators[0].said("restart_loop")
    assert bench.nodes[Host("node-1")].restored[-1][0] == save(1, 5)
    assert JOB in bench.store.jobs()
