"""What every story of the watcher begins with."""

import pytest

from support.watcher_shell import ModelRamdisk, WatcherShell


@pytest.fixture
def disk() -> ModelRamdisk:
    return ModelRamdisk()


@pytest.fixture
def shell(disk: ModelRamdisk) -> WatcherShell:
    return WatcherShell(disk).start()
