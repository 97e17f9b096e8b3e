"""Hash a shard from tmpfs with 1, 2 and 4 threads, in turns with a plain loop that reads and hashes the same files.

Each run is a process of its own, so that its memory is its own: `python benchmarks/bench_hashing.py [--mib N]`.
"""

import argparse
import mmap
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from blake3 import blake3
from report import Row, merge, row, table

from checkpoint_replicator.hashing import hash_shard, verify_shard

MIB = 1 << 20
RUNS = 5


def plain(path: Path) -> None:
    """Read every file with a buffer of 1 MiB and hash each as a whole: the least that anybody can do in one thread."""
    buffer = memoryview(mmap.mmap(-1, MIB))  # page-aligned, as ours
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        hasher = blake3()
        with file.open("rb", buffering=0) as source:
            while size := source.readinto(buffer):
                hasher.update(buffer[:size])
        hasher.digest()


def run_one(way: str, path: Path) -> None:
    """Run one way once, and print wall seconds, CPU seconds and largest RSS in MiB."""
    tree = hash_shard(path) if way == "verify" else None
    wall, cpu = time.perf_counter(), time.process_time()
    if way == "plain":
        plain(path)
    elif tree is not None:
        assert verify_shard(path, tree).is_none  # noqa: S101 - a benchmark of wrong results is none
    else:
        hash_shard(path, int(way))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(wall, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def measure(way: str, path: Path) -> tuple[float, float, float]:
    """Run one way once in a process of its own."""
    output = subprocess.run(
        [sys.executable, __file__, "--one", way, os.fspath(path)], check=True, capture_output=True, text=True
    ).stdout
    wall, cpu, rss = (float(word) for word in output.split())
    return wall, cpu, rss


def compare(case: str, path: Path, size: int) -> list[Row]:
    """Measure all ways in turns."""
    ways = ("plain", "1", "2", "4", "verify")
    found: dict[str, list[tuple[float, float, float]]] = {way: [] for way in ways}
    for _ in range(RUNS):
        for way in ways:
            found[way].append(measure(way, path))
    reference = [wall for wall, _, _ in found["plain"]]
    return [
        row(
            "hash",
            f"{case}, {'verify, 4' if way == 'verify' else way} threads",
            [wall for wall, _, _ in found[way]],
            reference,
            cpu=statistics.median(cpu for _, cpu, _ in found[way]) / size * (1 << 30),
            rss=max(rss for _, _, rss in found[way]),
        )
        for way in ways[1:]
    ]


def main() -> None:
    """Measure one large file and many small ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024, help="size of the large file and of all small ones together")
    parser.add_argument("--one", nargs=2, metavar=("WAY", "PATH"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        run_one(arguments.one[0], Path(arguments.one[1]))
        return
    block = blake3(b"seed").digest(length=MIB)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as temporary:
        large, small = Path(temporary) / "large", Path(temporary) / "small"
        small.mkdir()
        with large.open("wb") as file:
            for _ in range(arguments.mib):
                file.write(block)
        rows = compare(f"1 file of {arguments.mib} MiB", large, arguments.mib * MIB)
        large.unlink()
        for number in range(arguments.mib * 16):
            (small / f"{number:06}").write_bytes(block[: 64 << 10])
        rows += compare(f"{arguments.mib * 16} files of 64 KiB", small, arguments.mib * MIB)
    merge(rows)
    print(table(rows))


if __name__ == "__main__":
    main()
