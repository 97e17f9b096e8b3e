"""What the node tells others: the coordinator, its own transfer and uploader, and people."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from checkpoint_replicator.ids import Address, Incarnation, Job
from checkpoint_replicator.messages import (
    CopyState,
    Fault,
    NodeReport,
    OfferOrder,
    Room,
    Service,
    ServiceHealth,
    TransferOrders,
    TransferReport,
    UploaderOrders,
    UploaderReport,
)
from checkpoint_replicator.save import Save, Tag
from checkpoint_watcher.authority import Authority
from checkpoint_watcher.effects import PublishStatus, SendReport, SendTransfer, SendUploader
from checkpoint_watcher.node import Node
from checkpoint_watcher.restore import Restorer
from checkpoint_watcher.saves import Saves

__all__ = ["Reporter", "Sibling"]

MAX_STORED: Final = 4096
MAX_OFFERS: Final = 256
"""Offers in hand; the oldest saves come first."""
OFFERED: Final = 2
"""So many of the oldest and of the newest saves in flight are offered."""
NOBODY: Final = Incarnation("")
NEVER: Final = float("inf")
EARLY: Final = 0.6
"""What was said this part of its span ago is said again together with what is due."""
HELD_A_GAP: Final = 500
"""Reports of big inventories are costly: each so many shards make the gap between two reports one gap longer."""


@dataclass(slots=True)
class Sibling:
    """Another service of this node, as far as it was heard."""

    incarnation: Incarnation = NOBODY
    heard_at: float | None = None


@dataclass(slots=True)
class Sent:
    """What was last sent to one receiver, and when."""

    content: object = None
    version: int = 0
    at: float | None = None
    changed: bool = False
    """Something may be different from what was sent."""
    gap: float = 0.0

    def due(self, now: float, gap: float, span: float) -> bool:
        """Tell whether to look: at what may have changed, not sooner than `gap` after the last; else after `span`."""
        self.gap = gap
        return self.at is None or now >= self.at + (gap if self.changed else span)

    def is_late(self, now: float, span: float) -> bool:
        """Tell whether it is said again now, changed or not."""
        return self.at is not None and now >= self.at + span


@dataclass(slots=True)
class Reporter:
    """Builds whole states and sends them at change (rate limited) and again and again."""

    node: Node
    saves: Saves
    restorer: Restorer
    transfer: Sibling = field(default_factory=Sibling)
    uploader: Sibling = field(default_factory=Sibling)
    transfer_said: TransferReport | None = None
    uploader_said: dict[Job, UploaderReport] = field(default_factory=dict)
    root: str | None = None
    complete: bool = False
    _stored: set[Address] = field(default_factory=set)
    _orders: float = 0.0
    _sent: dict[tuple[str, str], Sent] = field(default_factory=dict)
    _left: int = 0
    """Highest version that was said of a job that was left: what is said when it begins anew is newer."""

    def advance(self, authorities: Mapping[Job, Authority], now: float) -> None:
        """Send what changed or is due."""
        times = self.node.times
        gap = times.report_gap * (1 + len(self.node.held) // HELD_A_GAP)
        # What is to be said again soon is said together, so that the node wakes once and not thrice.
        early = EARLY if self._is_late(now) else 1.0
        self._orders = early * times.orders
        for job in sorted(authorities):
            authority = authorities[job]
            sent = self._last("report", job)
            if sent.due(now, gap, early * times.report):
                report = self._report(job, authority, now)
                if self._news(sent, report, now, early * times.report):
                    sent.version += 1  # each one, so that beacons tell whether heartbeats arrive
                    authority.sent(sent.version, now)
                    self.node.emit(SendReport(job, msgspec.structs.replace(report, version=sent.version)))
            self._order_uploader(job, authority, now)
        sent = self._last("transfer")
        if sent.due(now, times.report_gap / 2, self._orders):
            orders = self._transfer_orders(authorities)
            if self._news(sent, orders, now, self._orders):
                self.node.emit(SendTransfer(msgspec.structs.replace(orders, version=sent.version)))
        self._publish_status(authorities, now)

    def deadline(self) -> float | None:
        """When something is sent again."""
        moments = []
        for (kind, _), sent in self._sent.items():
            if sent.at is not None:
                moments.append(sent.at + self._span(kind))
                if sent.changed:
                    moments.append(sent.at + sent.gap)
        return min(moments, default=None)

    def touch(self) -> None:
        """An event was taken: what was held back by the rate limit is to be looked at again."""
        for sent in self._sent.values():
            sent.changed = True

    def leave(self, job: Job) -> None:
        """Nothing is told of this job any more."""
        self.uploader_said.pop(job, None)
        for kind in ("report", "uploader"):
            sent = self._sent.pop((kind, job), None)
            if sent is not None:
                self._left = max(self._left, sent.version)

    def hear_transfer(self, incarnation: Incarnation, report: TransferReport, now: float) -> bool:
        """The node's transfer spoke; False: it said the same before."""
        news = report != self.transfer_said or not self._alive(self.transfer, now)
        news = news or incarnation != self.transfer.incarnation
        self.transfer.incarnation, self.transfer.heard_at = incarnation, now
        self.transfer_said = report
        self._note_stored(report)
        return news

    def hear_uploader(self, job: Job, incarnation: Incarnation, report: UploaderReport, now: float) -> bool:
        """The node's uploader spoke; False: it said the same before."""
        news = report != self.uploader_said.get(job) or not self._alive(self.uploader, now)
        news = news or incarnation != self.uploader.incarnation
        self.uploader.incarnation, self.uploader.heard_at = incarnation, now
        self.uploader_said[job] = report
        self.root = report.root
        return news

    def told(self, addresses: frozenset[Address]) -> frozenset[Address]:
        """Return those that a report that was sent names as corrupt."""
        if not addresses:
            return addresses
        reports = [sent.content for sent in self._sent.values() if isinstance(sent.content, NodeReport)]
        named = {fault.address for report in reports for fault in report.faults if fault.kind == "corrupt"}
        return frozenset(address for address in addresses if address in named)

    # ---- rate

    def _last(self, kind: str, job: str = "") -> Sent:
        """What was last sent to one receiver."""
        sent = self._sent.get((kind, job))
        if sent is None:
            sent = self._sent[kind, job] = Sent(version=self._left)
        return sent

    def _is_late(self, now: float) -> bool:
        """Whether anything is to be said again now, changed or not."""
        for (kind, _), sent in self._sent.items():  # noqa: SIM110 - asked at nearly every event
            if sent.is_late(now, self._span(kind)):
                return True
        return False

    def _span(self, kind: str) -> float:
        """How long something is not said again that did not change."""
        if kind == "status":
            return NEVER
        return self.node.times.report if kind == "report" else self.node.times.orders

    def _news(self, sent: Sent, content: object, now: float, span: float) -> bool:
        """Tell whether to send: it changed, or is due again. The version grows with each change."""
        sent.changed = False
        if content == sent.content and sent.at is not None and now < sent.at + span:
            return False
        if content != sent.content:
            sent.version += 1
            sent.content = content
        sent.at = now
        return True

    # ---- the coordinator

    def _report(self, job: Job, authority: Authority, now: float) -> NodeReport:
        node = self.node
        record = node.session if node.job == job else None
        session = record.session(gone=node.yaml_gone) if record is not None else None
        mine = session is not None
        orders = authority.view.orders if authority.view is not None else None
        backup_ids = {order.id for order in orders.backup} if orders is not None else set()
        said = self.uploader_said.get(job)
        return NodeReport(
            version=0,
            session=session,
            rank=session.spec.rank if session is not None else None,
            store=authority.store,
            obeyed=authority.fence.stamp,
            newest_committed=authority.committed,
            keep=authority.fence.keep,
            hold=authority.fence.hold,
            complete=self.complete,
            held=tuple(sorted(node.of(job), key=lambda held: held.tag)),
            saving=self.saves.on_the_way(job),
            restore=self.restorer.progress() if mine else None,
            faults=self._faults(job, mine=mine),
            room=self.room(),
            services=(
                self._health(Service.TRANSFER, self.transfer, now),
                self._health(Service.UPLOADER, self.uploader, now),
            ),
            transfer=self.transfer_said.peer
            if self.transfer_said is not None and self._alive(self.transfer, now)
            else None,
            backup_root=node.backup_root or self.root,
            backup=tuple(result for result in said.results if result.id in backup_ids) if said is not None else (),
            backup_requested=tuple(sorted(self.saves.wanted)) if mine else (),
        )

    def room(self) -> Room | None:
        """Return the room as the last scan saw it, with what is kept free and what is needed."""
        room = self.node.snapshot.room if self.node.snapshot is not None else None
        if room is None:
            return None
        fit, reserve = self.saves.room.fit, self.saves.room.reserve
        if fit is None:
            return msgspec.structs.replace(room, reserve=reserve)
        return msgspec.structs.replace(
            room,
            reserve=reserve,
            generations=fit.fit,
            needed=fit.needed,
            comfortable=fit.comfortable,
        )

    def _alive(self, sibling: Sibling, now: float) -> bool:
        return sibling.heard_at is not None and now < sibling.heard_at + self.node.times.suspect

    def _health(self, service: Service, sibling: Sibling, now: float) -> ServiceHealth:
        alive = self._alive(sibling, now)
        reason = "" if alive else "never heard" if sibling.heard_at is None else "silent"
        return ServiceHealth(service=service, incarnation=sibling.incarnation, alive=alive, reason=reason)

    def _faults(self, job: Job, *, mine: bool) -> tuple[Fault, ...]:
        """All, to the job of the session or, without one, of what was saved here; to others, of their shards."""
        traced = self.node.traced if self.node.session is None else None
        mine = mine or (traced is not None and traced.spec.job == job)
        addresses = {tag.address for tag in self.node.held if tag.job == job}
        return tuple(fault for fault in self.node.faults.values() if mine or fault.address in addresses)

    # ---- the node's own services

    def _transfer_orders(self, authorities: Mapping[Job, Authority]) -> TransferOrders:
        offers: list[OfferOrder] = []
        for job in sorted(authorities):
            authority = authorities[job]
            orders = authority.view.orders if authority.view is not None else None
            if orders is None:
                continue
            own = self._own_uncommitted(job, authority.committed) if job == self.node.job else ()
            if own:
                others = tuple([peer for peer in orders.peers if peer.host != self.node.host])
                offers += [OfferOrder(tag=tag, to=others) for tag in own if others]
            for order in orders.replicate:
                to = tuple(peer for peer in order.to if peer.host != self.node.host)
                if order.tag in self.node.held and to:
                    offers.append(OfferOrder(tag=order.tag, to=to))
        return TransferOrders(
            version=0,
            offers=tuple(offers[:MAX_OFFERS]),
            fetches=self.restorer.fetches(),
            reserve=self.saves.room.reserve,
            reserve_inodes=self.saves.room.reserve_inodes,
            trainer=self.saves.room.saving,
        )

    def _own_uncommitted(self, job: Job, committed: Save | None) -> list[Tag]:
        """Return the shards that are to be offered.

        Of many saves only the oldest and the newest, as all nodes choose: those between are about to be given up, and
        would take a peer's time from the one that can commit.
        """
        epoch = self.node.session.epoch if self.node.session is not None else 0
        if not epoch:
            return []
        given_up = self.saves.given_up(job)
        tags = [
            tag
            for tag in self.node.owned.values()
            if tag.job == job
            and tag.save.epoch == epoch
            and (committed is None or tag.save > committed)
            and tag.save not in given_up
        ]
        tags.sort()
        saves = sorted({tag.save for tag in tags})
        ends = {*saves[:OFFERED], *saves[-OFFERED:]}
        return [tag for tag in tags if tag.save in ends]

    def _order_uploader(self, job: Job, authority: Authority, now: float) -> None:
        orders = authority.view.orders.backup if authority.view is not None and authority.view.orders else ()
        sent = self._last("uploader", job)  # also without orders: its answer tells the root
        if sent.due(now, self.node.times.report_gap / 2, self._orders):
            content = UploaderOrders(version=0, orders=orders)
            if self._news(sent, content, now, self._orders):
                self.node.emit(SendUploader(job, msgspec.structs.replace(content, version=sent.version)))

    # ---- people

    def _publish_status(self, authorities: Mapping[Job, Authority], now: float) -> None:
        sent = self._last("status")
        if not sent.due(now, self.node.times.orders, NEVER):
            return
        text = self._status(authorities)
        if self._news(sent, text, now, NEVER):
            self.node.emit(PublishStatus(text))

    def _protected(self, job: Job | None, committed: Save | None) -> bool:
        """Whether every own shard of the newest committed save was seen stored on another host."""
        own = [tag for tag in self.node.owned.values() if tag.job == job and tag.save == committed]
        return bool(own) and all(tag.address in self._stored for tag in own)

    def _note_stored(self, report: TransferReport) -> None:
        """Remember which shards have a copy elsewhere."""
        self._stored |= {copy.address for copy in report.copies if copy.state is CopyState.STORED}
        if len(self._stored) > MAX_STORED:
            self._stored &= {tag.address for tag in self.node.held}

    def _status(self, authorities: Mapping[Job, Authority]) -> str:
        node = self.node
        record = node.session
        job = node.job
        authority = authorities.get(job) if job is not None else None
        view = authority.view if authority is not None else None
        committed = authority.committed if authority is not None else None
        snapshot = node.snapshot
        reasons = [fault.reason for fault in node.faults.values()]
        if authority is not None and authority.failure:
            reasons.append(authority.failure)
        if view is not None and view.keep is not None and view.keep.hold:
            reasons.append("people look: nothing is deleted, pruned or backed up")
        if view is not None and view.epoch is not None and view.epoch.reason:
            reasons.append(view.epoch.reason)
        if authority is not None and authority.cut_off:
            reasons.append("the coordinator cannot be reached, and Redis can")
        document = {
            "host": node.host,
            "job": job or "",
            "rank": record.spec.rank if record is not None and record.spec is not None else None,
            "session": record.id if record is not None else None,
            "state": record.state if record is not None else None,
            "epoch": committed.epoch if committed is not None else 0,
            "step": committed.step if committed is not None else None,
            "protected": self._protected(job, committed),
            "backup": view.orders.last_backup or None if view is not None and view.orders is not None else None,
            "running_epoch": record.epoch if record is not None else 0,
            "failure": record.failure if record is not None else "",
            "notes": record.notes if record is not None else (),
            "saving": sorted({saving.save.step for saving in self.saves.on_the_way(job)})[:16],
            "unfinished": snapshot.unfinished if snapshot is not None else (),
            "foreign": snapshot.foreign if snapshot is not None else 0,
            "handout": "linked" if record is None or record.handout else "none",
            "room": self.room(),
            "backup_root": node.backup_root or self.root,
            "reasons": reasons,
        }
        return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
