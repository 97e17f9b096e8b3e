"""What is done to a cluster so that it comes to a point: each from rest to rest, and it must succeed whoever dies."""

import shutil
from collections.abc import Callable, Coroutine, Mapping
from typing import Final

from checkpoint_replicator.cluster import node_services
from crash.evidence import Line
from crash.scene import Scene

__all__ = ["STAGES", "Stage", "corrupt"]

Act = Callable[[Scene], Coroutine[object, object, None]]


class Stage:
    """`prepare` is done before the point is armed, `act` while it is."""

    def __init__(self, act: Act, prepare: Act | None = None) -> None:
        self.act = act
        self.prepare = prepare


def newest(scene: Scene) -> Line | None:
    """The life and step that a restart must bring back: the newest whole save, by what lies there."""
    now = scene.evidence()
    saved = now.bytes_of(now.newest, 0) if now.newest is not None else None
    return None if saved is None else (saved.life, saved.step)


async def saving(scene: Scene) -> None:
    """All trainers save, and the save is committed."""
    scene.save()
    await scene.committed()


async def backing_up(scene: Scene) -> None:
    """All trainers save and ask for a backup, which is verified."""
    scene.save(wish=True)
    await scene.committed()
    await scene.backed_up()


async def restarting(scene: Scene) -> None:
    """All trainers die and come back."""
    expected = newest(scene)
    assert await scene.restore() == expected
    await scene.rest()


async def replacing(scene: Scene) -> None:
    """A machine is lost with its ramdisk; the job comes back with an empty one in its place."""
    expected = newest(scene)
    await scene.lose(1)
    assert await scene.restore() == expected
    await scene.rest()


async def losing_all(scene: Scene) -> None:
    """All machines are lost; the job comes back from its backup."""
    expected = newest(scene)
    await scene.lose(0)
    await scene.lose(1)
    assert await scene.restore() == expected
    await scene.rest()


def corrupt(scene: Scene, node: int, rank: int) -> None:
    """Flip a byte of the newest save's shard of a rank on a node."""
    now = scene.evidence()
    newest_save = now.newest
    assert newest_save is not None
    [address] = [one.address for one in now.disks[node].named.values() if (one.save, one.rank) == (newest_save, rank)]
    scene.auditor.harm(node)
    with (scene.local(node) / f"{address}.data" / f"__{rank}_0.distcp").open("r+b") as file:
        byte = file.read(1)
        file.seek(0)
        file.write(bytes([byte[0] ^ 1]))


async def corrupting(scene: Scene) -> None:
    """A bit of a rank's own newest shard flips; the job comes back, and the bit is as it was."""
    expected = newest(scene)
    corrupt(scene, 1, 1)
    assert await scene.restore() == expected
    scene.auditor.healed(1)
    await scene.rest()


async def rotting(scene: Scene) -> None:
    """A machine is lost, and the only copy of its shard has a flipped bit: the backup has the bytes."""
    expected = newest(scene)
    corrupt(scene, 1, 0)
    await scene.lose(0)
    assert await scene.restore() == expected
    scene.auditor.healed(1)
    await scene.rest()


async def saving_again(scene: Scene) -> None:
    """Trainers save a committed step once more with other bytes: refused, and they are told."""
    scene.save(again=True)
    for node in range(2):
        errors = scene.local(node) / "replicator.errors"
        await scene.until("the second draft to be refused", lambda file=errors: file.exists() or None)  # type: ignore[misc]
        errors.unlink()
    await scene.rest()


async def misspelling(scene: Scene) -> None:
    """A trainer writes a yaml that is none: it is told so, and the job comes back with a good one."""
    expected = newest(scene)
    local = scene.local(1)
    (local / "draft").write_text("nodes: [\n")
    (local / "draft").rename(local / "replicator.yaml")
    failed = local / "replicator.failed"
    await scene.until("the yaml to be refused", lambda: failed.exists() or None)
    assert not (local / "replicator.yaml").exists()
    failed.unlink()
    assert await scene.restore() == expected
    await scene.rest()


async def handing_over(scene: Scene) -> None:
    """The coordinator is asked to end, and comes back; the other one goes on meanwhile."""
    active = scene.active
    await scene.terminate(active)
    scene.save()
    await scene.start([active])
    await scene.committed()


async def rebooting(scene: Scene) -> None:
    """All services of a node are killed and started; the next save is committed."""
    await scene.kill(node_services(1))
    await scene.start(node_services(1))
    scene.save()
    await scene.committed()


async def leaving_an_order(scene: Scene) -> None:
    """An order without a manifest lies in the backup store, which nobody remembers: it is closed and swept."""
    backups = sorted((scene.backups / "job").iterdir())
    left = backups[0].with_name("2001-01-01_00-00")
    shutil.rmtree(left, ignore_errors=True)
    shutil.copytree(backups[-1], left, ignore=shutil.ignore_patterns("MANIFEST.json"))
    await backing_up(scene)  # its listing shows the leftover
    await scene.until(
        "the order to be closed and swept",
        lambda: {path.name for path in left.rglob("*") if path.is_file()} == {"ORDER.json", "MANIFEST.json"} or None,
    )


def dying(point: str) -> Act:
    """Let a process die amid something, and stay dead; whoever starts it finds what it left."""

    async def prepare(scene: Scene) -> None:
        scene.arm(point)
        scene.save()
        await scene.death()
        assert scene.look() == []

    return prepare


async def reviving(scene: Scene) -> None:
    """Who died amid a save is started again, and the save is committed."""
    await scene.start([state.name for state in scene.supervisor.states if state.code is not None])
    await scene.committed()


STAGES: Final[Mapping[str, Stage]] = {
    "saving": Stage(saving),
    "saving anew": Stage(saving, restarting),
    "backing up": Stage(backing_up),
    "restarting": Stage(restarting),
    "replacing a node": Stage(replacing),
    "losing all nodes": Stage(losing_all, backing_up),
    "corrupting": Stage(corrupting),
    "rotting": Stage(rotting, backing_up),
    "saving again": Stage(saving_again, saving),
    "misspelling": Stage(misspelling),
    "handing over": Stage(handing_over),
    "rebooting": Stage(rebooting),
    "leaving an order": Stage(leaving_an_order, backing_up),
    "recovering a naming": Stage(reviving, dying("watcher NameShard 6")),
    "recovering a dropping": Stage(reviving, dying("watcher DropSaves 4")),
    "recovering a copy": Stage(reviving, dying("transfer NameShard 6")),
}
