"""A real transfer process among strangers: it counts, drops and names what they say, and serves its peers."""

from pathlib import Path

import pytest

from checkpoint_replicator.messages import OfferOrder, Service
from support.hostile import annoy_http, frames, garbage, shout, talk_tcp
from support.transfer_node import nodes

pytestmark = pytest.mark.timeout(180)


async def test_s16_strangers_on_every_socket_of_a_transfer_harm_nobody(tmp_path: Path) -> None:
    async with nodes(tmp_path, "a", "b") as (a, b):
        first = tmp_path / "save-1"
        first.write_bytes(b"one" * 100_000)
        tag = a.add(first)
        a.order(offers=(OfferOrder(tag=tag, to=(b.peer,)),))
        await a.copied(tag, b.host)
        pid = b.process.pid
        before = {path.name for path in b.root.iterdir()}
        local = f"ipc://{b.run}/transfer.sock"
        await shout(b.peer.control, frames("b", Service.TRANSFER, local))
        for endpoint in (b.peer.control, *b.peer.leaves):
            await shout(endpoint, garbage())
            talk_tcp("127.0.0.1", int(endpoint.rpartition(":")[2]))
        orders = (frame for frame in frames("b", Service.TRANSFER, local) if b"TransferOrders" not in frame[0])
        await shout(local, orders)
        annoy_http((b.run / "transfer.health").read_text().strip())
        second = tmp_path / "save-2"
        second.write_bytes(b"two" * 100_000)
        more = a.add(second, step=2)
        a.order(offers=tuple(OfferOrder(tag=one, to=(b.peer,)) for one in (tag, more)))
        await a.copied(more, b.host)
        assert b.process.pid == pid
        assert b.process.memory_info().rss < 1 << 30
        assert await b.metric("checkpoint_replicator_bus_rejected_total") > 200
        assert await b.metric("checkpoint_replicator_transfer_strange_messages_total") > 200
        assert before < {path.name for path in b.root.iterdir()}
        assert b.data(more).read_bytes() == b"two" * 100_000
    lines = b.log.splitlines()
    assert "Traceback" not in b.log
    assert "AssertionError" not in b.log
    assert any("message_rejected" in line for line in lines)
    assert any("message_refused" in line for line in lines)
    assert len(b.log) < 1 << 20
