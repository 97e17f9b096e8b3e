"""Wiring: sockets, Redis, and one office for each job in `ckpt:jobs`."""

import asyncio
import random
import time
from collections.abc import Collection, Coroutine
from typing import Any, Final, TypeVar

from checkpoint_coordinator.config import CoordinatorConfig
from checkpoint_coordinator.gauges import Gauges
from checkpoint_coordinator.machine import CoordinatorMachine
from checkpoint_coordinator.office import Office
from checkpoint_replicator.bus import Received
from checkpoint_replicator.errors import ProtocolError, UnreachableError
from checkpoint_replicator.ids import Job, StoreId, job_fault, new_id
from checkpoint_replicator.inputlog import InputLog
from checkpoint_replicator.messages import NodeReport, Party, Service, Wish
from checkpoint_replicator.process import Runtime
from checkpoint_replicator.records import Lease
from checkpoint_replicator.store.redis import RedisManifestStore
from checkpoint_replicator.times import Times

__all__ = ["run"]

T = TypeVar("T")

POLL: Final = 1.0
"""Seconds between two looks at `ckpt:jobs`; pub/sub wakes earlier."""
CHECK: Final = 60.0
"""Seconds between two looks whether the server is fit."""
CALL: Final = 5.0
"""Longest that a call to Redis takes; less where the lease would end in it."""


async def run(config: CoordinatorConfig, runtime: Runtime) -> None:
    """Serve every job whose lease is to be had until asked to stop."""
    store = RedisManifestStore(config.redis, hold=True, deadline=call_deadline(config.times))
    try:
        await Coordinator(config, runtime, store).run()
    finally:
        await store.close()


def call_deadline(times: Times) -> float:
    """Return the seconds that a call to Redis may take: a renewal must end before the lease permits nothing more."""
    return min(CALL, times.lease_ttl - times.lease_margin - times.lease_renewed)


class Coordinator:
    """One process: a stand-by for every job, the decider for those whose lease it holds."""

    def __init__(self, config: CoordinatorConfig, runtime: Runtime, store: RedisManifestStore) -> None:
        self._config = config
        self._runtime = runtime
        self._store = store
        self._gauges = Gauges(runtime.metrics)
        self._offices: dict[Job, Office] = {}
        self._chance = random.Random()  # noqa: S311 - spreads retries, guards nothing
        self._closing: dict[Job, asyncio.Event] = {}
        self._listed: dict[Job, StoreId] = {}
        """In which life of the data set each job was last seen in `ckpt:jobs`."""
        self._odd: set[str] = set()
        self._check_at = float("-inf")
        self._faults: dict[str, str] = {}
        self._inputs = InputLog(config.input_log)

    async def run(self) -> None:
        """Bind the sockets, then watch for jobs."""
        config, bus = self._config, self._runtime.bus
        reports = await bus.pull(f"tcp://{config.bind}:{config.reports_port}", self._take)
        publisher = await bus.publisher(f"tcp://{config.bind}:{config.beacons_port}")
        lease = Lease(
            incarnation=self._runtime.incarnation,
            token=0,
            host=config.host,
            reports=self._reachable(reports),
            beacons=self._reachable(publisher.endpoint),
        )
        me = Party(host=config.host, service=Service.COORDINATOR, incarnation=self._runtime.incarnation)
        self._runtime.set_ready("Redis was not reached yet")

        def open_office(job: Job) -> Office:
            machine = CoordinatorMachine(
                job,
                lease,
                times=config.times,
                options=config.options,
                new_id=self._inputs.drawing(new_id),
                chance=self._inputs.drawing(self._chance.random),
            )
            return Office(
                job,
                machine,
                decides=self._inputs.of(
                    "coordinator", machine, job=job, me=lease, times=config.times, options=config.options
                ),
                store=self._store,
                publisher=publisher,
                me=me,
                log=self._runtime.log,
                gauges=self._gauges,
            )

        async with asyncio.TaskGroup() as tasks:
            while not self._runtime.stopping.is_set():
                for job in await self._unless_stopped(self._new_jobs()) or []:
                    office, closing = open_office(job), asyncio.Event()
                    self._offices[job] = office
                    self._closing[job] = closing
                    tasks.create_task(office.run(closing), name=f"job {job}")
                    self._runtime.log.info("job_found", job=job)
                await self._unless_stopped(self._store.job_added(POLL))
            for closing in self._closing.values():
                closing.set()

    async def _new_jobs(self) -> list[Job]:
        try:
            await self._check_server()
            store, jobs = await self._store.store_id(), await self._store.jobs()
        except (UnreachableError, ProtocolError) as error:
            self._runtime.set_ready(str(error))
            return []
        self._runtime.set_ready(None)
        self._close_forgotten(jobs, store)
        fresh: list[Job] = []
        for job in sorted(jobs - self._offices.keys()):
            fault = job_fault(job) or ""
            if not fault and len(self._offices) + len(fresh) >= self._config.jobs:
                fault = f"is one too many: this process takes {self._config.jobs}"
            if not fault:
                fresh.append(job)
            elif job not in self._odd and len(self._odd) < self._config.jobs:
                self._odd.add(job)
                self._runtime.log.warning("job_refused", job=job[:200], reason=f"a job name in ckpt:jobs {fault}")
        return fresh

    def _close_forgotten(self, jobs: Collection[Job], store: StoreId) -> None:
        """Leave jobs that were forgotten; a Redis that lost its data forgets too, and is told everything again."""
        for job, office in list(self._offices.items()):
            gone = job not in jobs and self._listed.get(job) == store and not office.machine.active
            if gone or office.machine.over:
                self._closing.pop(job).set()
                del self._offices[job]
                self._listed.pop(job, None)
                self._runtime.log.info("job_left", job=job)
        self._listed.update({job: store for job in jobs if job in self._offices})

    async def _check_server(self) -> None:
        """Look now and then whether the server is fit; each kind of fault is told when it comes."""
        if time.monotonic() < self._check_at:
            return
        faults = {fault.partition(":")[0]: fault for fault in await self._store.check()}
        self._check_at = time.monotonic() + CHECK
        for fault in faults.keys() - self._faults.keys():
            self._runtime.log.warning("redis_misconfigured", reason=faults[fault])
        for fault in self._faults.keys() - faults.keys():
            self._runtime.log.info("redis_put_right", reason=self._faults[fault])
        self._faults = faults

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Do the work, or leave it when the process is to end; a Redis that does not answer holds nobody up."""
        task = asyncio.create_task(work)
        stop = asyncio.create_task(self._runtime.stopping.wait())
        try:
            await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            for one in (task, stop):
                one.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)

    async def _take(self, received: Received) -> None:
        envelope = received.envelope
        office = self._offices.get(envelope.job)
        match envelope.message:
            case NodeReport() as report if office is not None:
                office.hear(envelope.sender, report)
            case Wish() as wish if office is not None and envelope.sender.service is Service.OPERATOR:
                office.wish(wish)
            case _:
                self._gauges.reports.labels("foreign").inc()

    def _reachable(self, endpoint: str) -> str:
        """Put the address that others use in the place of the one that was bound."""
        if self._config.advertise is None:
            return endpoint
        return f"tcp://{self._config.advertise}:{endpoint.rpartition(':')[2]}"
