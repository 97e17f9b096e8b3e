"""A model of Redis as the services use it: a synchronous core for the simulation, and the async port over it."""

import asyncio
import copy
import itertools
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from checkpoint_replicator.errors import ProtocolError, UnreachableError
from checkpoint_replicator.fence import ZERO, Stamp
from checkpoint_replicator.ids import Host, Incarnation, Job, Rank, StoreId
from checkpoint_replicator.records import Help, HostRecord, Lease, NodeView
from checkpoint_replicator.store import AddEvent, Change, Delete, Denial, Renewal, SetHash, SetScores, Snapshot
from checkpoint_replicator.store.fields import from_fields, from_json, score_text, to_fields, to_json
from checkpoint_replicator.store.keys import EVENTS_LIMIT, HOSTS, JOBS, STORE, host_key, job_key
from checkpoint_replicator.store.view import RawView, parse_view
from checkpoint_replicator.wishes import WishAnswer

Value = str | dict[str, str] | dict[str, float] | set[str] | list[dict[str, str]]


class StoreModel:
    """The whole data set; every method is one atomic step.

    Args:
        clock: wall seconds, for `time()` and the TTL of leases.
        ids: makes the ids of store lives; counted by default, so a run can be repeated.
    """

    def __init__(self, clock: Callable[[], float], ids: Callable[[], str] | None = None) -> None:
        numbers = itertools.count(1)
        self._clock = clock
        self._ids = ids or (lambda: f"store-{next(numbers):04d}")
        self.down: str | None = None
        """While a text stands here every call fails with it, as when Redis is away."""
        self.problems: tuple[str, ...] = ()
        """What `check` says."""
        self.listeners: list[Callable[[Job], None]] = []
        """Called by `add_job`."""
        self._strings: dict[str, str] = {}
        self._hashes: dict[str, dict[str, str]] = {}
        self._scores: dict[str, dict[str, float]] = {}
        self._sets: dict[str, set[str]] = {}
        self._streams: dict[str, list[dict[str, str]]] = {}
        self._expires: dict[str, float] = {}

    # ---- faults

    def flush(self) -> None:
        """Forget everything, as FLUSHALL or a restart without persistence does."""
        for part in (self._strings, self._hashes, self._scores, self._sets, self._streams, self._expires):
            part.clear()

    def backup(self) -> Callable[[], None]:
        """Take a snapshot of the data set; what is returned brings it back, as a restart from an old one does."""
        kept = copy.deepcopy({name: part for name, part in vars(self).items() if isinstance(part, dict)})

        def restore() -> None:
            vars(self).update(copy.deepcopy(kept))

        return restore

    def put(self, key: str, value: Value, ttl: float | None = None) -> None:
        """Write a key by hand, past every rule."""
        self._drop(key)
        match value:
            case str():
                self._strings[key] = value
                if ttl is not None:
                    self._expires[key] = self._clock() + ttl
            case set():
                self._sets[key] = value
            case list():
                self._streams[key] = value
            case _ if any(isinstance(score, float) for score in value.values()):
                self._scores[key] = {member: float(score) for member, score in value.items()}
            case _:
                self._hashes[key] = {field: str(text) for field, text in value.items()}

    def contents(self) -> dict[str, Value]:
        """Return every key with a copy of its value: text, hash, scores, set or list of stream entries."""
        self._expire()
        found: dict[str, Value] = {}
        for part in self._parts():
            found.update({key: value if isinstance(value, str) else value.copy() for key, value in part.items()})
        return found

    def ttl(self, key: str) -> float | None:
        """Return the seconds that a key has left, None where it stays."""
        return self._expires[key] - self._clock() if key in self._expires else None

    # ---- the questions, in the words of ManifestStore

    def store_id(self) -> StoreId:
        self._reach()
        if self._string(STORE) is None:
            self._strings[STORE] = self._ids()
        return StoreId(self._strings[STORE])

    def time(self) -> float:
        self._reach()
        return self._clock()

    def jobs(self) -> frozenset[Job]:
        self._reach()
        return frozenset(Job(name) for name in self._set(JOBS))

    def add_job(self, job: Job) -> None:
        self._reach()
        self._sets[JOBS] = self._set(JOBS) | {job}
        for listener in tuple(self.listeners):
            listener(job)

    def remove_job(self, job: Job) -> None:
        self._reach()
        listed = self._sets.get(JOBS, set()) - {job}
        self.put(JOBS, listed) if listed else self._drop(JOBS)

    def register(self, record: HostRecord) -> None:
        self._reach()
        self._hashes[host_key(record.host)] = to_fields(record)
        self._sets[HOSTS] = self._set(HOSTS) | {record.host}

    def unregister(self, host: Host, incarnation: Incarnation) -> None:
        self._reach()
        if self._hashes.get(host_key(host), {}).get("incarnation") == incarnation:
            del self._hashes[host_key(host)]
            listed = self._sets.get(HOSTS, set()) - {host}
            self.put(HOSTS, listed) if listed else self._drop(HOSTS)

    def hosts(self) -> Mapping[Host, HostRecord]:
        self._reach()
        keys = {Host(name): host_key(Host(name)) for name in sorted(self._set(HOSTS))}
        return {host: from_fields(HostRecord, self._hash(key), key) for host, key in keys.items() if self._hash(key)}

    def acquire(self, job: Job, lease: Lease, ttl: float, *, patient: bool = False) -> Lease | Denial:
        self._reach()
        found = self._fence(job)
        if patient and found is None:
            return Denial.EMPTY
        fence = found or ZERO
        token = fence.token + 1
        key = job_key(job, "lease")
        left = self.ttl(key)
        if (held := self._strings.get(key)) is not None and left is not None and left <= 10 * ttl:
            if not _names(held, lease.incarnation, None):
                return Denial.HELD
            token = int(json.loads(held)["token"])
        taken = msgspec.structs.replace(lease, token=token)
        self._raise(job, Stamp(max(token, fence.token), fence.epoch, fence.number))
        self.put(job_key(job, "lease"), to_json(taken), ttl)
        return taken

    def call_help(self, job: Job, cry: Help, ttl: float) -> None:
        self._reach()
        self.put(job_key(job, f"help:{cry.host}"), to_json(cry), ttl)

    def helps(self, job: Job, hosts: Collection[Host]) -> Mapping[Host, Help]:
        self._reach()
        keys = {host: job_key(job, f"help:{host}") for host in sorted(hosts)}
        texts = {host: (key, self._string(key)) for host, key in keys.items()}
        return {host: from_json(Help, text, key) for host, (key, text) in texts.items() if text is not None}

    def renew(self, job: Job, lease: Lease, ttl: float) -> Renewal:
        store = self.store_id()
        held = self._owned(job, lease)
        if held:
            self.put(job_key(job, "lease"), to_json(lease), ttl)
        return Renewal(held, store, self._fence(job) or ZERO)

    def release(self, job: Job, lease: Lease) -> None:
        self._reach()
        if self._owned(job, lease):
            self._drop(job_key(job, "lease"))

    def apply(
        self, job: Job, lease: Lease, stamp: Stamp, changes: Sequence[Change], after: Stamp = ZERO
    ) -> Stamp | None:
        self._reach()
        seen = self._fence(job) or ZERO
        if not self._owned(job, lease) or not after <= seen <= stamp:
            return seen
        self._raise(job, stamp)
        for change in changes:
            self._write(job, change)
        return None

    def snapshot(self, job: Job) -> Snapshot:
        store = self.store_id()
        hashes: dict[str, dict[str, str]] = {}
        spoilt: dict[str, str] = {}
        index = job_key(job, "keys")
        if self._is_other(index, self._hashes):
            spoilt["keys"] = f"{index}: expected a hash"
        for name in sorted(self._hashes.get(index, {})):
            key = job_key(job, name)
            if key in self._hashes:
                hashes[name] = dict(self._hashes[key])
            elif key in self._scores:
                hashes[name] = {member: score_text(float(score)) for member, score in self._scores[key].items()}
            elif key in self._strings or key in self._sets or key in self._streams:
                spoilt[name] = f"{key}: expected a hash or a sorted set"
        return Snapshot(store, self._fence(job) or ZERO, hashes, spoilt)

    def view(self, job: Job, host: Host, rank: Rank | None) -> NodeView:
        self._reach()
        epoch = self._hash(job_key(job, "epoch"))
        restore = self._present(job_key(job, f"restore:{epoch.get('number', '')}"))
        raw = RawView(
            store=self._strings.get(STORE),
            lease=self._string(job_key(job, "lease")),
            fence=self._hash(job_key(job, "fence")),
            epoch=epoch,
            decision=restore.get("decision"),
            plan=None if rank is None else restore.get(f"n{rank}"),
            keep=self._present(job_key(job, "keep")),
            orders=self._present(job_key(job, "orders")).get(host),
        )
        return parse_view(raw, job, host, rank)

    def wish_answer(self, job: Job, wish: str) -> WishAnswer | None:
        self._reach()
        key = job_key(job, "wishes")
        text = self._hash(key).get(wish)
        return None if text is None else from_json(WishAnswer, text, key)

    def check(self) -> tuple[str, ...]:
        self._reach()
        return self.problems

    # ---- inside

    def _reach(self) -> None:
        if self.down is not None:
            raise UnreachableError(self.down)
        self._expire()

    def _expire(self) -> None:
        now = self._clock()
        for key in [key for key, at in self._expires.items() if at <= now]:
            self._drop(key)

    def _drop(self, key: str) -> None:
        self._strings.pop(key, None)
        self._hashes.pop(key, None)
        self._scores.pop(key, None)
        self._sets.pop(key, None)
        self._streams.pop(key, None)
        self._expires.pop(key, None)

    def _parts(self) -> tuple[Mapping[str, Value], ...]:
        """Return everything, a part for each type."""
        return self._strings, self._hashes, self._scores, self._sets, self._streams

    def _is_other(self, key: str, kind: Mapping[str, Value]) -> bool:
        """Tell whether a key has another type."""
        for part in self._parts():  # noqa: SIM110 - the simulation asks at every read
            if part is not kind and key in part:
                return True
        return False

    def _hash(self, key: str) -> dict[str, str]:
        if self._is_other(key, self._hashes):
            raise ProtocolError(f"{key}: expected a hash")
        return self._hashes.get(key, {})

    def _present(self, key: str) -> dict[str, str]:
        """Return a hash; a key of another type counts as missing."""
        return self._hashes.get(key, {})

    def _string(self, key: str) -> str | None:
        if self._is_other(key, self._strings):
            raise ProtocolError(f"{key}: expected a string")
        return self._strings.get(key)

    def _set(self, key: str) -> set[str]:
        if self._is_other(key, self._sets):
            raise ProtocolError(f"{key}: expected a set")
        return self._sets.get(key, set())

    def _fence(self, job: Job) -> Stamp | None:
        key = job_key(job, "fence")
        return from_fields(Stamp, self._hash(key), key) if self._hash(key) else None

    def _raise(self, job: Job, stamp: Stamp) -> None:
        self._hashes[job_key(job, "fence")] = to_fields(stamp)

    def _owned(self, job: Job, lease: Lease) -> bool:
        held = self._strings.get(job_key(job, "lease"))
        return held is not None and _names(held, lease.incarnation, lease.token)

    def _write(self, job: Job, change: Change) -> None:
        key = job_key(job, change.key) if not isinstance(change, AddEvent) else job_key(job, "events")
        if self._is_other(job_key(job, "keys"), self._hashes):
            self._drop(job_key(job, "keys"))
        index = self._hashes.setdefault(job_key(job, "keys"), {})
        match change:
            case SetHash():
                old = {} if change.replace else self._hash(key)
                new = old | change.fields
                self._drop(key)
                index.pop(change.key, None)
                if new:
                    self._hashes[key] = new
                    index[change.key] = "hash"
            case SetScores():
                if not change.replace and (key in self._hashes or key in self._strings):
                    raise ProtocolError(f"{key}: expected a sorted set")
                scores = ({} if change.replace else self._scores.get(key, {})) | change.scores
                if any(math.isnan(score) for score in scores.values()):
                    raise ValueError(f"{key}: a score is not a number")
                self._drop(key)
                index.pop(change.key, None)
                if scores:
                    self._scores[key] = dict(sorted(scores.items(), key=lambda item: (item[1], item[0])))
                    index[change.key] = "zset"
            case Delete():
                self._drop(key)
                index.pop(change.key, None)
            case AddEvent():
                if self._is_other(key, self._streams):
                    self._drop(key)
                events = self._streams.setdefault(key, [])
                events.append(dict(change.fields))
                del events[:-EVENTS_LIMIT]
        if not index:
            self._drop(job_key(job, "keys"))


def _names(text: str, incarnation: Incarnation, token: int | None) -> bool:
    try:
        held = from_json(Lease, text, "lease")
    except ProtocolError:
        return False
    return held.incarnation == incarnation and (token is None or held.token == token)


class MemoryManifestStore:
    """`ManifestStore` over a model; several may share one, as processes share one Redis."""

    def __init__(self, model: StoreModel) -> None:
        self.model = model

    async def store_id(self) -> StoreId:
        return self.model.store_id()

    async def time(self) -> float:
        return self.model.time()

    async def jobs(self) -> frozenset[Job]:
        return self.model.jobs()

    async def add_job(self, job: Job) -> None:
        self.model.add_job(job)

    async def job_added(self, seconds: float) -> bool:
        added = asyncio.Event()

        def listener(_: Job) -> None:
            added.set()

        self.model.listeners.append(listener)
        try:
            async with asyncio.timeout(seconds):
                return await added.wait()
        except TimeoutError:
            return False
        finally:
            self.model.listeners.remove(listener)

    async def remove_job(self, job: Job) -> None:
        self.model.remove_job(job)

    async def register(self, record: HostRecord) -> None:
        self.model.register(record)

    async def unregister(self, host: Host, incarnation: Incarnation) -> None:
        self.model.unregister(host, incarnation)

    async def hosts(self) -> Mapping[Host, HostRecord]:
        return self.model.hosts()

    async def call_help(self, job: Job, cry: Help, ttl: float) -> None:
        self.model.call_help(job, cry, ttl)

    async def helps(self, job: Job, hosts: Collection[Host]) -> Mapping[Host, Help]:
        return self.model.helps(job, hosts)

    async def acquire(self, job: Job, lease: Lease, ttl: float, *, patient: bool = False) -> Lease | Denial:
        return self.model.acquire(job, lease, ttl, patient=patient)

    async def renew(self, job: Job, lease: Lease, ttl: float) -> Renewal:
        return self.model.renew(job, lease, ttl)

    async def release(self, job: Job, lease: Lease) -> None:
        self.model.release(job, lease)

    async def apply(
        self, job: Job, lease: Lease, stamp: Stamp, changes: Sequence[Change], after: Stamp = ZERO
    ) -> Stamp | None:
        return self.model.apply(job, lease, stamp, changes, after)

    async def snapshot(self, job: Job, *, mixed: bool = False) -> Snapshot:
        del mixed  # nothing is written meanwhile
        return self.model.snapshot(job)

    async def view(self, job: Job, host: Host, rank: Rank | None) -> NodeView:
        return self.model.view(job, host, rank)

    async def wish_answer(self, job: Job, wish: str) -> WishAnswer | None:
        return self.model.wish_answer(job, wish)

    async def check(self) -> tuple[str, ...]:
        return self.model.check()

    async def close(self) -> None:
        """Nothing to let go of."""
