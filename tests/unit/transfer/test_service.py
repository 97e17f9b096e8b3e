import threading
from pathlib import Path
from typing import cast

import structlog
from prometheus_client import CollectorRegistry

from checkpoint_replicator.bus.zeromq import ZeroMQBus
from checkpoint_replicator.config import load
from checkpoint_replicator.ids import Address
from checkpoint_replicator.metrics import Health
from checkpoint_replicator.process import Runtime
from checkpoint_replicator.ramdisk import Ramdisk
from checkpoint_transfer import effects as do
from checkpoint_transfer.buffers import Buffers
from checkpoint_transfer.config import TransferConfig
from checkpoint_transfer.disk import Disk
from checkpoint_transfer.service import TransferService
from support.memory_bus import MemoryBus, MemoryNetwork
from support.transfer_net import MIB, address_of


class SlowDisk(Disk):
    """Hashes whole shards for as long as it is told to."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Ramdisk(folder), Buffers(MIB, 1))
        self.go = threading.Event()

    def check(self, address: Address) -> do.ShardChecked:
        self.go.wait(10)
        return super().check(address)


async def test_however_many_shards_are_hashed_again_others_are_opened_meanwhile(tmp_path: Path) -> None:
    bus = cast("ZeroMQBus", MemoryBus(MemoryNetwork()))
    runtime = Runtime(bus, CollectorRegistry(), structlog.get_logger(), Health(60.0), "")
    config = load(TransferConfig, flags={"host": "h", "ramdisk": str(tmp_path), "run": str(tmp_path / "run")})
    disk = SlowDisk(tmp_path)
    service = TransferService(config, runtime, disk)
    try:
        for number in range(4):
            await service._perform(do.CheckShard(address_of(number)))
        await service._perform(do.OpenShard(address_of(9)))
        first = await service._inbox.get()
        assert isinstance(first, do.ShardAbsent)
        disk.go.set()
        checked = [await service._inbox.get() for _ in range(4)]
        assert checked == [do.ShardChecked(address_of(number), "") for number in range(4)]
    finally:
        disk.go.set()
        await service.close()
