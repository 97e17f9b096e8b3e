"""All sequences of up to three actions, each begun while what the one before set off is still under way."""

import hashlib
import shutil
from collections.abc import Callable, Coroutine, Mapping
from itertools import product
from typing import Final

from checkpoint_replicator.cluster import node_services
from checkpoint_replicator.ramdisk.locks import exclusive
from crash.evidence import Line
from crash.scene import Scene
from crash.stages import newest

__all__ = ["SEQUENCES", "play"]


async def save(scene: Scene, _: int) -> None:
    """All trainers save."""
    scene.save()


async def backup(scene: Scene, _: int) -> None:
    """All trainers save and ask for a backup."""
    scene.save(wish=True)


async def delete(scene: Scene, _: int) -> None:
    """Somebody removes every shard that node 1 shows; its services know of nothing."""
    scene.judge()
    scene.auditor.wiped(1)
    with exclusive(scene.local(1) / ".replicator" / "names.lock"):  # else what is named meanwhile is half removed
        for path in (*scene.local(1).glob("*.meta"), *scene.local(1).glob("*.data")):
            path.unlink() if path.is_file() else shutil.rmtree(path)


async def kill(scene: Scene, chance: int) -> None:
    """`kill -9` of any one process, which is started again at once."""
    victims = [*node_services(0), *node_services(1), scene.active]
    name = victims[chance % len(victims)]
    await scene.kill([name])
    await scene.start([name])


async def restore(scene: Scene, _: int) -> None:
    """All trainers die and come back: with the newest save that was whole, or one that became so meanwhile."""
    floor = newest(scene)
    restored = await scene.restore()
    assert at_least(restored, floor), f"law 10: {restored} was restored, {floor} is whole"


async def join(scene: Scene, _: int) -> None:
    """Node 1 is lost, and an empty machine takes its rank: with its fellow, if the job saved since it started."""
    await scene.lose(1)
    floor = newest(scene)
    restored = await (scene.restore() if scene.saved else scene.hand_out([1]))
    assert at_least(restored, floor), f"law 10: {restored} was restored, {floor} is whole"


def at_least(restored: Line | None, floor: Line | None) -> bool:
    """Tell whether a restored save is that one or a newer one."""
    return floor is None or (restored is not None and restored >= floor)


Action = Callable[[Scene, int], Coroutine[object, object, None]]
ACTIONS: Final[Mapping[str, Action]] = {
    "save": save,
    "delete": delete,
    "kill": kill,
    "restore": restore,
    "join": join,
    "backup": backup,
}
SEQUENCES: Final[Mapping[str, tuple[str, ...]]] = {
    "+".join(names): names for length in (1, 2, 3) for names in product(ACTIONS, repeat=length)
}


async def play(scene: Scene, name: str) -> None:
    """Do one thing after another, then see the job come back, go on, and come to rest."""
    for place, action in enumerate(SEQUENCES[name]):
        chance = hashlib.sha256(f"{name} {place}".encode()).digest()[0]
        await ACTIONS[action](scene, chance)
        scene.judge()
    await restore(scene, 0)
    scene.save()
    await scene.committed()
