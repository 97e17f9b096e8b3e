"""Pure: replication. Every ordered shard is offered to every ordered peer until the peer stored it.

Only the receiver's Stored counts. An Offer may be lost, so it is repeated with growing delays while nothing is heard;
while the peer asks for leaves nothing needs repeating. A Refused that may be tried again (no room) is tried again.
"""

from collections.abc import Iterator, Mapping

import msgspec

from checkpoint_replicator.ids import Address, Host
from checkpoint_replicator.machine import Ticked
from checkpoint_replicator.messages import Copy, CopyState, OfferOrder
from checkpoint_replicator.records import Peer
from checkpoint_replicator.save import Tag
from checkpoint_transfer.patience import Patience

__all__ = [
    "CheckShard",
    "OfferRefused",
    "OfferStored",
    "OfferUnsent",
    "Offers",
    "OffersEffect",
    "OffersEvent",
    "OffersOrdered",
    "PeerAsked",
    "SendOffer",
    "ShardChecked",
]


class OffersOrdered(msgspec.Struct, frozen=True):
    """All offers that are wanted now; others stop."""

    offers: tuple[OfferOrder, ...]


class PeerAsked(msgspec.Struct, frozen=True):
    """A peer asked for leaves or the tree of a shard; `sent` bytes of it went there so far."""

    address: Address
    host: Host
    sent: int


class OfferStored(msgspec.Struct, frozen=True):
    """A peer verified and named the shard under these tags."""

    address: Address
    host: Host
    tags: tuple[Tag, ...]


class OfferRefused(msgspec.Struct, frozen=True):
    """A peer said no."""

    address: Address
    host: Host
    kind: str
    reason: str
    retry: bool


class OfferUnsent(msgspec.Struct, frozen=True):
    """The shard cannot be offered: it is not on the ramdisk (any more)."""

    address: Address
    reason: str


class ShardChecked(msgspec.Struct, frozen=True):
    """The shard on the own ramdisk was hashed again; `fault` says how it differs from its tree, empty: it does not."""

    address: Address
    fault: str


class SendOffer(msgspec.Struct, frozen=True):
    """Send an Offer with the shard's tree."""

    peer: Peer
    address: Address
    tags: tuple[Tag, ...]


class CheckShard(msgspec.Struct, frozen=True):
    """A peer found bytes that differ from the tree: hash the shard on the own ramdisk again."""

    address: Address


OffersEvent = OffersOrdered | PeerAsked | OfferStored | OfferRefused | OfferUnsent | ShardChecked | Ticked
OffersEffect = SendOffer | CheckShard


class _Offer:
    """One shard for one peer."""

    __slots__ = ("attempts", "due", "peer", "reason", "sent", "state", "tags")

    def __init__(self, peer: Peer, tags: tuple[Tag, ...], due: float) -> None:
        self.peer = peer
        self.tags = tags
        self.due: float | None = due
        self.state = CopyState.OFFERED
        self.reason = ""
        self.attempts = 0
        self.sent = 0


class Offers:
    """All offers of this node.

    Attributes:
        addresses: what is offered, stored ones too.
    """

    def __init__(self, patience: Patience) -> None:
        """Start without orders."""
        self._patience = patience
        self._offers: dict[tuple[Address, Host], _Offer] = {}
        self.addresses: frozenset[Address] = frozenset()

    def handle(self, event: OffersEvent, now: float) -> list[OffersEffect]:
        """Take one event."""
        match event:
            case OffersOrdered(offers):
                self._order(offers, now)
            case PeerAsked(address, host, sent):
                if (offer := self._offers.get((address, host))) is not None:
                    offer.sent = sent
                    if offer.state in {CopyState.OFFERED, CopyState.SENDING, CopyState.REFUSED}:
                        offer.state, offer.reason, offer.attempts = CopyState.SENDING, "", 0
                        offer.due = now + self._patience.answer
            case OfferStored(address, host, tags):
                if (offer := self._offers.get((address, host))) is not None and set(offer.tags) <= set(tags):
                    offer.state, offer.reason, offer.attempts = CopyState.STORED, "", 0
                    offer.due = now + self._patience.renewed
            case OfferRefused(address, host, kind, reason, retry):
                return self._refuse(address, host, kind, reason, retry=retry, now=now)
            case OfferUnsent(address, reason):
                for offer in self._of(address):
                    offer.reason = reason
            case ShardChecked(address, fault):
                for offer in self._of(address):
                    if fault:
                        offer.state, offer.reason, offer.due = CopyState.MUTATED, fault, None
            case Ticked():
                pass
        return list(self._due(now))

    def next_deadline(self) -> float | None:
        """When the next Offer is to be sent."""
        return min((offer.due for offer in self._offers.values() if offer.due is not None), default=None)

    @property
    def copies(self) -> tuple[Copy, ...]:
        """How every ordered offer stands."""
        return tuple(
            Copy(address=address, host=host, state=offer.state, reason=offer.reason, sent=offer.sent)
            for (address, host), offer in sorted(self._offers.items())
        )

    def __contains__(self, address: Address) -> bool:
        """Tell whether the shard is offered to anyone, or was and is stored there."""
        return address in self.addresses

    def tags_of(self, address: Address) -> tuple[Tag, ...]:
        """Every tag under which the shard is offered."""
        return tuple(sorted({tag for offer in self._of(address) for tag in offer.tags}))

    def _of(self, address: Address) -> Iterator[_Offer]:
        return (offer for (offered, _), offer in self._offers.items() if offered == address)

    def _order(self, orders: tuple[OfferOrder, ...], now: float) -> None:
        wanted = _by_peer(orders)
        for key in [key for key in self._offers if key not in wanted]:
            del self._offers[key]
        for key, (peer, tags) in wanted.items():
            known = self._offers.get(key)
            if known is None or known.tags != tags:
                self._offers[key] = _Offer(peer, tags, now)
            elif known.peer != peer:
                sent = known.sent
                self._offers[key] = offer = _Offer(peer, tags, now)  # another life of the peer: it is asked anew
                offer.sent = sent
                if known.state is CopyState.STORED or known.state is CopyState.MUTATED:
                    offer.state, offer.reason = known.state, known.reason
                    offer.due = None if known.state is CopyState.MUTATED else now
        self.addresses = frozenset(address for address, _ in self._offers)

    def _refuse(
        self, address: Address, host: Host, kind: str, reason: str, *, retry: bool, now: float
    ) -> list[OffersEffect]:
        offer = self._offers.get((address, host))
        effects: list[OffersEffect] = [CheckShard(address)] if kind == "corrupt" else []
        if offer is None or offer.state is CopyState.MUTATED:
            return effects
        offer.state, offer.reason = CopyState.REFUSED, f"{kind}: {reason}"
        offer.attempts += 1
        offer.due = now + self._patience.backoff(offer.attempts) if retry else None
        return effects

    def _due(self, now: float) -> Iterator[OffersEffect]:
        for (address, _), offer in self._offers.items():
            if offer.due is None or now < offer.due:
                continue
            offer.attempts += 1
            offer.due = now + max(self._patience.backoff(offer.attempts), self._patience.repeat)
            if offer.state is CopyState.SENDING:
                offer.state = CopyState.OFFERED  # it asked for nothing more: begin again where it is
            yield SendOffer(offer.peer, address, offer.tags)


def _by_peer(orders: tuple[OfferOrder, ...]) -> Mapping[tuple[Address, Host], tuple[Peer, tuple[Tag, ...]]]:
    """Join orders with one address and peer: one Offer carries all tags."""
    joined: dict[tuple[Address, Host], tuple[Peer, tuple[Tag, ...]]] = {}
    for order in orders:
        for peer in order.to:
            key = (order.tag.address, peer.host)
            tags = joined[key][1] if key in joined else ()
            joined[key] = (peer, tuple(sorted({*tags, order.tag})))
    return joined
