"""Pure: what the demo trainer saves; every byte follows from (job, step, rank, worker), so nothing must be kept."""

import hashlib
from collections.abc import Mapping
from typing import Final

__all__ = ["PYTORCH", "shard_bytes", "step_files"]

PYTORCH: Final = "pytorch"
"""The framework that saves one file a worker; `pytorch.distributed` saves one directory a node."""


def shard_bytes(job: str, step: int, rank: int, worker: int, size: int) -> bytes:
    """Return `size` bytes that look random."""
    return hashlib.shake_128(f"{job}\0{step}\0{rank}\0{worker}".encode()).digest(size)


def step_files(job: str, step: int, rank: int, workers: int, size: int) -> Mapping[str, bytes]:
    """Return the files of one node's `pytorch.distributed` directory: a part for each worker, then `.metadata`."""
    first = rank * workers
    parts = {f"__{first + worker}_0.distcp": shard_bytes(job, step, rank, worker, size) for worker in range(workers)}
    return {**parts, ".metadata": f"{job} step {step}: {' '.join(parts)}\n".encode()}
