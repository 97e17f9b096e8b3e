"""Wires the uploader: one PULL for the watcher's orders and the transfer's Want, one PUSH to each of them."""

import asyncio
from typing import Final

from checkpoint_replicator.blobs import BlobStore
from checkpoint_replicator.blobs.location import open_root
from checkpoint_replicator.bus import Received
from checkpoint_replicator.driver import drive
from checkpoint_replicator.errors import ReplicatorError, UnreachableError
from checkpoint_replicator.inputlog import InputLog
from checkpoint_replicator.messages import Party, Service, UploaderOrders, Want
from checkpoint_replicator.process import Runtime, end_hard_after
from checkpoint_replicator.quote import quote
from checkpoint_replicator.ramdisk import Ramdisk
from checkpoint_replicator.records import Peer
from checkpoint_uploader.archive import Archive
from checkpoint_uploader.config import UploaderConfig
from checkpoint_uploader.desk import OrderDesk
from checkpoint_uploader.holder import Bounds, Holder
from checkpoint_uploader.machine import Limits, Uploader
from checkpoint_uploader.metrics import UploaderMetrics
from checkpoint_uploader.window import Patience, ReadWindow

__all__ = ["bounds_of", "run", "serve"]

_PROBE: Final = 5.0
"""Seconds between two looks whether the store answers, until it first did."""
_STRANGE: Final = 1.0
"""Seconds between two log lines about messages that are not taken; each is counted."""
_LAST_WORDS: Final = 1.0
"""Seconds for the last log lines when a hanging call ends the process."""


def bounds_of(config: UploaderConfig) -> Bounds:
    """Take the bounds of what is read for the transfer from the configuration and its table of times."""
    return Bounds(reads=config.reads, idle=3 * config.times.lost)  # as long as a transfer remembers a silent peer


async def run(config: UploaderConfig, runtime: Runtime) -> None:
    """Serve one node until it is asked to stop."""
    await serve(config, runtime, open_root(config.backup) if config.backup else None)


async def serve(config: UploaderConfig, runtime: Runtime, store: BlobStore | None) -> None:
    """Serve with this store; it never waits for the store or for the other services to be there."""
    times = config.times
    metrics = UploaderMetrics(runtime.metrics)
    limits = Limits(
        heavy=config.uploads,
        retry_least=times.retry_least,
        retry_most=times.retry_most,
        silent=times.store_silent,
        report=times.orders,
    )
    archive = None
    if store is not None:
        archive = Archive(store, Ramdisk(config.ramdisk, config.ramdisk_size), config.calls)
    me = Party(host=config.host, service=Service.UPLOADER, incarnation=runtime.incarnation)
    here = Peer(host=config.host, incarnation=runtime.incarnation, control=config.endpoint("uploader"), leaves=())
    watcher = (Party(host=config.host, service=Service.WATCHER), runtime.bus.push(config.endpoint("watcher")))
    transfer = runtime.bus.push(config.endpoint("transfer"))
    desk = OrderDesk(archive, limits, me=me, watcher=watcher, log=runtime.log, metrics=metrics)
    window = ReadWindow(
        store,
        config.reads,
        me=me,
        here=here,
        transfer=transfer,
        patience=Patience(times.store_silent, times.acknowledged),
        log=runtime.log,
        metrics=metrics,
    )

    loop, quiet_until = asyncio.get_running_loop(), 0.0

    async def take(received: Received) -> None:
        nonlocal quiet_until
        sender = received.envelope.sender
        who = sender.service if sender.host == config.host else None
        match received.envelope.message:
            case UploaderOrders() as orders if who is Service.WATCHER:
                await desk.take(received, orders)
            case Want() as want if who is Service.TRANSFER:
                await window.take(received, want)
            case other:
                metrics.strange.inc()
                if loop.time() >= quiet_until:  # a stranger may come a thousand times a second
                    quiet_until = loop.time() + _STRANGE
                    peer = quote(f"{sender.service} of {sender.host}")
                    runtime.log.warning("message_unexpected", kind=type(other).__name__, peer=peer)

    await runtime.bus.pull(here.control, take)
    inputs = InputLog(config.input_log)
    root = None if store is None else store.root
    machine = inputs.of("uploader", Uploader(root, limits), root=root, limits=limits)
    bounds = bounds_of(config)
    holder = inputs.of("holder", Holder(bounds), bounds=bounds)
    background = [
        asyncio.create_task(desk.look(), name="look at orders"),
        asyncio.create_task(window.look(), name="look at reads"),
        asyncio.create_task(_say_ready(store, runtime), name="readiness"),
    ]
    work = [
        asyncio.create_task(drive(machine, desk.inbox, desk.perform, runtime.stopping), name="orders"),
        asyncio.create_task(drive(holder, window.inbox, window.perform, runtime.stopping), name="reads"),
    ]
    try:
        await _until_one_ends_badly(work, background)
    except UnreachableError:
        end_hard_after(_LAST_WORDS)  # the hanging thread would keep the process
        raise
    finally:
        for task in (*background, *work):
            task.cancel()
        await asyncio.gather(*background, *work, return_exceptions=True)
    await asyncio.gather(desk.close(), window.close())


async def _until_one_ends_badly(work: list[asyncio.Task[None]], background: list[asyncio.Task[None]]) -> None:
    """Return when all work ended; raise what the first failing task raised."""
    left = set(work)
    while left:
        done, _ = await asyncio.wait((*left, *background), return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            await task
        left -= done
        background = [task for task in background if task not in done]


async def _say_ready(store: BlobStore | None, runtime: Runtime) -> None:
    """Be ready once the store answered; without a store at once."""
    while store is not None:
        try:
            await asyncio.to_thread(store.stat, "probe")
        except ReplicatorError as error:
            runtime.set_ready(f"backup store: {error}")
            await asyncio.sleep(_PROBE)
        else:
            break
    runtime.set_ready(None)
