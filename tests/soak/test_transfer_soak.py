"""Rows that want a transfer to do the same thing very often: real processes, real files."""

import asyncio
import mmap
import os
import random
import statistics
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from checkpoint_replicator.errors import BusyError
from checkpoint_replicator.hashing import verify_shard
from checkpoint_replicator.messages import CopyState, OfferOrder
from checkpoint_replicator.save import Tag
from support.eventually import eventually
from support.transfer_node import TransferNode, nodes

MIB = 1 << 20

pytestmark = pytest.mark.timeout(3600)


def write(path: Path, size: int, chance: random.Random) -> Path:
    with path.open("wb") as file:
        for start in range(0, size, MIB):
            file.write(chance.randbytes(min(MIB, size - start)))
    return path


async def drop(node: TransferNode, tag: Tag) -> None:
    """Take a shard away as soon as nobody reads it any more."""

    def dropped() -> bool:
        try:
            node.ramdisk.drop(tag)
        except BusyError:
            return False
        return True

    await eventually(dropped)
    node.ramdisk.sweep()


async def rewrite_by_descriptor(file: int, size: int, chance: random.Random, going: Callable[[], bool]) -> None:
    """A trainer that kept its file open: neither the rename nor a mode stops it."""
    while going():
        os.pwrite(file, chance.randbytes(64 << 10), chance.randrange(size - (64 << 10)))
        await asyncio.sleep(0)


async def rewrite_by_mmap(file: int, size: int, chance: random.Random, going: Callable[[], bool]) -> None:
    """The same through a mapping, which leaves the modification time as it was on a tmpfs."""
    with mmap.mmap(file, size) as memory:
        while going():
            start = chance.randrange(size - (64 << 10))
            memory[start : start + (64 << 10)] = chance.randbytes(64 << 10)
            await asyncio.sleep(0)


@pytest.mark.parametrize("runs", [2, pytest.param(500, marks=pytest.mark.nightly)])
async def test_s45_what_is_rewritten_while_it_is_sent_is_never_a_torn_copy(tmp_path: Path, runs: int) -> None:
    chance = random.Random(45)
    mutated = 0
    async with nodes(tmp_path, "a", "b") as (a, b):
        for step in range(1, runs + 1):
            source = write(a.root / f"save-{step}", 20 * MIB, chance)
            file = os.open(source, os.O_RDWR)
            try:
                tag = a.add(source, step)
                mutated += await _race(a, b, tag, file, chance, by_mmap=step % 2 == 0)
            finally:
                os.close(file)
            await asyncio.gather(*(drop(node, tag) for node in (a, b)))
            b.ramdisk.discard_partial(tag.address)
    assert mutated > 0


async def _race(a: TransferNode, b: TransferNode, tag: Tag, file: int, chance: random.Random, *, by_mmap: bool) -> bool:
    """Rewrite while it is copied; tells whether that was found out. What has a name must be what its name says."""
    done = False
    rewriter = rewrite_by_mmap if by_mmap else rewrite_by_descriptor
    writing = asyncio.create_task(rewriter(file, tag.size, chance, lambda: not done))
    a.order(offers=(OfferOrder(tag=tag, to=(b.peer,)),))

    def state() -> CopyState | None:
        copies = a.report.copies if a.report is not None else ()
        return next((copy.state for copy in copies if copy.address == tag.address), None)

    try:
        await a.wait(lambda _: state() in {CopyState.STORED, CopyState.MUTATED})
    finally:
        done = True
        await writing
    found = state()
    a.order()
    await a.wait(lambda report: not report.copies)
    if found is CopyState.STORED:
        assert verify_shard(b.data(tag), b.ramdisk.tree(tag.address)).is_none
    else:
        assert not b.data(tag).exists()
        assert not (b.root / f"{tag.name}.meta").exists()
    return found is CopyState.MUTATED


def anonymous(process: psutil.Process) -> int:
    """Bytes of memory that are a process's own: neither files nor a tmpfs' pages."""
    memory = process.memory_full_info()
    return int(memory.rss - memory.shared)


@pytest.mark.parametrize("steps", [10, pytest.param(1000, marks=pytest.mark.nightly)])
async def test_s56_memory_does_not_grow_with_the_steps(tmp_path: Path, steps: int) -> None:
    chance = random.Random(56)
    usage: dict[str, list[int]] = {"a": [], "b": []}
    async with nodes(tmp_path, "a", "b") as (a, b):
        for step in range(1, steps + 1):
            tag = a.add(write(a.root / "save", 8 * MIB, chance), step)
            a.order(offers=(OfferOrder(tag=tag, to=(b.peer,)),))
            await a.copied(tag, b.host)
            for node in (a, b):
                usage[node.host].append(anonymous(node.process))
            a.order()
            await a.wait(lambda report: not report.copies)
            await asyncio.gather(*(drop(node, tag) for node in (a, b)))
    for host, sizes in usage.items():
        assert max(sizes) < 128 * MIB, host
        settled = sizes[len(sizes) // 5 :]
        slope = statistics.linear_regression(range(len(settled)), settled).slope
        print(f"{host}: {slope:.0f} bytes a step, at most {max(sizes) >> 20} MiB")  # noqa: T201 - the figures of the row
        if steps >= 1000:  # fewer say nothing about a slope
            assert slope < 1024, f"{host}: {slope:.0f} bytes a step"


@pytest.mark.parametrize("size", [192 * MIB, pytest.param(4096 * MIB, marks=pytest.mark.nightly)])
async def test_s56_memory_does_not_grow_with_the_size_of_a_file(tmp_path: Path, size: int) -> None:
    most = 0
    async with nodes(tmp_path, "a", "b") as (a, b):
        source = a.root / "save"
        with source.open("wb") as file:
            file.truncate(size)  # a hole of zeros is as long a way for the bytes
            file.write(b"not only zeros")
        tag = a.add(source)
        a.order(offers=(OfferOrder(tag=tag, to=(b.peer,)),))

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, anonymous(a.process), anonymous(b.process))
                await asyncio.sleep(0.05)

        watching = asyncio.create_task(watch())
        await a.copied(tag, b.host, seconds=300)
        watching.cancel()
    assert 0 < most <= 128 * MIB
