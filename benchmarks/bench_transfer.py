"""Replicate a shard between two nodes' real transfers over loopback, from tmpfs to tmpfs, in turns with references.

The references are:

- `cp` of the same file (no network, no check);
- a plain Python socket loop between two processes (`readinto`, `sendall`, `recv_into`, `pwrite`; no check);
- BLAKE3 with 4 threads, then `shutil.copy`, in one process (no network, no check of what arrived).

Ours counts both transfer processes: every leaf is verified against the tree where it arrives, and the shard is named
before the clock stops. One case hashes the save first, as a node does. Then a shard of 4 GiB passes, and no process may
have more than 128 MiB of memory of its own.
"""

import argparse
import asyncio
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Self

from blake3 import blake3
from report import Row, merge, row, table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from checkpoint_replicator.hashing import hash_shard
from checkpoint_replicator.messages import OfferOrder
from checkpoint_replicator.save import Tag
from support.transfer_node import TransferNode, nodes

MIB = 1 << 20
GIB = 1 << 30
MOST_MIB = 128
"""Memory of its own that a transfer may have, whatever the shard's size."""
SECONDS = 600.0


class Run(NamedTuple):
    """Wall and CPU seconds of one run, and the largest memory of one process beyond what it shares, in MiB."""

    wall: float
    cpu: float
    rss: float = 0.0


# ---- references, each in processes of its own


def send(path: Path, port: int) -> None:
    """Read a file and send it; wait until the other end has written all."""
    view = memoryview(bytearray(MIB))
    with socket.create_connection(("127.0.0.1", port)) as peer, path.open("rb", buffering=0) as file:
        while size := file.readinto(view):
            peer.sendall(view[:size])
        peer.shutdown(socket.SHUT_WR)
        peer.recv(1)


def receive(path: Path, listener: socket.socket) -> None:
    """Write what comes into a new file."""
    view = memoryview(bytearray(MIB))
    peer, _ = listener.accept()
    with peer, path.open("wb", buffering=0) as file:
        offset = 0
        while size := peer.recv_into(view):
            os.pwrite(file.fileno(), view[:size], offset)
            offset += size
        peer.sendall(b"!")


def hash_and_copy(source: Path, target: Path) -> None:
    """Hash a file with 4 threads, then copy it."""
    blake3(max_threads=4).update_mmap(source).digest()
    shutil.copy(source, target)


def worker(words: list[str]) -> None:
    """Run one side of a reference; print wall and CPU seconds and the largest RSS."""
    way, source, target = words[0], Path(words[1]), Path(words[2])
    listener = socket.create_server(("127.0.0.1", 0)) if way == "receive" else None
    if listener is not None:
        print(listener.getsockname()[1], flush=True)
    wall, cpu = time.perf_counter(), time.process_time()
    if listener is not None:
        receive(target, listener)
    elif way == "send":
        send(source, int(words[2]))
    else:
        hash_and_copy(source, target)
    print(time.perf_counter() - wall, time.process_time() - cpu)


def start(*words: object) -> subprocess.Popen[str]:
    """Start a worker."""
    command = [sys.executable, __file__, "--worker", *(str(word) for word in words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def result(process: subprocess.Popen[str]) -> Run:
    """Return what a worker printed last."""
    output, _ = process.communicate(timeout=SECONDS)
    if process.returncode != 0:
        raise SystemExit(f"a reference failed: {process.args!r}")
    wall, cpu = (float(word) for word in output.split()[-2:])
    return Run(wall, cpu)


def copy(source: Path, target: Path) -> Run:
    """Run `cp`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall = time.perf_counter()
    subprocess.run(["cp", source, target], check=True)
    wall = time.perf_counter() - wall
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Run(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def loop(source: Path, target: Path) -> Run:
    """Run the socket loop."""
    receiver = start("receive", source, target)
    assert receiver.stdout is not None  # noqa: S101 - it is a pipe
    port = int(receiver.stdout.readline())
    sent = result(start("send", source, port))
    return Run(sent.wall, sent.cpu + result(receiver).cpu)


def hashed(source: Path, target: Path) -> Run:
    """Run BLAKE3, then the copy."""
    return result(start("hash-and-copy", source, target))


REFERENCES: dict[str, Callable[[Path, Path], Run]] = {
    "cp": copy,
    "a socket loop": loop,
    "BLAKE3 with 4 threads, then shutil.copy": hashed,
}


# ---- ours


class Memory:
    """Looks at the memory that processes do not share, every 10 ms, while the block runs."""

    def __init__(self, *members: TransferNode) -> None:
        self._statm = [Path(f"/proc/{node.process.pid}/statm") for node in members]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.most = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.01):
            for statm in self._statm:
                _, resident, shared, *_ = (int(word) for word in statm.read_text().split())
                self.most = max(self.most, (resident - shared) * resource.getpagesize() / MIB)


def cpu_of(*members: TransferNode) -> float:
    """CPU seconds that the transfers have used so far."""
    return sum(sum(node.process.cpu_times()[:2]) for node in members)


async def replicate(a: TransferNode, b: TransferNode, tag: Tag, *, hash_first: bool) -> Run:
    """Replicate a shard that the peer does not have; optionally hash it first, as a watcher does with a new save."""
    with Memory(a, b) as memory:
        cpu, wall, own = cpu_of(a, b), time.perf_counter(), time.process_time()
        if hash_first:
            await asyncio.to_thread(hash_shard, a.data(tag), 4)
        own = time.process_time() - own
        a.order(offers=(OfferOrder(tag=tag, to=(b.peer,)),))
        await a.copied(tag, b.host, seconds=SECONDS)
        wall, cpu = time.perf_counter() - wall, cpu_of(a, b) - cpu
    a.order()
    await a.wait(lambda report: not report.copies)
    await drop(b, tag)
    return Run(wall, cpu + (own if hash_first else 0.0), memory.most)


async def drop(node: TransferNode, tag: Tag) -> None:
    """Take the copy away again, as soon as its transfer has closed it."""
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                node.ramdisk.drop(tag)
            except OSError:
                raise
            except Exception:  # noqa: BLE001 - it is being read for a moment longer
                await asyncio.sleep(0.01)
            else:
                break
    node.ramdisk.sweep()


def fill(path: Path, size: int) -> Path:
    """Write a file of which no two MiB are alike."""
    block = memoryview(bytearray(blake3(b"seed").digest(length=MIB)))
    with path.open("wb", buffering=0) as file:
        for number in range(size // MIB):
            block[:8] = number.to_bytes(8, "big")
            file.write(block)
    return path


async def speed(root: Path, size: int, rounds: int) -> list[Row]:
    """Measure all ways in turns."""
    ours: dict[bool, list[Run]] = {False: [], True: []}
    others: dict[str, list[Run]] = {name: [] for name in REFERENCES}
    async with nodes(root, "a", "b") as (a, b):
        tag = a.add(fill(root / "save", size))
        target = root / "target"
        for number in range(rounds + 1):
            for hash_first in (False, True):
                run = await replicate(a, b, tag, hash_first=hash_first)
                ours[hash_first] += [run] if number else []  # the first round warms up
            for name, measure in REFERENCES.items():
                run = await asyncio.to_thread(measure, a.data(tag), target)
                target.unlink()
                others[name] += [run] if number else []
    rows = []
    for hash_first, name in (
        (False, "cp"),
        (False, "a socket loop"),
        *((first, list(REFERENCES)[2]) for first in ours),
    ):
        mine = ours[hash_first]
        case = f"{size // MIB} MiB{', hashed first' if hash_first else ''}, against {name}"
        walls, reference = [run.wall for run in mine], [run.wall for run in others[name]]
        cpu = statistics.median(run.cpu for run in mine) * GIB / size
        rows.append(row("replicate", case, walls, reference, cpu=cpu, rss=round(max(run.rss for run in mine), 1)))
    for name, runs in others.items():
        cpu = statistics.median(run.cpu for run in runs) * GIB / size
        print(f"{name}: {statistics.median(run.wall for run in runs):.3f} s, {cpu:.2f} CPU s/GiB")
    return rows


async def memory(root: Path, size: int) -> Row:
    """Let a large shard pass."""
    async with nodes(root, "a", "b") as (a, b):
        tag = a.add(fill(root / "save", size))
        run = await replicate(a, b, tag, hash_first=False)
    case = f"{size // MIB} MiB, MiB of memory beyond what is shared, against the bound"
    return row("memory", case, [run.rss], [MOST_MIB], cpu=run.cpu * GIB / size, rss=round(run.rss, 1))


def main() -> None:
    """Measure speed, then memory; fail when a process has too much memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024, help="size of the shard whose replication is timed")
    parser.add_argument("--large-mib", type=int, default=4096, help="size of the shard for the memory case")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", nargs=3, metavar=("WAY", "SOURCE", "TARGET"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.worker)
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as temporary:
        root = Path(temporary)
        (root / "speed").mkdir()
        rows = asyncio.run(speed(root / "speed", arguments.mib * MIB, arguments.rounds))
        shutil.rmtree(root / "speed")
        (root / "memory").mkdir()
        large = asyncio.run(memory(root / "memory", arguments.large_mib * MIB))
    rows.append(large)
    merge(rows)
    print(table(rows))
    if large.rss_mib > MOST_MIB:
        raise SystemExit(f"a transfer had {large.rss_mib:.0f} MiB of memory of its own, expected at most {MOST_MIB}")


if __name__ == "__main__":
    main()
