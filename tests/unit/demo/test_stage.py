import io
from collections.abc import Iterator

import pytest
from rich.console import Console

from checkpoint_replicator.demo.stage import Board, LiveStage, PlainStage, Row, rows_text

BOARD = Board(
    headline="step 3 committed", rows=(Row(node="node-0", services="3 ready", trainer="saved step 3", holds="a"),)
)


@pytest.fixture
def clock() -> Iterator[float]:
    return iter([10.0, 11.25, 12.5, 13.75])


def test_a_plain_stage_writes_a_line_with_seconds_and_each_headline_once(clock: Iterator[float]) -> None:
    lines: list[str] = []
    with PlainStage(lines.append, lambda: next(clock)) as stage:
        stage.tell("it starts")
        stage.show(BOARD)
        stage.show(BOARD)
    assert lines == ["[  1.2 s] it starts", "[  2.5 s] step 3 committed"]


def test_a_live_stage_shows_the_table_with_the_last_lines_below() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with LiveStage(console, lambda: 0.0) as stage:
        for number in range(20):
            stage.tell(f"event {number}")
        stage.show(BOARD)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    for text in ("step 3 committed", "ramdisk holds", "node-0", "3 ready", "event 19"):
        assert text in shown


def test_rows_have_a_heading_each() -> None:
    headings, *cells = rows_text(BOARD.rows)
    assert headings == ("node", "services", "trainer", "ramdisk holds")
    assert cells == [("node-0", "3 ready", "saved step 3", "a")]
