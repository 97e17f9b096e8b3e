"""The names of the keys in Redis. The braces keep all keys of a job in one slot of a Redis Cluster."""

from typing import Final

from checkpoint_replicator.ids import Host, Job

__all__ = ["EVENTS_LIMIT", "HOSTS", "JOBS", "STORE", "host_key", "job_key"]

JOBS: Final = "ckpt:jobs"
"""Set of job names; the pub/sub channel of the same name tells that one was added."""
STORE: Final = "ckpt:store"
"""The random id of this life of the data set."""
HOSTS: Final = "ckpt:hosts"
"""Set of host names: which `ckpt:host:<host>` to look at."""
EVENTS_LIMIT: Final = 1000
"""About so many entries stay in `…:events`."""


def host_key(host: Host) -> str:
    """Return the key of a host's registration."""
    return f"ckpt:host:{host}"


def job_key(job: Job, name: str) -> str:
    """Return the full name of a job's key, `name` being what stands after `…:` in `docs/storage.md`."""
    return f"ckpt:{{{job}}}:{name}"
