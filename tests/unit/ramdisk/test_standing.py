import os
from collections.abc import Callable
from pathlib import Path

import pytest

from checkpoint_replicator.ramdisk import Ramdisk
from checkpoint_replicator.ramdisk.files import Files
from checkpoint_replicator.ramdisk.register import Register
from checkpoint_replicator.ramdisk.sidecar import Sidecar
from checkpoint_replicator.ramdisk.standing import TRUSTED, Standing
from support.clock import ManualClock
from support.shards import fill, fill_folder, named


class Walked(Register):
    """Counts how often a whole shard was walked."""

    walks = 0

    def fault(self, sidecar: Sidecar) -> str | None:
        self.walks += 1
        return super().fault(sidecar)


class Scene:
    def __init__(self, root: Path) -> None:
        self.ramdisk = Ramdisk(root)
        self.clock = ManualClock()
        self.register = Walked(self.ramdisk.layout, Files())
        self.standing = Standing(self.ramdisk.layout, self.register, self.clock)
        self.tag = named(self.ramdisk, fill_folder(root / "x"))
        self.data = self.ramdisk.layout.data(self.tag.address)

    def stands(self) -> bool:
        return self.standing.stands(self.ramdisk.sidecars()[0])


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_shard_that_looks_the_same_is_walked_once_in_ten_seconds(scene: Scene) -> None:
    assert [scene.stands() for _ in range(5)] == [True] * 5
    assert scene.register.walks == 1
    scene.clock.now += TRUSTED
    assert scene.stands()
    assert scene.register.walks == 2


def test_a_change_deep_inside_shows_after_ten_seconds(scene: Scene) -> None:
    assert scene.stands()
    os.truncate(scene.data / "sub" / "b", 1)
    scene.clock.now += TRUSTED
    assert not scene.stands()


@pytest.mark.parametrize(
    "harm",
    [
        lambda scene: scene.data.rename(scene.data.with_name("y")),
        lambda scene: (scene.data / "a").unlink(),
        lambda scene: scene.ramdisk.layout.tree(scene.tag.address).unlink(),
    ],
    ids=["moved", "emptied", "without its tree"],
)
def test_a_change_at_the_top_shows_at_once(scene: Scene, harm: Callable[[Scene], object]) -> None:
    assert scene.stands()
    harm(scene)
    assert not scene.stands()


def test_a_file_that_changed_shows_at_once(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.ramdisk.drop(scene.tag)
    tag = named(scene.ramdisk, fill(tmp_path / "x", 10))
    assert scene.stands()
    os.truncate(scene.ramdisk.layout.data(tag.address), 3)
    assert not scene.stands()


def test_what_is_forgotten_is_walked_again(scene: Scene) -> None:
    assert scene.stands()
    scene.standing.forget(set())
    assert scene.stands()
    assert scene.register.walks == 2
