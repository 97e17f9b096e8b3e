"""The names of things. Identity is always a random id, never a counter.

The limits in the types hold wherever msgspec parses (bus, Redis, files), since jobs and addresses become file names.
"""

import re
import secrets
from typing import Annotated, Final, NewType

from msgspec import Meta

__all__ = [
    "MAX_JOB_NAME",
    "NO_JOB",
    "Address",
    "Amount",
    "Epoch",
    "Host",
    "Incarnation",
    "Job",
    "Number",
    "Rank",
    "SessionId",
    "Step",
    "StoreId",
    "Token",
    "Worker",
    "is_address",
    "job_fault",
    "new_id",
]

Job = NewType("Job", Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")])
"""The training job, as `job-name` in `replicator.yaml`."""
Rank = NewType("Rank", Annotated[int, Meta(ge=0, lt=65536)])
"""A node's number in the job, 0 to nodes - 1."""
Worker = NewType("Worker", Annotated[int, Meta(ge=0, lt=65536)])
"""One process of a node that saves one shard."""
Number = Annotated[int, Meta(ge=0, lt=1 << 53)]
"""A count, below the 2**53 up to which Redis' scripts and scores are exact."""
Amount = Annotated[float, Meta(ge=0, lt=1e15)]
"""A finite quantity, or a moment in Unix seconds: one that never ends would be waited for without end."""
Token = Annotated[int, Meta(ge=0, lt=1 << 48)]
"""A lease's growing number; ends so far below that a fence can always be raised above what a node says it obeyed."""
Step = NewType("Step", Annotated[int, Meta(ge=0, lt=1 << 53)])
"""A training step; 0 is an ordinary one."""
Epoch = NewType("Epoch", Annotated[int, Meta(ge=0, lt=1 << 53)])
"""One rendezvous of all nodes of a job; growing; 0 stands for data of unknown origin."""
Host = NewType("Host", str)
"""A machine; a rank may move between hosts."""
Address = NewType("Address", Annotated[str, Meta(pattern=r"^D?[0-9a-f]{64}\Z")])
"""BLAKE3 of a shard's tree: 64 hex digits, after a `D` for a directory."""
Incarnation = NewType("Incarnation", str)
"""One life of a process: a random id made at its start."""
SessionId = NewType("SessionId", str)
"""One `replicator.yaml` taken up by one node: a random id."""
StoreId = NewType("StoreId", str)
"""The random id of one life of the Redis data set (`ckpt:store`)."""

NO_JOB: Final = Job("node")
"""Stands in messages between the services of a node that concern no job; who reads them looks at their content only."""

MAX_JOB_NAME: Final = 128
"""Longest job name in bytes; `<job>-s<step>-n<rank>-w<worker>.restore` must fit into 255."""

_ADDRESS: Final = re.compile(r"D?[0-9a-f]{64}")
_JOB: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def new_id() -> str:
    """Return 16 random hex digits (64 bits)."""
    return secrets.token_hex(8)


def is_address(text: str) -> bool:
    """Tell whether the text has the form of an address."""
    return _ADDRESS.fullmatch(text) is not None


def job_fault(name: str) -> str | None:
    """Say what is wrong with a job name, or None.

    A job name becomes part of file names, Redis keys and bucket paths, so only letters, digits, dot, dash and
    underscore pass, and the first is a letter or digit.
    """
    if len(name.encode()) > MAX_JOB_NAME:
        return f"has {len(name.encode())} bytes, expected at most {MAX_JOB_NAME}"
    if _JOB.fullmatch(name) is None:
        return f"is {name!r}, expected letters, digits, '.', '_' and '-', beginning with a letter or digit"
    return None
