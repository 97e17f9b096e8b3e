"""How the demonstration is shown: a live table on a terminal, plain lines elsewhere."""

import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final, Protocol, Self

import click
import msgspec

__all__ = ["Board", "LiveStage", "PlainStage", "Row", "Stage", "rows_text"]

LINES: Final = 12
"""So many of the last lines stand below the live table."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One node as people see it."""

    node: str
    services: str
    trainer: str
    holds: str = ""


class Board(msgspec.Struct, frozen=True, kw_only=True):
    """The whole cluster at one moment."""

    headline: str
    rows: tuple[Row, ...] = ()


class Stage(Protocol):
    """Where the story is told."""

    def tell(self, text: str) -> None:
        """Say what happens next."""
        ...

    def show(self, board: Board) -> None:
        """Show how everything stands now."""
        ...


class PlainStage:
    """One line an event, with the seconds since the start; the table only where it changes the headline."""

    def __init__(self, write: Callable[[str], None] = click.echo, clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._clock = clock
        self._start = clock()
        self._headline = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def tell(self, text: str) -> None:
        """Write a line."""
        self._write(f"[{self._clock() - self._start:5.1f} s] {text}")

    def show(self, board: Board) -> None:
        """Write the headline if it is news."""
        if board.headline != self._headline:
            self._headline = board.headline
            self.tell(board.headline)


class LiveStage:
    """A table that follows the cluster, and the last lines of the story below it; needs rich.

    Args:
        console: a `rich.console.Console`; the default one writes to stdout.
        clock: monotonic seconds.
    """

    def __init__(self, console: Any = None, clock: Callable[[], float] = time.monotonic) -> None:
        from rich.live import Live  # noqa: PLC0415  # an extra; services never need it

        self._live = Live(console=console, refresh_per_second=8, transient=False)
        self._clock = clock
        self._start = clock()
        self._board = Board(headline="starting")
        self._lines: deque[str] = deque(maxlen=LINES)
        self._held = ExitStack()

    def __enter__(self) -> Self:
        self._held.enter_context(self._live)
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def tell(self, text: str) -> None:
        """Add a line below the table."""
        self._lines.append(f"[{self._clock() - self._start:5.1f} s] {text}")
        self._draw()

    def show(self, board: Board) -> None:
        """Show another board."""
        self._board = board
        self._draw()

    def _draw(self) -> None:
        from rich.console import Group  # noqa: PLC0415  # see above
        from rich.table import Table  # noqa: PLC0415  # see above
        from rich.text import Text  # noqa: PLC0415  # see above

        table = Table()
        for heading in rows_text(())[0]:
            table.add_column(heading)
        for cells in rows_text(self._board.rows)[1:]:
            table.add_row(*map(Text, cells))
        self._live.update(Group(Text(self._board.headline, style="bold"), table, *map(Text, self._lines)))


def rows_text(rows: tuple[Row, ...]) -> list[tuple[str, ...]]:
    """Return headings and cells."""
    return [
        ("node", "services", "trainer", "ramdisk holds"),
        *((row.node, row.services, row.trainer, row.holds) for row in rows),
    ]
