"""What commands share."""

import pytest

from checkpoint_replicator.cli.option import known_job
from checkpoint_replicator.errors import UnknownJobError
from checkpoint_replicator.ids import Job
from support.memory_store import MemoryManifestStore, StoreModel


async def test_a_job_is_found_by_its_name_or_the_known_ones_are_named() -> None:
    model = StoreModel(lambda: 1000.0)
    model.add_job(Job("llama"))
    store = MemoryManifestStore(model)
    assert await known_job(store, "llama") == Job("llama")
    with pytest.raises(UnknownJobError, match="no job gemma; known: llama"):
        await known_job(store, "gemma")


async def test_a_name_that_no_job_can_have_is_refused_before_redis_is_asked() -> None:
    model = StoreModel(lambda: 1000.0)
    model.down = "connection refused"
    with pytest.raises(UnknownJobError, match="--job"):
        await known_job(MemoryManifestStore(model), "../evil")
