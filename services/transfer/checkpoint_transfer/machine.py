"""Pure: the whole of a node's transfer: what was ordered, what peers offered, who is being served.

The watcher's TransferOrders is all that is wanted now, TransferReport all that is true now. A peer's Offer is taken
when there is room beside the reserve. Everything may come twice, late or not at all.
"""

from collections.abc import Iterable, Iterator
from itertools import takewhile
from typing import Final

import msgspec

from checkpoint_replicator.ids import Address, Incarnation, Job, is_address
from checkpoint_replicator.machine import Ticked
from checkpoint_replicator.messages import (
    Fault,
    FetchOrder,
    Leaves,
    NotYet,
    Offer,
    Party,
    Refused,
    Service,
    Stored,
    TransferOrders,
    TransferReport,
    Want,
)
from checkpoint_replicator.quote import quote
from checkpoint_replicator.records import Peer
from checkpoint_transfer import effects as do
from checkpoint_transfer import holder, offers, receiving
from checkpoint_transfer.budget import Budget
from checkpoint_transfer.doubts import Doubts
from checkpoint_transfer.fetching import Fetching
from checkpoint_transfer.leaves import CHUNK_BYTES, LeafSet, Sizes
from checkpoint_transfer.patience import Patience
from checkpoint_transfer.receiver import Phase, Receiver
from checkpoint_transfer.receiving import Frames
from checkpoint_transfer.room import RoomKeeper
from checkpoint_transfer.serving import Addressed, Serving
from checkpoint_transfer.source import Source, source_of

__all__ = ["Limits", "TransferMachine"]

MOST_STRANGE: Final = 64
"""Shards that are hashed again in a minute for peers that are not being served out of them."""
MOST_KIND: Final = 40
"""Characters of the kind of a peer's refusal."""


class Limits(msgspec.Struct, frozen=True):
    """Bounds on memory and on peers.

    Attributes:
        window: bytes that one fetch has asked for and not stored.
        incoming: the same for all fetches together.
        outgoing: bytes read for peers and not acknowledged, for all serves together.
        serve: the same for one serve.
        copies: peers' copies that are received at once.
        peers: peers that are served, or wait to be, at once.
        tags: tags that one Offer may carry.
        report_gap: shortest time between two reports in seconds.
        report: longest time between two reports in seconds.
        checked_gap: shortest time between two hashings of one shard that a peer complains of, in seconds.
        trim_gap: time between two looks at partials that nobody fills, in seconds.
        lack: for how many seconds a shard counts as lacking room after it was refused.
    """

    window: int = 32 << 20
    incoming: int = 32 << 20
    outgoing: int = 32 << 20
    serve: int = 16 << 20
    copies: int = 64
    peers: int = 1024
    tags: int = 256
    report_gap: float = 0.1
    report: float = 1.0
    checked_gap: float = 60.0
    trim_gap: float = 10.0
    lack: float = 60.0


class TransferMachine:
    """Composes fetches, offers and serves."""

    def __init__(self, me: Peer, local: Peer, limits: Limits, patience: Patience) -> None:
        """Take how peers reach this transfer, and how the local uploader does."""
        self._me = me
        self._local = local
        self._limits = limits
        self._patience = patience
        self._incoming = Budget(limits.incoming)
        self._outgoing = Budget(limits.outgoing)
        self._fetches: dict[Address, Fetching] = {}
        self._offers = offers.Offers(patience)
        self._serving = Serving(self._outgoing, limits.serve, limits.peers, patience)
        self._opening: set[Address] = set()
        self._faults: dict[Address, Fault] = {}
        self._checked: dict[Address, float] = {}
        self._doubts = Doubts()
        self._room = RoomKeeper(limits.lack, limits.trim_gap)
        self._jobs: dict[Address, Job] = {}
        self._trees: dict[tuple[Address, Source], float] = {}
        """When a peer was sent a tree last."""
        self._orders = TransferOrders(version=-1)
        self._watcher = Incarnation("")
        self._number = 0
        self._landed = 0
        self._changed = True
        self._reported = float("-inf")

    # ---- the contract

    def handle(self, event: do.TransferEvent | Ticked, now: float) -> list[do.TransferEffect]:
        """Take one event."""
        effects = list(self._take(event, now))
        effects += self._poke(now)
        if (
            self._orders.version >= 0 and (doubted := self._doubts.next()) is not None
        ):  # the watcher hears what is found
            effects.append(do.CheckShard(doubted))
        if now >= self._report_at():
            self._reported = now
            self._changed = False
            effects.append(do.Report(msgspec.structs.replace(self.report, lacking=self._room.lacking(now))))
        return effects

    def next_deadline(self) -> float:
        """When anything is overdue, or the next report is due."""
        deadlines: list[float | None] = [self._report_at(), self._room.due]
        deadlines += [self._offers.next_deadline(), self._serving.next_deadline()]
        deadlines += [fetch.receiver.next_deadline() for fetch in self._fetches.values()]
        return min(deadline for deadline in deadlines if deadline is not None)

    @property
    def report(self) -> TransferReport:
        """The whole state, for the watcher."""
        return TransferReport(
            peer=self._me,
            version=max(self._orders.version, 0),
            copies=self._offers.copies,
            fetches=tuple(fetch.report for fetch in self._fetches.values() if fetch.order is not None),
            landed=self._landed,
            corrupt=tuple(self._faults.values()),
        )

    def _report_at(self) -> float:
        return self._reported + (self._limits.report_gap if self._changed else self._limits.report)

    def _take(self, event: do.TransferEvent | Ticked, now: float) -> Iterator[do.TransferEffect]:
        match event:
            case do.MessageCame(sender, job, message, body):
                yield from self._message(sender, job, message, body, now)
            case do.FetchMoved(address, number, moved):
                fetch = self._fetches.get(address)
                if fetch is not None and fetch.number == number:
                    yield from self._move(fetch, moved, now)
            case do.ShardOpened(address, sizes):
                self._opening.discard(address)
                yield from self._known(address, sizes, LeafSet.full(len(sizes)), now)
                yield from self._close_unused(address)
            case do.ShardAbsent(address, _):
                self._opening.discard(address)  # parked Wants get their NotYet in time
            case do.LeavesUnsent(address, peer, runs, size, reason, gone):
                unsent = holder.LeavesUnsent(runs, size, reason, gone)
                yield from self._serve(address, self._serving.tell(address, peer, unsent, now))
                if gone:
                    yield from self._check(address, now)
            case do.OfferUnsent(address, reason):
                yield from self._offer(self._offers.handle(offers.OfferUnsent(address, reason), now), now)
            case do.ShardChecked(address, fault):
                yield from self._checked_shard(address, fault, now)
            case do.ShardsFound(addresses):
                self._doubts.found(addresses)
            case do.PeerLost(source, reason):
                self._serving.lose(source)
                for fetch in list(self._fetches.values()):
                    if source in fetch.receiver.sources:
                        yield from self._move(fetch, receiving.SourceLost(source, reason), now)
            case Ticked():
                yield from self._tick(now)

    def _tick(self, now: float) -> Iterator[do.TransferEffect]:
        for fetch in list(self._fetches.values()):
            yield from self._move(fetch, Ticked(), now)
        yield from self._offer(self._offers.handle(Ticked(), now), now)
        if self._room.is_due(now):
            reserve = self._orders.reserve if self._orders.trainer else 0
            yield do.TrimPartials(reserve, frozenset(self._fetches))
        before = self._serving.addresses
        served, late = self._serving.tick(now)
        for address, addressed in served:
            yield from self._serve(address, [addressed])
        for want in late:
            yield do.Tell(want.answer_to, self._job(want.address), self._not_yet(want.address, want, "not here"))
            self._forget_job(want.address)
        for address in before:
            yield from self._close_unused(address)

    # ---- messages

    def _message(
        self, sender: Party, job: Job, message: do.Wire, body: Frames, now: float
    ) -> Iterator[do.TransferEffect]:
        source = Source(sender.host, sender.incarnation)
        if not isinstance(message, TransferOrders) and not is_address(_address(message)):
            return
        match message:
            case TransferOrders():
                if sender.service is Service.WATCHER and sender.host == self._me.host:
                    yield from self._order(sender.incarnation, message, now)
            case Offer():
                yield from self._offered(sender, message, body, now)
            case Want(address=address):
                self._jobs.setdefault(address, job)
                yield from self._want(message, now)
                self._forget_job(address)
            case Leaves(address=address, runs=runs):
                if (fetch := self._fetches.get(address)) is not None and len(runs) == len(body):
                    yield from self._move(fetch, receiving.LeavesArrived(fetch.source(sender), runs, body), now)
            case NotYet(address=address, runs=runs, gone=gone, reason=reason):
                if (fetch := self._fetches.get(address)) is not None:
                    absent = receiving.LeavesAbsent(fetch.source(sender), runs, gone, quote(reason))
                    yield from self._move(fetch, absent, now)
            case Stored(address=address, tags=tags):
                self._changed = True
                self._serving.stop(address, source)
                stored = offers.OfferStored(address, sender.host, tags)
                yield from self._offer(self._offers.handle(stored, now), now)
                yield from self._close_unused(address)
            case Refused(address=address, kind=kind, reason=reason, retry=retry):
                self._changed = True
                refused = offers.OfferRefused(address, sender.host, quote(kind, MOST_KIND), quote(reason), retry)
                yield from self._offer(self._offers.handle(refused, now), now)
                if kind != "corrupt":  # who complains of a leaf asks for it again, or of others
                    self._serving.stop(address, source)
                    yield from self._close_unused(address)

    def _order(self, watcher: Incarnation, orders: TransferOrders, now: float) -> Iterator[do.TransferEffect]:
        if watcher == self._watcher and orders.version < self._orders.version:
            return  # a late one
        if watcher == self._watcher and orders == self._orders:
            return
        self._watcher, self._orders, self._changed = watcher, orders, True
        for offer in orders.offers:
            self._jobs[offer.tag.address] = offer.tag.job
        yield from self._offer(self._offers.handle(offers.OffersOrdered(orders.offers), now), now)
        for address in [address for address, fault in self._faults.items() if fault.kind == "mutated"]:
            if address not in self._offers:
                del self._faults[address]
        fetches = {order.tags[0].address: order for order in orders.fetches if order.tags}
        for address, fetch in list(self._fetches.items()):
            if fetch.order is not None and address not in fetches:
                yield from self._move(fetch, fetch.order_is(None), now)
        for address, order in fetches.items():
            yield from self._fetch(address, order, now)

    def _fetch(self, address: Address, order: FetchOrder, now: float) -> Iterator[do.TransferEffect]:
        fetch = self._fetches.get(address)
        if fetch is None:
            fetch = self._begin(address, order.tags[0].job)
        elif fetch.order == order:
            return
        yield from self._move(fetch, fetch.order_is(order), now)
        yield from self._name_more(fetch)

    def _begin(self, address: Address, job: Job) -> Fetching:
        self._number += 1
        machine = Receiver(self._incoming, self._limits.window, self._patience)
        fetch = Fetching(self._me.host, address, job, self._number, machine)
        self._fetches[address] = fetch
        self._jobs[address] = job
        return fetch

    # ---- fetches

    def _offered(self, sender: Party, offer: Offer, body: Frames, now: float) -> Iterator[do.TransferEffect]:
        address = _address(offer)
        fetch = self._fetches.get(address)
        if not offer.tags or sender.service is not Service.TRANSFER:  # the answer to a Want for the tree
            if fetch is not None:
                yield from self._move(fetch, receiving.TreeArrived(fetch.source(sender), body), now)
            return
        if (refusal := self._refusal(offer, fetch)) is not None:
            yield do.Tell(offer.answer_to, offer.tags[0].job, refusal)
            return
        source = source_of(offer.answer_to)
        fetch = fetch or self._begin(address, offer.tags[0].job)
        for effect in self._move(fetch, fetch.offer(offer.answer_to, offer.tags), now):
            if isinstance(effect, do.OpenPartial) and effect.tree is None:  # the tree is at hand
                yield msgspec.structs.replace(effect, source=source, tree=body)
            else:
                yield effect
        yield from self._move(fetch, receiving.TreeArrived(source, body), now)
        yield from self._name_more(fetch)

    def _refusal(self, offer: Offer, fetch: Fetching | None) -> Refused | None:
        address = offer.tags[0].address
        if len(offer.tags) > self._limits.tags or any(tag.address != address for tag in offer.tags):
            reason = f"expected at most {self._limits.tags} tags of one address"
            return Refused(address=address, kind="unsupported", reason=reason, retry=False)
        copies = sum(fetch.order is None for fetch in self._fetches.values())
        if fetch is None and copies >= self._limits.copies:
            return Refused(address=address, kind="busy", reason=f"{copies} copies are being received")
        return None

    def _move(self, fetch: Fetching, event: receiving.ReceiverEvent, now: float) -> Iterator[do.TransferEffect]:
        """Pass an event to a fetch, translate its effects, and draw the consequences of where it stands then."""
        before, here = fetch.receiver.phase, fetch.receiver.have.count
        self._share_window()
        for effect in fetch.receiver.handle(event, now):
            yield from self._perform(fetch, effect)
        phase = fetch.receiver.phase
        self._changed |= phase is not before
        if isinstance(event, receiving.RoomMissing):
            self._room.lacked(fetch.address, fetch.job, event.lacking, now)
        elif isinstance(event, receiving.PartialOpened | receiving.ShardStood):
            self._room.fits(fetch.address)
        if isinstance(event, receiving.PartialOpened) and phase in {Phase.LEAVES, Phase.NAMING}:
            yield from self._known(fetch.address, fetch.receiver.sizes, fetch.receiver.have, now)
        elif fetch.receiver.have.count != here:
            yield from self._serve(fetch.address, self._serving.landed(fetch.address, now))
        if isinstance(event, receiving.ShardNamed):
            yield from self._named(fetch)
        elif isinstance(event, receiving.NamingFailed):
            fetch.naming_failed()
        if phase is Phase.FAILED:
            for peer, tags in fetch.refuse():
                kind, reason = fetch.receiver.fault, fetch.receiver.reason
                refused = Refused(address=fetch.address, kind=kind, reason=reason, retry=kind != "clash")
                yield do.Tell(peer, tags[0].job, refused)
        if not (fetch.is_wanted or fetch.is_naming) and fetch.receiver.is_quiet:
            yield from self._end(fetch)

    def _share_window(self) -> None:
        """Divide the budget among the fetches that move, so that none waits for the end of another."""
        moving = [fetch for fetch in self._fetches.values() if fetch.receiver.phase is Phase.LEAVES]
        share = max(self._limits.incoming // max(len(moving), 1), CHUNK_BYTES)
        for fetch in moving:
            fetch.receiver.window = min(self._limits.window, share)

    def _known(self, address: Address, sizes: Sizes, have: LeafSet, now: float) -> Iterator[do.TransferEffect]:
        for want in self._serving.open(address, sizes, have):
            yield from self._want(want, now)

    def _named(self, fetch: Fetching) -> Iterator[do.TransferEffect]:
        self._landed += 1
        self._changed = True
        self._faults.pop(fetch.address, None)
        for peer, tags in fetch.named():
            yield do.Tell(peer, tags[0].job, Stored(address=fetch.address, tags=tags))
        yield from self._name_more(fetch)

    def _name_more(self, fetch: Fetching) -> Iterator[do.TransferEffect]:
        """Name a shard that is whole under tags that came later."""
        if fetch.receiver.phase in {Phase.NAMING, Phase.DONE} and (namings := fetch.begin_naming()):
            yield do.NameShard(fetch.address, fetch.number, namings)

    def _end(self, fetch: Fetching) -> Iterator[do.TransferEffect]:
        if self._fetches.get(fetch.address) is not fetch:
            return
        fetch.receiver.close()
        del self._fetches[fetch.address]
        self._changed = True
        if fetch.receiver.phase is not Phase.DONE:  # the partial stays, but nobody fills it
            for peer in self._serving.close(fetch.address):
                stopped = NotYet(address=fetch.address, reason="is not being received any more")
                yield do.Tell(peer, fetch.job, stopped)
        yield from self._close_unused(fetch.address)

    def _perform(self, fetch: Fetching, effect: receiving.ReceiverEffect) -> Iterator[do.TransferEffect]:
        address, number = fetch.address, fetch.number
        match effect:
            case receiving.OpenPartial(source, tree):
                reserve = None
                if fetch.order is None:
                    orders = self._orders
                    unknown = orders.trainer and not orders.reserve
                    reserve = do.Reserve(orders.reserve, orders.reserve_inodes, alike=unknown)
                yield do.OpenPartial(address, number, source, tree, reserve)
            case receiving.AskTree(source):
                yield from self._ask(fetch, source, Want(address=address, answer_to=self._me, tree=True))
            case receiving.AskLeaves(source, runs, credit):
                want = Want(address=address, answer_to=self._me, runs=runs, credit=credit)
                yield from self._ask(fetch, source, want)
            case receiving.StoreLeaves(source, runs, body, size):
                yield do.StoreLeaves(address, number, source, runs, body, size)
            case receiving.Complain(source, reason):
                if (peer := fetch.peer(source)) is not None:
                    yield do.Tell(peer, fetch.job, Refused(address=address, kind="corrupt", reason=reason))
            case receiving.NameShard():
                if namings := fetch.begin_naming():
                    yield do.NameShard(address, number, namings)

    def _ask(self, fetch: Fetching, source: Source, want: Want) -> Iterator[do.TransferEffect]:
        if source.backup:
            local = msgspec.structs.replace(want, answer_to=self._local, backup=source.backup)
            yield do.TellUploader(fetch.job, local)
        elif (peer := fetch.peer(source)) is not None:
            yield do.Tell(peer, fetch.job, want)

    # ---- serves

    def _want(self, want: Want, now: float) -> Iterator[do.TransferEffect]:
        address, peer = want.address, want.answer_to
        fault = self._faults.get(address)
        if fault is not None:
            reason = f"its copy is gone or corrupt: {fault.reason}"
            yield do.Tell(peer, self._job(address), NotYet(address=address, runs=want.runs, gone=True, reason=reason))
            return
        if not (want.runs or want.tree or want.credit):
            self._serving.stop(address, source_of(peer))
            yield from self._close_unused(address)
            return
        if address not in self._serving:
            fetch = self._fetches.get(address)
            if not self._serving.park(want, now):
                yield do.Tell(peer, self._job(address), self._not_yet(address, want, "too many peers are waiting"))
            elif address not in self._opening and (fetch is None or fetch.receiver.phase is Phase.DONE):
                self._opening.add(address)
                yield do.OpenShard(address)
            return
        if want.tree and self._may_send_tree(want, now):
            yield do.SendOffer(peer, self._job(address), address, ())
        served = self._serving.want(want, now)
        if served is None:
            yield do.Tell(peer, self._job(address), self._not_yet(address, want, "no such leaves, or too many peers"))
            return
        yield from self._serve(address, served)
        asked = offers.PeerAsked(address, peer.host, self._serving.sent(address, peer))
        yield from self._offer(self._offers.handle(asked, now), now)

    def _may_send_tree(self, want: Want, now: float) -> bool:
        """A tree may be large: who asks for it again and again gets it now and then."""
        key = (want.address, source_of(want.answer_to))
        if now < self._trees.get(key, float("-inf")) + self._patience.repeat:
            return False
        if len(self._trees) >= self._limits.peers:
            self._trees = {known: at for known, at in self._trees.items() if now < at + self._patience.repeat}
        self._trees[key] = now
        return True

    def _forget_job(self, address: Address) -> None:
        """Peers may ask for what never was: nothing stays of that."""
        if address in self._serving or address in self._fetches or address in self._opening or address in self._offers:
            return
        if not self._serving.is_wanted(address):
            self._jobs.pop(address, None)

    def _serve(self, address: Address, served: Iterable[Addressed]) -> Iterator[do.TransferEffect]:
        for peer, effect in served:
            match effect:
                case holder.SendLeaves(runs, size):
                    yield do.ServeLeaves(peer, self._job(address), address, runs, size)
                case holder.SayNotYet(runs, gone, reason):
                    message = NotYet(address=address, runs=runs, gone=gone, reason=reason)
                    yield do.Tell(peer, self._job(address), message)
                case holder.ForgetPeer():
                    yield do.ForgetPeer(peer)

    def _close_unused(self, address: Address) -> Iterator[do.TransferEffect]:
        """Close a shard's files when neither a fetch nor a peer needs them, so that the watcher may drop it."""
        if address in self._fetches or self._serving.is_wanted(address):
            return
        self._serving.close(address)
        if address not in self._offers:
            self._jobs.pop(address, None)
        if address not in self._opening:
            yield do.Close(address)

    def _poke(self, now: float) -> Iterator[do.TransferEffect]:
        """Let those go on that waited for a budget."""
        if self._incoming.free > 0:
            starved = [fetch for fetch in self._fetches.values() if fetch.receiver.is_starved]
            for fetch in sorted(starved, key=lambda one: (one.order is None, one.receiver.have_bytes)):
                if self._incoming.free > 0:
                    yield from self._move(fetch, Ticked(), now)
        if self._outgoing.free > 0:
            for address, addressed in self._serving.poke(now):
                yield from self._serve(address, [addressed])

    def _not_yet(self, address: Address, want: Want, reason: str) -> NotYet:
        return NotYet(address=address, runs=want.runs, reason=reason)

    def _job(self, address: Address) -> Job:
        return self._jobs.get(address, do.NO_JOB)

    # ---- offers and checks

    def _offer(self, wanted: Iterable[offers.OffersEffect], now: float) -> Iterator[do.TransferEffect]:
        for effect in wanted:
            match effect:
                case offers.SendOffer(peer, address, tags):
                    self._changed = True
                    yield do.SendOffer(peer, tags[0].job, address, tags)
                case offers.CheckShard(address):
                    yield from self._check(address, now)

    def _check(self, address: Address, now: float) -> Iterator[do.TransferEffect]:
        """Hash the own shard again, but not again and again for a peer whose memory is bad."""
        before = now - self._limits.checked_gap
        for old in list(takewhile(lambda one: self._checked[one] <= before, self._checked)):  # oldest first
            del self._checked[old]
        if address in self._faults or address in self._checked:
            return
        if len(self._checked) >= MOST_STRANGE and address not in self._serving and address not in self._offers:
            return  # nobody gets a byte of it from us now
        self._checked[address] = now
        yield do.CheckShard(address)

    def _checked_shard(self, address: Address, fault: str, now: float) -> Iterator[do.TransferEffect]:
        self._doubts.checked(address)
        self._changed |= bool(fault)
        tags = self._offers.tags_of(address)
        yield from self._offer(self._offers.handle(offers.ShardChecked(address, fault), now), now)
        if not fault:
            return
        self._faults[address] = Fault(
            kind="mutated" if tags else "corrupt",
            reason=fault,
            save=tags[0].save if tags else None,
            key=tags[0].key if tags else None,
            address=address,
        )
        for peer in self._serving.close(address):
            gone = NotYet(address=address, gone=True, reason=f"its copy is gone or corrupt: {fault}")
            yield do.Tell(peer, self._job(address), gone)
        yield from self._close_unused(address)


def _address(message: do.Addressed) -> Address:
    """Return the shard that a message speaks of."""
    return message.tags[0].address if isinstance(message, Offer) and message.tags else message.address
