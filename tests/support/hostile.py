"""A stranger who can reach a socket: everything that he may say, and how he says it."""

import asyncio
import random
import socket
import struct
import urllib.error
import urllib.request
from collections.abc import Iterator

import msgpack
import zmq
import zmq.asyncio

from checkpoint_replicator.ids import Address, Host, Incarnation, Job
from checkpoint_replicator.messages import (
    Envelope,
    Leaves,
    Message,
    NotYet,
    Offer,
    Party,
    Refused,
    Run,
    Service,
    Stored,
    TransferOrders,
    UploaderOrders,
    Want,
)
from checkpoint_replicator.records import BackupOrder, Peer
from checkpoint_replicator.tree import HEADER, Directory, File, Tree
from checkpoint_replicator.wire import encode
from support.golden_messages import MESSAGES, TAG

__all__ = ["annoy_http", "frames", "garbage", "shout", "talk_tcp"]

SEEDS = (1, 2, 41233)
"""Of random bytes; a seed that found a fault is kept here."""
STRANGER = Party(host=Host("stranger\n" + "x" * 5000), service=Service.TRANSFER, incarnation=Incarnation("s"))


def nobody(number: int = 0) -> Address:
    """Return an address that nobody has."""
    return Address(f"{number:064x}")


def peer(host: str, control: str) -> Peer:
    """Return a peer that wants its answers somewhere."""
    return Peer(host=Host(host), incarnation=Incarnation("s"), control=control, leaves=(control,))


def garbage() -> Iterator[list[bytes]]:
    """Yield frames that are no message."""
    for seed in SEEDS:
        chance = random.Random(seed)
        for size in (0, 1, 7, 64, 5000):
            yield [chance.randbytes(size) for _ in range(chance.randrange(1, 6))]
            yield [b"ckpt/1 Want", chance.randbytes(size)]
    yield [b"GET / HTTP/1.1\r\n\r\n"]
    yield [b""] * 5000
    yield [b"ckpt/1 Want", b"\x81\xa1x" + b"\x91" * 200_000]
    for atom in (b"\x80", b"\x90", b"\xa0", b"\xc0"):
        yield [b"ckpt/1 NodeReport", b"\x81\xa1x\xdd" + struct.pack(">I", 4 << 20) + atom * (4 << 20)]
    for kind in (b"Want", b"Offer", b"NodeReport", b"TransferReport", b"Beacon", b"UploaderOrders", b"TransferOrders"):
        yield [b"ckpt/1 " + kind, msgpack.packb({"sender": 1, "message": {"type": kind.decode() * 10_000}})]
        yield [b"ckpt/2 " + kind, b""]
        yield [b"ckpt/1 " + kind]


def changed(envelope: Envelope) -> Iterator[list[bytes]]:
    """Yield a message with every field of its header changed in turn."""
    first, header = encode(envelope)
    raw = msgpack.unpackb(header, strict_map_key=False)
    values: tuple[object, ...] = (
        None,
        -1,
        1 << 63,
        1e300,
        float("nan"),
        "x",
        "../x",
        "\0",
        "x" * 100_000,
        [],
        {},
        [[[]]],
        b"\xff",
    )
    for value in values:
        for key in raw:
            yield [first, msgpack.packb(raw | {key: value})]
        for key in raw["message"]:
            yield [first, msgpack.packb(raw | {"message": raw["message"] | {key: value}})]


def trees() -> Iterator[bytes]:
    """Yield texts that no tree may have, and some that one may."""
    digest = bytes(32)
    yield b""
    yield HEADER
    yield HEADER + b"f 5 " + b"00" * 32 + b" ../../etc/passwd\n"
    yield HEADER + b"f 5 " + b"00" * 32 + b" /etc/passwd\n"
    yield HEADER + b"f 5 " + b"00" * 32 + b" a%00b\n"
    yield HEADER + b"f 99999999999999999999 - a\n"
    yield HEADER + b"d a\n" * 1000
    yield HEADER + b"".join(b"d %b\n" % b"/".join([b"a"] * depth) for depth in range(1, 80))
    yield Tree([File(b".", 1 << 19, digest)]).encode()
    yield Tree([Directory(b"new\nline"), File(b"\xff", 0, b"")]).encode()


def messages(endpoint: str) -> Iterator[tuple[Message, list[bytes]]]:
    """Yield messages that parse and mean no good; `endpoint` is one of the victim's own sockets."""
    for message in MESSAGES:
        yield message, []
        yield message, [b"x"] * 7
    everywhere = ["tcp://127.0.0.1:1", endpoint, "ipc:///etc/passwd", "inproc://x", "", "tcp://*:1", "x" * 50_000]
    for number, control in enumerate(everywhere):
        answer = peer("stranger", control)
        yield Want(address=nobody(number), answer_to=answer, tree=True, credit=1 << 50), []
        yield Want(address=nobody(), answer_to=answer, runs=(Run(first=0, count=(1 << 53) - 1),), credit=1), []
        yield Want(address=nobody(), answer_to=answer, runs=(Run(first=0, count=1),) * 10_000, credit=1), []
        for text in trees():
            yield Offer(tags=(TAG,), answer_to=answer, address=TAG.address), [text]
    yield Leaves(address=nobody(), runs=(Run(first=0, count=1),)), [bytes(1 << 20)]
    yield NotYet(address=nobody(), runs=(), gone=True, reason="\0" * 1000), []
    yield Stored(address=TAG.address, tags=(TAG,) * 1000), []
    yield TransferOrders(version=(1 << 53) - 1), []
    order = BackupOrder(id="x" * 10_000, kind="rm -rf /" * 100, name="../../..", document="{" * 10_000)
    yield UploaderOrders(version=(1 << 53) - 1, orders=(order,)), []
    yield (
        UploaderOrders(version=1, orders=tuple(BackupOrder(id=str(n), kind="prune", name="..") for n in range(100))),
        [],
    )


def flood() -> Iterator[Message]:
    """Yield many of a kind, each about something else."""
    for number in range(200):
        yield Want(address=nobody(number), answer_to=peer("stranger", f"tcp://127.0.0.1:{number + 1}"), tree=True)
        yield Refused(address=nobody(number), kind="corrupt" if number % 2 else "x" * 1000, reason="y" * 10_000)


def senders(host: str) -> Iterator[Party]:
    """Yield who the stranger says that he is."""
    yield STRANGER
    for service in Service:
        yield Party(host=Host(host), service=service, incarnation=Incarnation("s"))


def frames(host: str, service: Service, endpoint: str, job: str = "job") -> Iterator[list[bytes]]:
    """Yield everything, for a process of this host and service; the sender never is whom the process listens to."""
    yield from garbage()
    receivers = (Party(host=Host(host), service=service), Party(host=Host("else"), service=Service.WATCHER))
    for sender in senders(host):
        for receiver in receivers:
            for name in (job, "other"):
                for message, body in messages(endpoint):
                    envelope = Envelope(sender=sender, receiver=receiver, job=Job(name), message=message)
                    yield [*encode(envelope), *body]
            if receiver.host != host:
                break
    for message in flood():
        yield encode(Envelope(sender=STRANGER, receiver=receivers[0], job=Job(job), message=message))
    for message in MESSAGES:
        yield from changed(Envelope(sender=STRANGER, receiver=receivers[0], job=Job(job), message=message))


async def shout(endpoint: str, said: Iterator[list[bytes]]) -> int:
    """Send it all to a PULL, and wait until it is taken; returns how many messages it were."""
    count = 0
    with zmq.asyncio.Context() as context, context.socket(zmq.PUSH) as stranger:
        stranger.linger = 5000
        stranger.connect(endpoint)
        for message in said:
            await asyncio.wait_for(stranger.send_multipart(message), 30)
            count += 1
        await asyncio.wait_for(stranger.send_multipart([b"last words"]), 30)
    return count + 1


def talk_tcp(host: str, port: int) -> None:
    """Say to a TCP port what is no greeting of ZeroMQ, in all ways."""
    chance = random.Random(SEEDS[0])
    said = [
        b"",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01" + chance.randbytes(200),
        b"SSH-2.0-x\r\n",
        b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"BOGUS".ljust(20, b"\0") + bytes(32),
        b"\xff"
        + bytes(8)
        + b"\x7f\x03\x00"
        + b"NULL".ljust(20, b"\0")
        + bytes(32)
        + b"\x04\x29"
        + chance.randbytes(41),
        b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32) + b"\x06" + b"\xff" * 8,
        chance.randbytes(100_000),
    ]
    for text in said:
        try:
            with socket.create_connection((host, port), timeout=5) as connection:
                connection.sendall(text)
        except OSError:
            continue


def annoy_http(url: str) -> None:
    """Ask a health port what no browser asks; it must still answer in time afterwards.

    Raises:
        OSError: it does not.
    """
    host, _, port = url.removeprefix("http://").rpartition(":")
    talk_tcp(host, int(port))
    lines = [
        b"GET /" + b"x" * 100_000,
        b"\0" * 100,
        b"GET /healthz HTTP/9.9",
        b"POST /metrics HTTP/1.1",
        b"GET /\xff\xfe",
    ]
    lines += [b"GET /healthz HTTP/1.1\r\n" + b"a: b\r\n" * 5000, b"BREW / HTTP/1.1", b"GET /../../etc/passwd HTTP/1.1"]
    for line in lines:
        try:
            with socket.create_connection((host, int(port)), timeout=5) as connection:
                connection.sendall(line + b"\r\n\r\n")
                connection.recv(100)
        except OSError:
            continue
    slow = [socket.create_connection((host, int(port)), timeout=5) for _ in range(8)]
    try:
        for connection in slow:
            connection.sendall(b"GET /hea")
        with urllib.request.urlopen(f"{url}/metrics", timeout=20) as answer:  # noqa: S310 - our own loopback URL
            assert b"checkpoint_replicator_build" in answer.read()
    finally:
        for connection in slow:
            connection.close()
