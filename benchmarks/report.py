"""Rows of measurements: a Markdown table for people, `build/bench.json` for machines."""

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

__all__ = ["PATH", "Row", "merge", "row", "table"]

PATH = Path("build/bench.json")


class Row(msgspec.Struct, frozen=True):
    """One comparison.

    Attributes:
        row: which measurement; one row of that name and case stands in the file.
        case: in which circumstances.
        ours: median seconds of our way.
        reference: median seconds of the other way, measured in turns with ours.
        ratio: ours / reference; below 1 we are faster.
        spread: (slowest - fastest) / median of our runs.
        cpu_s_per_gib: CPU seconds for each GiB of our way.
        rss_mib: largest resident memory of our process.
    """

    row: str
    case: str
    ours: float
    reference: float
    ratio: float
    spread: float
    cpu_s_per_gib: float
    rss_mib: float


def row(name: str, case: str, ours: Sequence[float], reference: Sequence[float], *, cpu: float, rss: float) -> Row:
    """Make a row of runs; `cpu` in seconds a GiB, `rss` in MiB."""
    mine, other = statistics.median(ours), statistics.median(reference)
    spread = (max(ours) - min(ours)) / mine
    return Row(
        name, case, round(mine, 4), round(other, 4), round(mine / other, 2), round(spread, 2), round(cpu, 3), rss
    )


def merge(rows: Iterable[Row], path: Path = PATH) -> None:
    """Put the rows into the file in place of those of the same name and case."""
    old = msgspec.json.decode(path.read_bytes(), type=list[Row]) if path.exists() else []
    new = list(rows)
    replaced = {(entry.row, entry.case) for entry in new}
    kept = [entry for entry in old if (entry.row, entry.case) not in replaced]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([msgspec.to_builtins(entry) for entry in (*kept, *new)], indent=1) + "\n")


def table(rows: Iterable[Row]) -> str:
    """Return the rows as a Markdown table."""
    lines = [
        "| row | case | ours s | reference s | ratio | spread | CPU s/GiB | RSS MiB |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {entry.row} | {entry.case} | {entry.ours:.3f} | {entry.reference:.3f} | {entry.ratio:.2f} "
        f"| {entry.spread:.2f} | {entry.cpu_s_per_gib:.2f} | {entry.rss_mib:.0f} |"
        for entry in rows
    ]
    return "\n".join(lines)
