"""How a command orders something: a wish to the coordinator that the lease names, its answer out of Redis.

Only the coordinator writes a job's keys, so a command writes nothing: it says its wish again and again, to whoever
holds the lease then, until `…:wishes` answers it or the deadline passes. A wish that was not answered by then is not
taken up any more.
"""

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Final

import click
import msgspec

from checkpoint_replicator.bus import Bus, Sender
from checkpoint_replicator.bus.zeromq import ZeroMQBus
from checkpoint_replicator.cli.option import Function, Seconds, job_option, known_job, redis_option
from checkpoint_replicator.errors import ProtocolError, RefusedError, UnreachableError
from checkpoint_replicator.ids import Host, Incarnation, Job, new_id
from checkpoint_replicator.messages import Envelope, Party, Service, Wish
from checkpoint_replicator.records import Lease
from checkpoint_replicator.save import Save, parse_save
from checkpoint_replicator.store import ManifestStore
from checkpoint_replicator.store.redis import RedisManifestStore
from checkpoint_replicator.wishes import WishAnswer, WishKind, WishState

__all__ = ["order", "order_options", "read_save", "run_order"]

PERIOD: Final = 0.2
"""Seconds between two looks at Redis, and between two sendings."""
GRACE: Final = 2.0
"""Seconds before the command's own deadline from which on the wish is not taken up any more."""
LINGER: Final = 0.2


def order_options(command: Function) -> Function:
    """Give a command the options that every order has."""
    timeout = click.option(
        "--timeout",
        type=Seconds(min=5, max=3600),
        default=30.0,
        show_default=True,
        metavar="SECONDS",
        help="After so long an order that was not taken up is given up.",
    )
    return job_option(redis_option(timeout(command)))


def read_save(text: str) -> Save:
    """Read `EPOCH.STEP`, as `status` shows saves.

    Raises:
        click.UsageError: it is something else.
    """
    try:
        return parse_save(text)
    except ValueError as error:
        raise click.UsageError(f"--save: expected EPOCH.STEP as `status` shows it, found {text!r}") from error


def run_order(redis: str, job: str, timeout: float, wish: Wish) -> str:
    """Order it and print how far it is; returns what became of it.

    Raises:
        UnknownJobError: no such job.
        NoJobError: Redis knows no job at all.
        RefusedError: the coordinator said no.
        UnreachableError: Redis or the coordinator did not answer by the deadline.
    """
    return asyncio.run(_run(redis, job, timeout, wish))


async def _run(redis: str, job: str, seconds: float, wish: Wish) -> str:
    store = RedisManifestStore(redis)
    bus = ZeroMQBus(linger=LINGER)
    try:
        return await order(store, bus, job, wish, seconds=seconds, tell=lambda text: click.echo(text, err=True))
    finally:
        await bus.close()
        await store.close()


async def order(
    store: ManifestStore, bus: Bus, name: str, wish: Wish, *, seconds: float, tell: Callable[[str], None]
) -> str:
    """Say a wish until it is answered; its id and deadline are filled in here.

    Args:
        store: Redis.
        bus: carries the wish.
        name: of the job whose coordinator is to do it.
        wish: what.
        seconds: the deadline.
        tell: gets every change of what is waited for.

    Raises:
        UnknownJobError: no such job.
        NoJobError: Redis knows no job at all.
        RefusedError: the coordinator said no.
        UnreachableError: Redis or the coordinator did not answer by the deadline.
    """
    job = await known_job(store, name)
    store_id = await store.store_id()
    begun = time.monotonic()
    until = await store.time() + seconds - GRACE
    voice = _Voice(bus, job, msgspec.structs.replace(wish, id=new_id(), until=until))
    told, answer = "", None
    while time.monotonic() < begun + seconds:
        try:
            lease = (await store.view(job, Host(""), None)).lease
            found = await _answer(store, job, voice.wish.id)
            # A job with little to remove goes between two looks, and the answer with it: then only its name tells.
            gone = wish.kind == WishKind.FORGET and found is None
            gone = gone and (answer is not None or job not in await store.jobs())
            if gone and await store.store_id() == store_id:
                return f"job {job} is forgotten: its keys are gone from Redis, and all that its hosts had of it"
        except UnreachableError as error:  # what was said may be taken up all the same
            news = str(error)
        else:
            answer = found or answer
            if answer is not None and answer.state is not WishState.TAKEN:
                break
            if answer is None:
                voice.say(lease)
            news = answer.reason if answer is not None else voice.trouble(lease)
        if news != told:
            told = news
            tell(news)
        await asyncio.sleep(PERIOD)
    return _outcome(answer, told, seconds)


def _outcome(answer: WishAnswer | None, told: str, seconds: float) -> str:
    if answer is None:
        raise UnreachableError(f"nothing was ordered: not taken up within {seconds:g} s; {told}")
    if answer.state is WishState.REFUSED:
        raise RefusedError(answer.reason)
    if answer.state is WishState.TAKEN:
        raise UnreachableError(f"it is in force, and its effect was not seen within {seconds:g} s: {answer.reason}")
    return answer.reason


async def _answer(store: ManifestStore, job: Job, ident: str) -> WishAnswer | None:
    try:
        return await store.wish_answer(job, ident)
    except ProtocolError as error:
        raise UnreachableError(str(error)) from error


class _Voice:
    """Says one wish to whoever holds the lease."""

    def __init__(self, bus: Bus, job: Job, wish: Wish) -> None:
        self.wish = wish
        self._bus = bus
        self._job = job
        self._me = Party(host=Host(socket.gethostname()), service=Service.OPERATOR, incarnation=Incarnation(new_id()))
        self._lease: Lease | None = None
        self._sender: Sender | None = None

    def say(self, lease: Lease | None) -> None:
        """Send it, where there is somebody to send it to."""
        if lease is None:
            return
        if self._lease is None or (lease.reports, lease.incarnation) != (self._lease.reports, self._lease.incarnation):
            if self._sender is not None:
                self._sender.close()
            self._lease, self._sender = lease, self._bus.push(lease.reports)
        if self._sender is not None:
            to = Party(host=lease.host, service=Service.COORDINATOR, incarnation=lease.incarnation)
            self._sender.send(Envelope(sender=self._me, receiver=to, job=self._job, message=self.wish))

    def trouble(self, lease: Lease | None) -> str:
        """Say who is waited for."""
        if lease is None:
            return "no coordinator holds the job's lease: start one, or wait 10 s if one has just ended"
        if self._sender is not None and not self._sender.connected:
            return f"connecting to the coordinator on {lease.host} at {lease.reports}"
        return f"waiting for the coordinator on {lease.host} at {lease.reports}"
