"""Pure: who wants a fetch, and under which tags: the watcher's order, and peers that offered their shard."""

from checkpoint_replicator.ids import Address, Host, Job
from checkpoint_replicator.messages import Fetch, FetchOrder, FetchState, Party, Service
from checkpoint_replicator.records import Peer
from checkpoint_replicator.save import Tag
from checkpoint_transfer.effects import Naming
from checkpoint_transfer.receiver import Phase, Receiver
from checkpoint_transfer.receiving import SourcesChanged
from checkpoint_transfer.source import Source, source_of

__all__ = ["Fetching"]


class Fetching:
    """A receiver, and for whom it works."""

    def __init__(self, here: Host, address: Address, job: Job, number: int, receiver: Receiver) -> None:
        """Take the own host, what is fetched, and the number that answers of the disk must carry."""
        self.address = address
        self.job = job
        self.number = number
        self.receiver = receiver
        self.order: FetchOrder | None = None
        self._here = here
        self._offered: dict[Source, tuple[Peer, tuple[Tag, ...]]] = {}
        self._peers: dict[Source, Peer] = {}
        self._naming: dict[Source, tuple[Tag, ...]] | None = None
        self._ordered_naming: tuple[Tag, ...] = ()
        self._named: tuple[Tag, ...] = ()

    @property
    def is_wanted(self) -> bool:
        """Whether an order or an offer stands behind it."""
        return self.order is not None or bool(self._offered)

    @property
    def report(self) -> Fetch:
        """How it stands, for the watcher."""
        receiver = self.receiver
        state, reason = FetchState.FETCHING, ""
        if receiver.phase is Phase.DONE and self.order is not None and set(self.order.tags) <= set(self._named):
            state = FetchState.DONE
        elif receiver.reason:
            state, reason = FetchState.FAILED, receiver.reason
        size = self.order.tags[0].size if self.order is not None else 0
        return Fetch(
            address=self.address,
            state=state,
            have=size if state is FetchState.DONE else receiver.have_bytes,
            size=size,
            by_source=dict(receiver.by_source),
            reason=reason,
        )

    def order_is(self, order: FetchOrder | None) -> SourcesChanged:
        """Take another order, or None: it is not ordered any more."""
        self.order = order
        return self._sources()

    def offer(self, peer: Peer, tags: tuple[Tag, ...]) -> SourcesChanged:
        """Take a peer's Offer; another life of the peer takes the place of the one before."""
        for source in [source for source in self._offered if source.host == peer.host]:
            del self._offered[source]
        self._offered[source_of(peer)] = (peer, tags)
        return self._sources()

    def _sources(self) -> SourcesChanged:
        holders = self.order.holders if self.order is not None else ()
        peers = {source_of(peer): peer for peer in holders if peer.host != self._here}
        peers |= {source: peer for source, (peer, _) in self._offered.items()}
        self._peers = peers
        backup = self.order.backup if self.order is not None else None
        last = (Source(self._here, backup=backup),) if backup else ()
        return SourcesChanged((*peers, *last))

    def peer(self, source: Source) -> Peer | None:
        """Return how to reach a source; None for the backup and for who is no source any more."""
        return self._peers.get(source)

    def source(self, sender: Party) -> Source:
        """Return the source that a message's sender is: the local uploader is the backup."""
        if sender.service is Service.UPLOADER and sender.host == self._here:
            return next((source for source in self.receiver.sources if source.backup), Source(sender.host))
        return Source(sender.host, sender.incarnation)

    def refuse(self) -> list[tuple[Peer, tuple[Tag, ...]]]:
        """Take leave of those who offered; returns those who have not been told of their corrupt leaves already."""
        told = [
            (peer, tags) for source, (peer, tags) in self._offered.items() if not self.receiver.is_complained(source)
        ]
        self._offered.clear()
        return told

    def begin_naming(self) -> tuple[Naming, ...]:
        """Return the tags that the shard is to be named under now; empty: all are named, or a naming is under way."""
        ordered = self.order.tags if self.order is not None else ()
        if self._naming is not None or (not self._offered and set(ordered) <= set(self._named)):
            return ()
        self._naming = {source: tags for source, (_, tags) in self._offered.items()}
        self._ordered_naming = ordered
        offered = tuple(sorted({tag for tags in self._naming.values() for tag in tags} - set(ordered)))
        own = self.order.own if self.order is not None else False
        namings = (Naming(ordered, own), Naming(offered, own=False))
        return tuple(naming for naming in namings if naming.tags)

    @property
    def is_naming(self) -> bool:
        """Whether the disk is giving names now."""
        return self._naming is not None

    def naming_failed(self) -> None:
        """End a naming that gave no name."""
        self._naming = None

    def is_awaited(self, sender: Party) -> bool:
        """Tell whether the sender is a source of this fetch."""
        return self.source(sender) in self.receiver.sources

    def named(self) -> list[tuple[Peer, tuple[Tag, ...]]]:
        """End a naming; returns whose offers were stored, with the tags that they offered."""
        naming, self._naming = self._naming or {}, None
        self._named = tuple({*self._named, *self._ordered_naming})
        stored: list[tuple[Peer, tuple[Tag, ...]]] = []
        for source, tags in naming.items():
            known = self._offered.get(source)
            if known is None:
                continue
            stored.append((known[0], tags))
            if set(known[1]) <= set(tags):
                del self._offered[source]
        return stored
