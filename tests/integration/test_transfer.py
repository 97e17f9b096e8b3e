"""Real transfer processes on real sockets; the test plays their watchers."""

import os
from pathlib import Path

from checkpoint_replicator.hashing import verify_shard
from checkpoint_replicator.messages import OfferOrder
from support.transfer_node import nodes

MIB = 1 << 20


async def test_a_file_is_replicated_byte_for_byte(tmp_path: Path) -> None:
    async with nodes(tmp_path, "a", "b") as (a, b):
        source = a.root / "own"
        source.write_bytes(os.urandom(10 * MIB + 17))
        tag = a.add(source)
        a.order(offers=(OfferOrder(tag=tag, to=(b.peer,)),))
        await a.copied(tag, b.host)
        assert b.data(tag).read_bytes() == a.data(tag).read_bytes()
        assert (b.root / f"{tag.name}.meta").read_text() == tag.address
        assert verify_shard(b.data(tag), b.ramdisk.tree(tag.address)).is_none
