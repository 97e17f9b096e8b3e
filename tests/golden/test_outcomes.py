"""{Redis} x {backup} x {ramdisks} -> outcome of the restore decision; the table is `outcomes.txt`.

Each row is a whole coordinator with nodes, a model of Redis and a bucket. `RECORD=1` writes a missing table anew.
"""

import os
from pathlib import Path

import pytest

from checkpoint_replicator.backup import ObjectMark, data_name, manifest_document, meta_name, tree_name
from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Epoch, Step
from checkpoint_replicator.save import Save, Tag
from checkpoint_replicator.shape import Shape
from support.coordination import JOB, Bench
from support.fake_nodes import Bucket, FakeNode

TABLE = Path(__file__).with_name("outcomes.txt")
SHAPE = Shape(2, 1, 1, "pytorch")
OLD, NEW = Save(Epoch(1), Step(10)), Save(Epoch(1), Step(20))
REDIS = ("new", "old", "flushed")
BACKUP = ("not configured", "empty", "with backups", "403", "unreachable")
RAMDISKS = ("empty", "uncommitted torn", "uncommitted whole", "committed whole", "committed broken")


def ramdisks(nodes: list[FakeNode], state: str) -> None:
    """Put what the state says on two nodes; every trace of a commit lies in sidecars and in `fence.json`."""
    if state == "empty":
        return
    committed = state.startswith("committed")
    ranks = (0,) if state in {"uncommitted torn", "committed broken"} else (0, 1)
    for rank in ranks:
        nodes[rank].hold(NEW, rank, 0, SHAPE, own=True, committed=committed)
    if committed:
        for node in nodes:
            node.newest = NEW


def put_backup(bucket: Bucket, source: FakeNode) -> None:
    """Store a whole backup of the older save."""
    spare = FakeNode(JOB, "spare", {})
    tags: list[Tag] = [spare.hold(OLD, rank, 0, SHAPE) for rank in range(2)]
    objects = {data_name(tag.address): b"x" * tag.size for tag in tags}
    objects |= {tree_name(tag.address): b"tree" for tag in tags} | {
        meta_name(tag): tag.address.encode() for tag in tags
    }
    marks = {name: ObjectMark(len(content), "") for name, content in objects.items()}
    document = manifest_document(
        save=OLD, shape=SHAPE, stamp=Stamp(1, Epoch(1), 1), version="1", tags=tags, objects=marks
    )
    bucket.objects["2026-01-01_00-00"] = {**objects, "MANIFEST.json": document.encode()}
    assert source.bucket is bucket


def outcome(redis: str, backup: str, disks: str) -> str:
    """Play a row: the outcome, and the save where one is restored."""
    bucket = None if backup == "not configured" else Bucket()
    bench = Bench(bucket=bucket)
    nodes = [bench.node("a"), bench.node("b")]
    if redis == "old":  # it remembers a commit of NEW in a run before
        bench.store.put(f"ckpt:{{{JOB}}}:keys", {f"step:{NEW}": "hash", "epoch": "hash"})
        bench.store.put(f"ckpt:{{{JOB}}}:step:{NEW}", {"state": "committed", "shape": SHAPE_JSON})
        bench.store.put(f"ckpt:{{{JOB}}}:epoch", {"number": "1", "stamp": "1.1.9", "state": "running"})
        bench.store.put(f"ckpt:{{{JOB}}}:fence", {"token": "1", "epoch": "1", "number": "9"})
    if redis == "flushed":  # nodes obeyed a coordinator of whose numbers Redis knows nothing any more
        for node in nodes:
            node.obeyed = Stamp(3, Epoch(1), 9) if disks != "empty" else node.obeyed
    ramdisks(nodes, disks)
    if bucket is not None and backup == "with backups":
        put_backup(bucket, nodes[0])
    if bucket is not None and backup in {"403", "unreachable"}:
        bucket.fault = {"403": "403 forbidden", "unreachable": "no route to host"}[backup]
    bench.coordinator()
    for rank, node in enumerate(nodes):
        node.open(rank, SHAPE)
    bench.run(45, lambda: any(node.restored or node.failed for node in nodes))
    restore = bench.restore
    return f"{restore.outcome} {restore.save}" if restore.save is not None else str(restore.outcome)


SHAPE_JSON = '{"nodes":2,"workers":1,"d":1,"framework":"pytorch"}'
ROWS = [(redis, backup, disks) for redis in REDIS for backup in BACKUP for disks in RAMDISKS]


def golden() -> dict[tuple[str, ...], str]:
    if not TABLE.exists():
        return {}
    lines = [line for line in TABLE.read_text().splitlines() if line and not line.startswith("#")]
    cells = [[cell.strip() for cell in line.split("|")] for line in lines]
    return {tuple(row[:3]): row[3] for row in cells}


@pytest.mark.parametrize(("redis", "backup", "disks"), ROWS)
def test_s12_the_outcome_is_that_of_the_table(redis: str, backup: str, disks: str) -> None:
    assert golden()[redis, backup, disks] == outcome(redis, backup, disks)


def test_the_table_is_complete() -> None:
    if os.environ.get("RECORD") and not TABLE.exists():
        head = "# Redis | backup | ramdisks | outcome; save 1.20 is on the ramdisks, 1.10 in the backups\n"
        rows = [f"{' | '.join(row)} | {outcome(*row)}\n" for row in ROWS]
        TABLE.write_text(head + "".join(rows))
    assert set(golden()) == set(ROWS)
