"""What the repository consists of, as its own tests see it."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SERVICES = ("watcher", "transfer", "uploader", "coordinator")
ROOTS = {
    "checkpoint_replicator": ROOT / "src/checkpoint_replicator",
    **{f"checkpoint_{name}": ROOT / f"services/{name}/checkpoint_{name}" for name in SERVICES},
}


def tracked() -> list[Path]:
    """Every file that git knows or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout.decode()
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def modules() -> Iterator[tuple[str, Path, Path]]:
    """Yield (module, its file, its unit test file) for every module but `__init__` and `__main__`."""
    for package, folder in ROOTS.items():
        unit = ROOT / "tests/unit"
        if package != "checkpoint_replicator":
            unit /= package.removeprefix("checkpoint_")
        for path in sorted(folder.rglob("*.py")):
            if path.stem.startswith("__"):
                continue
            inner = path.relative_to(folder).with_suffix("")
            yield ".".join((package, *inner.parts)), path, unit / inner.parent / f"test_{inner.name}.py"


def rows(text: str, heading: str) -> list[list[str]]:
    """Return the cells of the first Markdown table below a heading, without its head."""
    below = text.partition(heading)[2]
    table = re.search(r"(?:^\|.*\n)+", below, re.MULTILINE)
    lines = table[0].splitlines()[2:] if table else []
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
