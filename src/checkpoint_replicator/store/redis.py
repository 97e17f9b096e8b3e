"""The manifest store in Redis (or anything that speaks its protocol and Lua): the one door to `redis`.

Every atomic change is one script of `scripts/`, sent with EVAL: after a restart or a flush nothing has to be loaded
anew. All keys of a script share one slot, so a Redis Cluster can hold them. A call that may be repeated, since its
answer can be lost, has the same effect when it is.
"""

import asyncio
import contextlib
import os
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import cache, wraps
from importlib import resources
from itertools import chain
from typing import Any, Concatenate, Final, ParamSpec, TypeVar
from urllib.parse import urlsplit

import msgspec
import redis.asyncio as aioredis
from redis import exceptions
from redis.asyncio.retry import Retry
from redis.backoff import EqualJitterBackoff, NoBackoff
from redis.exceptions import RedisError, ResponseError

from checkpoint_replicator.errors import ConfigError, NoServerError, ProtocolError, UnreachableError
from checkpoint_replicator.fence import ZERO, Stamp, parse_stamp
from checkpoint_replicator.ids import Host, Incarnation, Job, Rank, StoreId, new_id
from checkpoint_replicator.quote import quote
from checkpoint_replicator.records import Help, HostRecord, Lease, NodeView
from checkpoint_replicator.store import Change, Denial, Renewal, Snapshot
from checkpoint_replicator.store.fields import from_fields, from_json, score_text, to_fields, to_json
from checkpoint_replicator.store.keys import EVENTS_LIMIT, HOSTS, JOBS, STORE, host_key, job_key
from checkpoint_replicator.store.pieces import Piece, calls
from checkpoint_replicator.store.server import server_problems
from checkpoint_replicator.store.view import RawView, parse_view
from checkpoint_replicator.wishes import WishAnswer

__all__ = ["RedisManifestStore"]

Command = tuple[str | bytes, ...]
P = ParamSpec("P")
T = TypeVar("T")

RETRIED: Final = (
    exceptions.ConnectionError,  # also of a server that still loads its data
    exceptions.TimeoutError,
    exceptions.ReadOnlyError,
    exceptions.ClusterDownError,
    exceptions.MasterDownError,
    exceptions.TryAgainError,
)
"""Answered with a new connection, made to the name in the URL anew."""
AGAIN: Final = ("READONLY", "LOADING", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "BUSY")
"""The same by text: out of a script these answers come without their class."""
BATCH: Final = 200
"""Keys read by one pipeline."""
ROUNDS: Final = 10
"""So often a reading is begun again because the data set was replaced meanwhile."""
REMEDY: Final = "delete this key: it is written anew"
BAD_KEY: Final = re.compile(r"BADKEY (.*?)(?: script: [0-9a-f]+, on @.*)?$", re.DOTALL)


@cache
def _script(name: str) -> str:
    folder = resources.files(__package__) / "scripts"
    return (folder / "prelude.lua").read_text() + (folder / f"{name}.lua").read_text()


def _understood(
    method: Callable[Concatenate["RedisManifestStore", P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["RedisManifestStore", P], Coroutine[Any, Any, T]]:
    """Whatever a server answers that is no answer to the question is said as such: anybody may listen on the port."""

    @wraps(method)
    async def ask(self: "RedisManifestStore", /, *arguments: P.args, **options: P.kwargs) -> T:
        try:
            return await method(self, *arguments, **options)
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            what = quote(f"{type(error).__name__}: {error}")
            raise ProtocolError(f"Redis at {self.address} answers {method.__name__} with nonsense ({what})") from error

    return ask


class RedisManifestStore:
    """`ManifestStore` over one Redis.

    Args:
        url: `redis://[user:password@]host[:port][/db]`, `rediss://…` for TLS or `unix://…`.
        deadline: seconds in which a method answers or raises `UnreachableError`, all attempts together.
        attempt: seconds for one attempt to connect, and for one answer.
        retries: attempts after the first, each with a new connection, within the deadline.
        hold: keep the connection between calls. A coordinator does; a node does not, since a thousand idle ones cost
            the server more than a node's few calls.

    Raises:
        ConfigError: the URL is none of Redis.
    """

    def __init__(
        self, url: str, *, deadline: float = 5.0, attempt: float = 1.5, retries: int = 4, hold: bool = False
    ) -> None:
        self._deadline = deadline
        self._hold = hold
        self._busy = 0
        self._caller = new_id()
        self._counts: defaultdict[Job, int] = defaultdict(int)
        self._turns: defaultdict[Job, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._ears: aioredis.client.PubSub | None = None
        self._retry = Retry(EqualJitterBackoff(cap=0.5, base=0.05), retries, supported_errors=RETRIED)
        try:
            parts = urlsplit(url)
            self.address = parts.path if parts.scheme == "unix" else f"{parts.hostname}:{parts.port or 6379}"
            self._client = aioredis.Redis.from_url(
                url,
                protocol=2,
                socket_timeout=attempt,
                socket_connect_timeout=attempt,
                **({} if parts.scheme == "unix" else {"socket_keepalive": True}),
                retry=Retry(NoBackoff(), 0),  # the attempts are counted here, for a whole call
            )
        except ValueError as error:
            raise ConfigError(f"redis: expected redis://host:port/db, found {_harmless(url)!r} ({error})") from error

    # ---- the life of the data set, jobs and hosts

    @_understood
    async def store_id(self) -> StoreId:
        """Return the random id of this data set, setting it if there is none."""
        [found] = await self._send(("GET", STORE))  # a server that is full refuses every SET, also one without effect
        if found is None:
            _, found = await self._send(("SET", STORE, new_id(), "NX"), ("GET", STORE))
        if found is None:
            raise UnreachableError(f"Redis at {self.address}: the data set was flushed meanwhile")
        return StoreId(_text(found, STORE))

    @_understood
    async def time(self) -> float:
        """Return Redis TIME, in seconds since the Unix epoch."""
        [(seconds, micros)] = await self._send(("TIME",))
        return int(seconds) + int(micros) / 1e6

    @_understood
    async def jobs(self) -> frozenset[Job]:
        """Return the names in `ckpt:jobs`."""
        [names] = await self._send(("SMEMBERS", JOBS))
        return frozenset(Job(_name(name)) for name in names)  # one that is none stops no other

    async def add_job(self, job: Job) -> None:
        """Add to `ckpt:jobs` and wake the coordinators; idempotent."""
        await self._send(("SADD", JOBS, job), ("PUBLISH", JOBS, job))

    async def job_added(self, seconds: float) -> bool:
        """Wait until somebody called `add_job`, at most so long; while Redis is away the time is waited out."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        try:
            if self._ears is None:
                self._ears = self._client.pubsub()
                await self._ears.subscribe(JOBS)
            while (left := end - loop.time()) > 0:
                if await self._ears.get_message(ignore_subscribe_messages=True, timeout=left) is not None:
                    return True
        except (RedisError, OSError):
            await self._deafen()
            await asyncio.sleep(max(0.0, end - loop.time()))
        return False

    async def remove_job(self, job: Job) -> None:
        """Take out of `ckpt:jobs` a job that was forgotten."""
        await self._send(("SREM", JOBS, job))

    async def register(self, record: HostRecord) -> None:
        """Write `ckpt:host:<host>`; idempotent."""
        fields = chain.from_iterable(to_fields(record).items())
        register = self._eval("register", [host_key(record.host)], fields)
        await self._send(register, ("SADD", HOSTS, record.host))

    @_understood
    async def unregister(self, host: Host, incarnation: Incarnation) -> None:
        """Remove `ckpt:host:<host>` if that incarnation wrote it."""
        key = host_key(host)
        [removed] = await self._send(self._eval("unregister", [key], [incarnation]))
        if removed:
            _, exists = await self._send(("SREM", HOSTS, host), ("EXISTS", key))
            if exists:  # a newer incarnation registered in between
                await self._send(("SADD", HOSTS, host))

    @_understood
    async def hosts(self) -> Mapping[Host, HostRecord]:
        """Return all registered hosts."""
        [members] = await self._send(("SMEMBERS", HOSTS))
        keys = {Host(name): host_key(Host(name)) for name in sorted(map(_name, members))}
        hashes = await self._hashes([(key, "HGETALL") for key in keys.values()])
        return {host: from_fields(HostRecord, hashes[key], key) for host, key in keys.items() if hashes[key]}

    async def call_help(self, job: Job, cry: Help, ttl: float) -> None:
        """Write `…:help:<host>` for so many seconds."""
        await self._send(("SET", job_key(job, f"help:{cry.host}"), to_json(cry), "PX", _millis(ttl)))

    @_understood
    async def helps(self, job: Job, hosts: Collection[Host]) -> Mapping[Host, Help]:
        """Return which of these hosts call for help."""
        keys = {host: job_key(job, f"help:{host}") for host in sorted(hosts)}
        found: dict[Host, Help] = {}
        for start in range(0, len(keys), BATCH):
            batch = list(keys.items())[start : start + BATCH]
            for (host, key), text in zip(batch, await self._send(*(("GET", key) for _, key in batch)), strict=True):
                if text is not None:
                    found[host] = from_json(Help, _text(text, key), key)
        return found

    # ---- the lease, and writes under it

    @_understood
    async def acquire(self, job: Job, lease: Lease, ttl: float, *, patient: bool = False) -> Lease | Denial:
        """Take the lease if nobody has it: returns it with its token, one above the fence's."""
        fields = msgspec.to_builtins(lease)
        del fields["token"]
        head = f'{to_json(fields)[:-1]},"token":'
        keys = [job_key(job, "lease"), job_key(job, "fence")]
        arguments = [lease.incarnation, _millis(ttl), head, str(int(patient))]
        [answer] = await self._send(self._eval("acquire", keys, arguments))
        text = _text(answer, keys[0])
        return Denial(text) if text in set(Denial) else msgspec.structs.replace(lease, token=int(text))

    @_understood
    async def renew(self, job: Job, lease: Lease, ttl: float) -> Renewal:
        """Prolong the lease if this incarnation and token hold it."""
        keys = [job_key(job, "lease"), job_key(job, "fence")]
        renew = self._eval("renew", keys, [lease.incarnation, str(lease.token), _millis(ttl), to_json(lease)])
        store, (held, *fence) = await self._send(("GET", STORE), renew)
        life = await self.store_id() if store is None else StoreId(_text(store, STORE))
        return Renewal(bool(held), life, _stamp(fence))

    async def release(self, job: Job, lease: Lease) -> None:
        """Give the lease back if this incarnation and token hold it."""
        await self._send(self._eval("release", [job_key(job, "lease")], [lease.incarnation, str(lease.token)]))

    @_understood
    async def apply(
        self, job: Job, lease: Lease, stamp: Stamp, changes: Sequence[Change], after: Stamp = ZERO
    ) -> Stamp | None:
        """Write all changes under this stamp and raise the fence to it; None when written, else the stamp seen."""
        async with self._turns[job]:  # numbered in the order in which they are sent
            for pieces in calls(changes):
                self._counts[job] += 1
                written, *fence = await self._apply(job, lease, (stamp, after), pieces, self._counts[job])
                if not written:
                    return _stamp(fence)
        return None

    async def _apply(
        self, job: Job, lease: Lease, stamps: tuple[Stamp, Stamp], pieces: Sequence[Piece], count: int
    ) -> list[Any]:
        keys = [job_key(job, name) for name in ("lease", "fence", "keys", *(piece.name for piece in pieces))]
        numbers = (lease.token, *(part for one in stamps for part in (one.token, one.epoch, one.number)))
        head = [lease.incarnation, *map(str, numbers), self._caller, str(count), str(EVENTS_LIMIT)]
        elements = chain.from_iterable(piece.arguments for piece in pieces)
        [answer] = await self._send(self._eval("apply", keys, chain(head, elements)))
        return list(answer)

    # ---- reading

    @_understood
    async def snapshot(self, job: Job, *, mixed: bool = False) -> Snapshot:
        """Return all that is known of a job, of one moment; with `mixed` of different ones at the last, if need be."""
        for turn in range(ROUNDS):
            spoilt: dict[str, str] = {}
            before = (await self.store_id(), *await self._index(job, spoilt))
            names = before[2]
            reads = [(job_key(job, name), READS.get(kind, "HGETALL")) for name, kind in names]
            hashes = await self._hashes(reads, spoilt)
            after = (await self.store_id(), *await self._index(job, spoilt))
            if after == before or (mixed and turn == ROUNDS - 1 and after[0] == before[0]):
                full = {name: hashes.get(job_key(job, name)) for name, _ in names}
                kept = {name: fields for name, fields in full.items() if fields}
                wrong = {key.removeprefix(job_key(job, "")): text for key, text in spoilt.items()}
                return Snapshot(before[0], before[1], kept, wrong, mixed=after != before)
        raise UnreachableError(f"Redis at {self.address}: {job} was written {ROUNDS} times while it was read")

    async def _index(self, job: Job, spoilt: dict[str, str]) -> tuple[Stamp, tuple[tuple[str, str], ...]]:
        fence_key, index_key = job_key(job, "fence"), job_key(job, "keys")
        fences = await self._hashes([(fence_key, "HGETALL")])
        index = (await self._hashes([(index_key, "HGETALL")], spoilt)).get(index_key, {})
        fence = from_fields(Stamp, fences[fence_key], fence_key) if fences[fence_key] else ZERO
        return fence, tuple(sorted(index.items()))

    @_understood
    async def view(self, job: Job, host: Host, rank: Rank | None) -> NodeView:
        """Return what a node of this job must obey, read atomically."""
        names = ("lease", "fence", "epoch", "restore:", "keep", "orders")
        keys = [job_key(job, name) for name in names]
        script = self._eval("view", keys, [host, "" if rank is None else f"n{rank}"])
        for _ in range(ROUNDS):  # the store id lies in another slot than the job
            before, answer, after = await self._send(("GET", STORE), script, ("GET", STORE))
            if before == after:
                lease, fence, epoch, decision, plan, keep, orders = answer
                raw = RawView(
                    store=_maybe(before, STORE),
                    lease=_maybe(lease, keys[0]),
                    fence=_pairs(fence, keys[1]),
                    epoch=_pairs(epoch, keys[2]),
                    decision=_maybe(decision, keys[3]),
                    plan=_maybe(plan, keys[3]),
                    keep=_pairs(keep, keys[4]),
                    orders=_maybe(orders, keys[5]),
                )
                return parse_view(raw, job, host, rank)
        raise UnreachableError(f"Redis at {self.address}: the data set was replaced {ROUNDS} times while it was read")

    @_understood
    async def wish_answer(self, job: Job, wish: str) -> WishAnswer | None:
        """Return what became of an order of people, by its id; None: nothing yet."""
        key = job_key(job, "wishes")
        [answer] = await self._send(("HGET", key, wish))
        text = _maybe(answer, key)
        return None if text is None else from_json(WishAnswer, text, key)

    @_understood
    async def check(self) -> tuple[str, ...]:
        """Say what is wrong with the server itself, for people; empty: nothing."""
        [info] = await self._send(("INFO",))
        return server_problems({str(name): str(value) for name, value in info.items()})

    async def close(self) -> None:
        """Let go of all connections."""
        await self._deafen()
        await self._client.aclose()

    # ---- the network

    def _eval(self, name: str, keys: Sequence[str], arguments: Iterable[str]) -> Command:
        return ("EVAL", _script(name), str(len(keys)), *keys, *arguments)

    async def _hashes(
        self, reads: Sequence[tuple[str, str]], spoilt: dict[str, str] | None = None
    ) -> dict[str, dict[str, str]]:
        """Read keys, each with HGETALL or ZRANGE; scores come as shortest text.

        A key of another type is an error, or left out and put into `spoilt` with what is wrong with it.
        """
        found: dict[str, dict[str, str]] = {}
        for start in range(0, len(reads), BATCH):
            batch = reads[start : start + BATCH]
            commands: list[Command] = [
                ("HGETALL", key) if verb == "HGETALL" else (verb, key, "0", "-1", "WITHSCORES") for key, verb in batch
            ]
            for (key, verb), answer in zip(batch, await self._send(*commands, tolerant=True), strict=True):
                if isinstance(answer, ResponseError):
                    if spoilt is None:
                        raise ProtocolError(f"{key}: {answer}")
                    spoilt[key] = f"{key}: {answer}"
                    continue
                pairs = answer.items() if verb == "HGETALL" else zip(answer[::2], answer[1::2], strict=True)
                found[key] = {_text(name, key): _text(value, key) for name, value in pairs}
                if verb == "ZRANGE":
                    found[key] = {member: score_text(float(score)) for member, score in found[key].items()}
        return found

    async def _send(self, *commands: Command, tolerant: bool = False) -> list[Any]:
        """Send the commands and return their answers, within the deadline and with new connections as needed.

        With `tolerant` the answer of a command on a key of another type is that error, and no exception.
        """
        self._busy += 1
        try:
            async with asyncio.timeout(self._deadline):
                with _cancellable():
                    return await self._retry.call_with_retry(
                        lambda: self._once(commands, tolerant=tolerant), self._reconnect
                    )
        except TimeoutError as error:
            raise NoServerError(f"Redis at {self.address}: no answer within {self._deadline:g} s") from error
        except ResponseError as error:
            raise self._refusal(error) from error
        except (RedisError, OSError) as error:
            raise NoServerError(f"Redis at {self.address} does not answer: {_plain(error)}") from error
        except (
            ValueError,
            TypeError,
            AttributeError,
            LookupError,
        ) as error:  # the client takes answers apart unlooked at
            raise UnreachableError(f"Redis at {self.address} answers with nonsense: {quote(str(error))}") from error
        finally:
            self._busy -= 1
            if not self._hold and self._busy == 0:
                await self._reconnect()

    async def _once(self, commands: Sequence[Command], *, tolerant: bool) -> list[Any]:
        async with self._client.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            answers = await pipeline.execute(raise_on_error=False)  # raising would put the whole script into the text
        for command, answer in zip(commands, answers, strict=True):
            if isinstance(answer, ResponseError) and str(answer).startswith(AGAIN):
                raise exceptions.ConnectionError(str(answer)) from answer
            wrong = isinstance(answer, ResponseError) and str(answer).startswith("WRONGTYPE")
            if wrong and not tolerant:
                raise ProtocolError(f"{_text(command[1], STORE)}: {answer}; {REMEDY}")
            if isinstance(answer, Exception) and not wrong:
                raise answer
        return list(answers)

    async def _reconnect(self, _: Exception | None = None) -> None:
        """Drop the idle connections, so that the next attempt looks the name up and connects anew."""
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            await self._client.connection_pool.disconnect(inuse_connections=False)

    def _refusal(self, error: ResponseError) -> Exception:
        """Tell a key that somebody spoilt from a server that cannot serve now."""
        text = str(error)
        if (found := BAD_KEY.search(text)) is not None:
            return ProtocolError(f"{found[1]}; {REMEDY}")
        return UnreachableError(f"Redis at {self.address}: {text}")

    async def _deafen(self) -> None:
        ears, self._ears = self._ears, None
        if ears is not None:
            with contextlib.suppress(RedisError, OSError, TimeoutError):
                await ears.aclose()  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def _cancellable() -> Iterator[None]:
    """Raise a cancellation that got lost inside: redis-py uses `asyncio.wait_for`, which loses some in Python 3.11."""
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    yield
    if task is not None and task.cancelling() > before:
        raise asyncio.CancelledError


READS: Final = {"hash": "HGETALL", "zset": "ZRANGE"}


def _plain(error: Exception) -> str:
    """Say what the system says where it was asked to connect; the client's own text repeats the address."""
    cause = error.__cause__ or error.__context__
    number = cause.errno if isinstance(cause, OSError) else None
    return os.strerror(number) if number else str(error) or type(error).__name__


def _harmless(url: str) -> str:
    """Hide a password."""
    return re.sub(r"//[^/@]*@", "//…@", url)


def _millis(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))


def _stamp(texts: Sequence[bytes]) -> Stamp:
    try:
        return parse_stamp(".".join(text.decode("ascii", "backslashreplace") for text in texts))
    except ValueError as error:
        raise ProtocolError(f"the fence in Redis does not parse: {error}") from error


def _text(value: bytes | str, key: str) -> str:
    try:
        return value if isinstance(value, str) else value.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"{key}: expected UTF-8, found {value[:40]!r}") from error


def _name(value: bytes | str) -> str:
    """Read a member of a set of names; one that is no text is spelled out, and so names nothing of ours."""
    return value if isinstance(value, str) else value.decode(errors="backslashreplace")


def _maybe(value: bytes | None, key: str) -> str | None:
    return None if value is None else _text(value, key)


def _pairs(flat: Sequence[bytes], key: str) -> dict[str, str]:
    return {_text(field, key): _text(value, key) for field, value in zip(flat[::2], flat[1::2], strict=True)}
