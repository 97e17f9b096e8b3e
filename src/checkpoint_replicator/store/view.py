"""What a node must obey, from the texts that stand in Redis."""

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Host, Job, Rank, StoreId
from checkpoint_replicator.records import EpochRecord, FetchPlan, KeepList, Lease, NodeView, Orders, RestoreRecord
from checkpoint_replicator.store.fields import from_fields, from_json
from checkpoint_replicator.store.keys import job_key

__all__ = ["RawView", "parse_view"]

T = TypeVar("T")


class RawView(msgspec.Struct, frozen=True, kw_only=True):
    """The texts behind a NodeView, read at one moment; an absent key is None or has no fields."""

    store: str | None = None
    lease: str | None = None
    fence: Mapping[str, str] = {}
    epoch: Mapping[str, str] = {}
    decision: str | None = None
    plan: str | None = None
    keep: Mapping[str, str] = {}
    orders: str | None = None


def parse_view(raw: RawView, job: Job, host: Host, rank: Rank | None) -> NodeView:
    """Read all parts of a view.

    Raises:
        ProtocolError: a value does not parse; names the key.
    """
    epoch = from_fields(EpochRecord, raw.epoch, job_key(job, "epoch")) if raw.epoch else None
    restore = job_key(job, f"restore:{epoch.number if epoch else ''}")
    return NodeView(
        store=None if raw.store is None else StoreId(raw.store),
        lease=_json(Lease, raw.lease, job_key(job, "lease")),
        fence=from_fields(Stamp, raw.fence, job_key(job, "fence")) if raw.fence else None,
        epoch=epoch,
        restore=_json(RestoreRecord, raw.decision, f"{restore} decision"),
        plan=_json(FetchPlan, raw.plan, f"{restore} n{rank}"),
        keep=from_fields(KeepList, raw.keep, job_key(job, "keep")) if raw.keep else None,
        orders=_json(Orders, raw.orders, f"{job_key(job, 'orders')} {host}"),
    )


def _json(kind: type[T], text: str | None, key: str) -> T | None:
    return None if text is None else from_json(kind, text, key)
