"""Real transfer processes on real sockets; the test plays their watchers."""

import asyncio
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from checkpoint_replicator.bus.zeromq import ZeroMQBus
from checkpoint_replicator.hashing import verify_shard
from checkpoint_replicator.ids import Address, Incarnation
from checkpoint_replicator.messages import (
    CopyState,
    Envelope,
    FetchOrder,
    FetchState,
    Leaves,
    OfferOrder,
    Party,
    Run,
    Service,
)
from checkpoint_replicator.save import Tag
from support.transfer_node import JOB, TransferNode, nodes

MIB = 1 << 20

SENT_LEAVES = "checkpoint_replicator_transfer_sent_leaves_total"
CORRUPT = "checkpoint_replicator_corrupt_leaves_total"


def write(path: Path, size: int, seed: int = 0) -> Path:
    """Write bytes of which no two MiB are alike."""
    chance = random.Random(seed)
    with path.open("wb") as file:
        while size > 0:
            file.write(chance.randbytes(min(size, MIB)))
            size -= MIB
    return path


def give(node: TransferNode, size: int, seed: int = 0, step: int = 1) -> Tag:
    """Let a node hold a shard of one file."""
    return node.add(write(node.root / f"save-{seed}", size, seed), step)


async def replicate(node: TransferNode, tag: Tag, *to: TransferNode) -> None:
    node.order(offers=(OfferOrder(tag=tag, to=tuple(peer.peer for peer in to)),))
    for peer in to:
        await node.copied(tag, peer.host)


def fetch(node: TransferNode, tag: Tag, *holders: TransferNode) -> None:
    node.order(fetches=(FetchOrder(tags=(tag,), holders=tuple(holder.peer for holder in holders)),))


def is_named(node: TransferNode, tag: Tag) -> bool:
    return (node.root / f"{tag.name}.meta").exists() or node.data(tag).exists()


async def stored_leaves(node: TransferNode, tag: Tag) -> int:
    """Leaves in a node's partial, by its bitmap; 0 when there is none (yet)."""
    bitmap = node.root / ".replicator" / "partial" / tag.address / "bitmap"
    try:
        return sum(byte.bit_count() for byte in await asyncio.to_thread(bitmap.read_bytes))
    except FileNotFoundError:
        return 0


async def reached(node: TransferNode, tag: Tag, leaves: int) -> None:
    """Wait until a node's partial holds so many leaves."""
    async with asyncio.timeout(20):
        while await stored_leaves(node, tag) < leaves:
            await asyncio.sleep(0.002)


async def test_a_file_is_replicated_byte_for_byte(tmp_path: Path) -> None:
    async with nodes(tmp_path, "a", "b") as (a, b):
        tag = give(a, 10 * MIB + 17)
        await replicate(a, tag, b)
        assert b.data(tag).read_bytes() == a.data(tag).read_bytes()
        assert (b.root / f"{tag.name}.meta").read_text() == tag.address
        assert await b.metric("checkpoint_replicator_copies_stored_total") == 1
        assert await b.metric('checkpoint_replicator_transfer_received_bytes_total{source="peer"}') == tag.size
        assert await a.metric("checkpoint_replicator_transfer_sent_bytes_total") == tag.size


async def test_a_directory_of_ten_thousand_files_is_replicated_byte_for_byte(tmp_path: Path) -> None:
    async with nodes(tmp_path, "a", "b") as (a, b):
        source = a.root / "own"
        for number in range(10_000):
            path = source / f"d{number % 97}" / f"f{number}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"%d" % number * (number % 50))
        (source / "empty").mkdir()
        tag = a.add(source)
        await replicate(a, tag, b)
        assert verify_shard(b.data(tag), b.ramdisk.tree(tag.address)).is_none
        assert b.ramdisk.tree(tag.address) == a.ramdisk.tree(tag.address)


async def test_an_empty_directory_and_an_empty_file_are_replicated(tmp_path: Path) -> None:
    async with nodes(tmp_path, "a", "b") as (a, b):
        (a.root / "folder").mkdir()
        (a.root / "file").touch()
        tags = [a.add(a.root / "folder", 1), a.add(a.root / "file", 2)]
        a.order(offers=tuple(OfferOrder(tag=tag, to=(b.peer,)) for tag in tags))
        for tag in tags:
            await a.copied(tag, b.host)
        assert b.data(tags[0]).is_dir()
        assert b.data(tags[1]).read_bytes() == b""


async def test_a_fetch_takes_from_two_holders_and_ends_with_one_when_the_other_is_killed(tmp_path: Path) -> None:
    async with nodes(tmp_path, "a", "b", "c", options=("--window=4MiB",)) as (a, b, c):
        tag = give(a, 64 * MIB)
        await replicate(a, tag, b)
        fetch(c, tag, a, b)
        await reached(c, tag, 16)
        a.kill()
        done = await c.fetched(tag)
        assert c.data(tag).read_bytes() == b.data(tag).read_bytes()
        assert done.by_source == {"peer": tag.size}
        assert await b.metric(SENT_LEAVES) > 0


async def test_both_holders_of_a_fetch_send_leaves(tmp_path: Path) -> None:
    async with nodes(tmp_path, "a", "b", "c") as (a, b, c):
        tag = give(a, 64 * MIB)
        await replicate(a, tag, b)
        before = await a.metric(SENT_LEAVES)
        fetch(c, tag, a, b)
        await c.fetched(tag)
        sent = (await a.metric(SENT_LEAVES) - before, await b.metric(SENT_LEAVES))
        assert min(sent) > 0
        assert sum(sent) == 64


async def test_a_receiver_that_is_killed_goes_on_from_its_bitmap(tmp_path: Path) -> None:
    async with nodes(tmp_path, "a", "b", options=("--window=4MiB",)) as (a, b):
        tag = give(a, 96 * MIB)
        fetch(b, tag, a)
        await reached(b, tag, 32)
        b.kill()
        kept = await stored_leaves(b, tag)
        assert 32 <= kept < 96
        before = await a.metric(SENT_LEAVES)
        await b.start()
        fetch(b, tag, a)
        await b.fetched(tag)
        assert b.data(tag).read_bytes() == a.data(tag).read_bytes()
        assert await a.metric(SENT_LEAVES) - before <= 96 - kept + 4  # what was under way to the dead one


async def test_an_offer_goes_on_when_the_receiver_was_restarted(tmp_path: Path) -> None:
    async with nodes(tmp_path, "a", "b", options=("--window=4MiB",)) as (a, b):
        tag = give(a, 64 * MIB)
        a.order(offers=(OfferOrder(tag=tag, to=(b.peer,)),))
        await reached(b, tag, 16)
        b.kill()
        await b.start()
        await replicate(a, tag, b)
        assert b.data(tag).read_bytes() == a.data(tag).read_bytes()


def flip(node: TransferNode, tag: Tag) -> None:
    """Change one bit of a shard, leaving its size."""
    with node.data(tag).open("r+b") as file:
        file.seek(MIB + 3)
        byte = file.read(1)
        file.seek(MIB + 3)
        file.write(bytes((byte[0] ^ 1,)))


def truncate(node: TransferNode, tag: Tag) -> None:
    os.truncate(node.data(tag), 3 * MIB + 5)


def rewrite(node: TransferNode, tag: Tag) -> None:
    write(node.data(tag), tag.size, seed=99)


@pytest.mark.parametrize("spoil", [flip, truncate, rewrite])
async def test_s05_a_spoiled_holder_is_found_out_and_the_next_source_used(tmp_path: Path, spoil: object) -> None:
    assert callable(spoil)
    async with nodes(tmp_path, "a", "b", "c") as (a, b, c):
        tag = give(a, 16 * MIB)
        await replicate(a, tag, b)
        true = b.data(tag).read_bytes()
        spoil(a, tag)
        fetch(c, tag, a, b)
        await c.fetched(tag)
        assert c.data(tag).read_bytes() == true
        if spoil is not truncate:
            assert await c.metric(f'{CORRUPT}{{source="a"}}') > 0
            assert await c.metric('checkpoint_replicator_corrupt_copies_total{tier="peer"}') == 1
            await a.wait(lambda report: [fault.address for fault in report.corrupt] == [tag.address])


@pytest.mark.parametrize("spoil", [flip, truncate, rewrite])
async def test_s45_a_save_spoiled_after_hashing_is_mutated_and_never_named_elsewhere(
    tmp_path: Path, spoil: object
) -> None:
    assert callable(spoil)
    async with nodes(tmp_path, "a", "b") as (a, b):
        tag = give(a, 16 * MIB)
        spoil(a, tag)
        a.order(offers=(OfferOrder(tag=tag, to=(b.peer,)),))
        await a.copied(tag, b.host, CopyState.MUTATED)
        report = await a.wait(lambda report: bool(report.corrupt))
        assert [(fault.kind, fault.address) for fault in report.corrupt] == [("mutated", tag.address)]
        assert not is_named(b, tag)
        assert await a.metric("checkpoint_replicator_corrupt_shards_total") == 1


async def test_two_swapped_files_are_found_out(tmp_path: Path) -> None:
    async with nodes(tmp_path, "a", "b") as (a, b):
        source = a.root / "own"
        source.mkdir()
        write(source / "one", 2 * MIB, 1)
        write(source / "two", 2 * MIB, 2)
        tag = a.add(source)
        data = a.data(tag)
        (data / "one").rename(data / "three")
        (data / "two").rename(data / "one")
        (data / "three").rename(data / "two")
        fetch(b, tag, a)
        failed = await b.fetched(tag, FetchState.FAILED)
        assert "a: " in failed.reason
        assert not is_named(b, tag)
        assert await b.metric(f'{CORRUPT}{{source="a"}}') > 0
        await a.wait(lambda report: [fault.kind for fault in report.corrupt] == ["corrupt"])


async def test_a_peer_without_room_refuses_before_the_first_byte(tmp_path: Path) -> None:
    async with nodes(tmp_path, "a", "b", options=("--ramdisk-size=64MiB",)) as (a, b):
        write(b.root / "fill", 40 * MIB)
        tag = give(a, 20 * MIB)
        b.order(reserve=8 * MIB)
        a.order(offers=(OfferOrder(tag=tag, to=(b.peer,)),))
        refused = await a.copied(tag, b.host, CopyState.REFUSED)
        assert refused.reason.startswith("no_room: ")
        assert await a.metric(SENT_LEAVES) == 0
        assert await b.metric('checkpoint_replicator_copies_refused_total{kind="no_room"}') > 0
        assert not list((b.root / ".replicator" / "partial").iterdir())
        (b.root / "fill").unlink()
        await a.copied(tag, b.host)


MOUNTED = """
import subprocess, sys
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", sys.argv[1]], check=True)
sys.exit(subprocess.run(sys.argv[2:]).returncode)
"""


def namespaces() -> list[str] | None:
    """The words before a command that give it mounts of its own; None where that is not permitted."""
    for words in (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"]):
        mount = [*words, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
        if subprocess.run(mount, capture_output=True, check=False).returncode == 0:
            return words
    return None


async def test_s50_a_small_tmpfs_refuses_before_the_first_byte(tmp_path: Path) -> None:
    words = await asyncio.to_thread(namespaces)
    if words is None:
        if os.environ.get("CI"):
            pytest.fail("mounts in a namespace are not permitted here, expected them in CI")
        pytest.skip("mounts in a namespace are not permitted here")
    async with nodes(tmp_path, "a") as (a,):
        bus = ZeroMQBus()
        b = TransferNode(bus, tmp_path, "b")
        b.before = (*words, sys.executable, "-c", MOUNTED, str(b.root))
        try:
            await b.start()
            first = give(a, 40 * MIB)
            await replicate(a, first, b)
            sent = await a.metric(SENT_LEAVES)
            second = give(a, 40 * MIB, seed=1, step=2)
            a.order(offers=(OfferOrder(tag=second, to=(b.peer,)),))
            refused = await a.copied(second, b.host, CopyState.REFUSED)
            assert refused.reason.startswith("no_room: ")
            assert await a.metric(SENT_LEAVES) == sent
            small = give(a, 8 * MIB, seed=2, step=3)
            await replicate(a, small, b)
            fetched = a.tag(first.address, first.size)  # the first still stands: it is offered and stored at once
            await replicate(a, fetched, b)
            assert await a.metric(SENT_LEAVES) == sent + 8
        finally:
            b.kill_all()
            await bus.close()


async def test_garbage_from_a_stranger_is_counted_and_dropped(tmp_path: Path) -> None:
    zmq = pytest.importorskip("zmq")
    async with nodes(tmp_path, "a", "b") as (a, b):
        context = zmq.Context()
        stranger = context.socket(zmq.PUSH)
        stranger.linger = 1000
        for endpoint in (b.peer.control, *b.peer.leaves):
            stranger.connect(endpoint)
        for frames in (
            [b"hello"],
            [b"ckpt/1 Want", b"\xc1"],
            [b"ckpt/1 Leaves", os.urandom(1000), os.urandom(MIB)],
            [b"ckpt/9 Want", b""],
            [b"", b"", b""],
        ):
            for _ in range(2):
                stranger.send_multipart(frames)
        bus = ZeroMQBus()
        line = bus.push(b.peer.control)
        async with asyncio.timeout(5):
            while not line.connected:
                await asyncio.sleep(0.01)
        me = Party(host=a.host, service=Service.TRANSFER, incarnation=Incarnation("stranger"))
        for host, incarnation in ((a.host, ""), (b.host, "another")):
            receiver = Party(host=host, service=Service.TRANSFER, incarnation=Incarnation(incarnation))
            message = Leaves(address=Address("0" * 64), runs=(Run(first=0, count=1),))
            line.send(Envelope(sender=me, receiver=receiver, job=JOB, message=message), [b"x"])
        tag = give(a, 4 * MIB)
        await replicate(a, tag, b)
        async with asyncio.timeout(10):
            while await b.metric("checkpoint_replicator_bus_rejected_total") < 10:
                await asyncio.sleep(0.05)
            while await b.metric("checkpoint_replicator_transfer_strange_messages_total") < 2:
                await asyncio.sleep(0.05)
        await asyncio.to_thread(context.destroy)
        await bus.close()


async def test_a_stopped_transfer_ends_with_zero_and_its_partial_stays(tmp_path: Path) -> None:
    async with nodes(tmp_path, "a", "b", options=("--window=4MiB",)) as (a, b):
        tag = give(a, 64 * MIB)
        fetch(b, tag, a)
        await reached(b, tag, 8)
        assert await asyncio.to_thread(b.stop) == 0
        assert await stored_leaves(b, tag) >= 8


async def test_a_second_transfer_on_a_ramdisk_waits_for_the_first(tmp_path: Path) -> None:
    async with nodes(tmp_path, "a") as (a,):
        bus = ZeroMQBus()
        second = TransferNode(bus, tmp_path, "a")
        second.run = tmp_path / "second.run"
        try:
            starting = asyncio.create_task(second.start())
            async with asyncio.timeout(10):
                while "is held by transfer" not in second.log:
                    await asyncio.sleep(0.05)
            a.kill()
            await starting
            assert second.peer.incarnation != a.peer.incarnation
        finally:
            second.kill()
            await bus.close()
