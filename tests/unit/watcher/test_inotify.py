"""inotify says "look again", and how a name arrived."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from checkpoint_replicator.errors import UnreachableError
from checkpoint_watcher.framework import Arrival
from checkpoint_watcher.inotify import Watchman
from support.eventually import eventually


class Listener:
    """A watchman at work."""

    def __init__(self, root: Path) -> None:
        self.woken = 0
        self.watchman = Watchman(root, self.wake)
        self.task = asyncio.create_task(self.watchman.run())
        self.arrivals: dict[str, Arrival] = {}

    def wake(self) -> None:
        self.woken += 1
        self.arrivals |= self.watchman.take()


@pytest.fixture
async def listener(tmp_path: Path) -> AsyncIterator[Listener]:
    (tmp_path / "root").mkdir()
    listener = Listener(tmp_path / "root")
    yield listener
    listener.task.cancel()
    with suppress(asyncio.CancelledError, UnreachableError):
        await listener.task
    listener.watchman.close()


async def test_it_tells_what_was_closed_and_what_was_moved(listener: Listener, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "replicator.yaml").write_text("x")
    (tmp_path / "7").mkdir()
    (tmp_path / "7").rename(root / "7")
    (root / "8").mkdir()
    (root / "j-s1-n0-w0.save.tmp").write_text("x")
    (root / "j-s1-n0-w0.save.tmp").rename(root / "j-s1-n0-w0.save")
    await eventually(lambda: "j-s1-n0-w0.save" in listener.arrivals)
    assert listener.arrivals == {
        "replicator.yaml": Arrival.CLOSED,
        "7": Arrival.MOVED,
        "j-s1-n0-w0.save": Arrival.MOVED,
    }


async def test_foreign_names_and_our_own_wake_nobody(listener: Listener, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "notes.txt").write_text("x")
    (root / f"{'a' * 64}.data").write_text("x")
    (root / "replicator.failed").write_text("x")
    (root / "7").mkdir()
    await eventually(lambda: listener.woken)
    assert listener.woken == 1


async def test_a_directory_that_is_replaced_ends_the_watch(listener: Listener, tmp_path: Path) -> None:
    (tmp_path / "root").rmdir()
    with pytest.raises(UnreachableError, match="removed or replaced"):
        await listener.task
