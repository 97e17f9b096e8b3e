"""Which crashes and sequences run, and the one cluster that they share."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from crash.points import CHOSEN, REACHABLE, choose, commit
from crash.report import Report
from crash.scene import Scene, open_scene
from crash.sequences import SEQUENCES
from support.house import ROOT

WISHES = pytest.StashKey[tuple[str, ...]]()


def chosen(config: pytest.Config) -> tuple[str, ...]:
    """Return the names of what is to run."""
    if WISHES not in config.stash:
        names = (*REACHABLE, *SEQUENCES)
        part = config.getoption("--crash")
        if part:
            names = tuple(name for name in names if part in name)
        elif not config.getoption("--all-crashes"):
            names = tuple(choose(names, commit()))
        config.stash[WISHES] = names
    return config.stash[WISHES]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for fixture, names in (("crash_point", REACHABLE), ("sequence", tuple(SEQUENCES))):
        if fixture in metafunc.fixturenames:
            wanted = set(chosen(metafunc.config))
            metafunc.parametrize(fixture, [name for name in names if name in wanted])


def pytest_report_header(config: pytest.Config) -> str | None:
    names = chosen(config)
    if len(names) != CHOSEN:
        return f"crashes: {len(names)} chosen"
    return f"crashes: {CHOSEN} chosen by commit {commit():.12}: {', '.join(names)}"


@pytest.fixture(scope="session")
def report() -> Report:
    """One for the run."""
    return Report(commit(), ROOT / "build")


class Theatre:
    """The scene at hand; one that a failure spoiled is closed and a new one opened."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._scene: Scene | None = None
        self.census: set[str] = set()

    async def enter(self) -> Scene:
        """Return a scene at rest with one committed save."""
        if self._scene is not None and self._scene.spoiled:
            await self.close()
        if self._scene is None:
            self._scene = await self._stack.enter_async_context(open_scene())
            await self._scene.begin()
        return self._scene

    async def close(self) -> None:
        """End the scene."""
        if self._scene is not None:
            self.census.update(self._scene.census())
            self._scene = None
        await self._stack.aclose()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def theatre() -> AsyncIterator[Theatre]:
    """One for the run."""
    theatre = Theatre(AsyncExitStack())
    yield theatre
    await theatre.close()


@pytest_asyncio.fixture(loop_scope="session")
async def scene(theatre: Theatre) -> Scene:
    """A cluster at rest."""
    return await theatre.enter()


@pytest.fixture
def census(theatre: Theatre) -> set[str]:
    """Every place that was passed so far."""
    return theatre.census.union(theatre._scene.census() if theatre._scene is not None else ())
