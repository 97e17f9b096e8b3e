"""Where leaves come from: a peer's transfer, or the local uploader that reads a backup."""

import msgspec

from checkpoint_replicator.ids import Host, Incarnation
from checkpoint_replicator.records import Peer

__all__ = ["Source", "source_of"]


class Source(msgspec.Struct, frozen=True, order=True):
    """One holder in one life. `backup` names the backup that the local uploader is to read; empty for a peer."""

    host: Host
    incarnation: Incarnation = Incarnation("")
    backup: str = ""

    def __str__(self) -> str:
        return f"backup {self.backup}" if self.backup else self.host

    @property
    def kind(self) -> str:
        """`peer` or `backup`, as reports and metrics count bytes."""
        return "backup" if self.backup else "peer"


def source_of(peer: Peer) -> Source:
    """Return a peer as a source."""
    return Source(peer.host, peer.incarnation)
