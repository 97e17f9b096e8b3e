"""How long the transfer waits for whom; all in seconds, taken from the one table of times."""

import msgspec

from checkpoint_replicator.times import Times

__all__ = ["Patience", "patience_of"]


class Patience(msgspec.Struct, frozen=True):
    """The waits of fetches, serves and offers.

    Attributes:
        answer: a source that was asked and sent nothing for this long is asked again, or another one is.
        tries: so often in a row a source may miss its answer before it is given up.
        dry: a holder that is itself receiving may say NotYet for this long before others, the backup too, are asked.
        stuck: a holder that has had nothing new for this long is given up.
        parked: a Want for leaves that are not there yet waits this long for them, then NotYet.
        unacknowledged: leaves sent and not acknowledged for this long are forgotten; the receiver asks again.
        silent: a peer that asked for nothing more for this long is forgotten.
        repeat: an Offer that nothing was heard of is not repeated before this long.
        retry_least: first delay before an offer or a failed source is tried again; it doubles.
        retry_most: longest such delay.
        afresh: a failed fetch that is still ordered starts again after this long.
        renewed: a stored offer that is still ordered is offered again after this long.
    """

    answer: float = 5.0
    tries: int = 3
    dry: float = 4.0
    stuck: float = 30.0
    parked: float = 2.0
    unacknowledged: float = 10.0
    silent: float = 60.0
    repeat: float = 1.0
    retry_least: float = 0.2
    retry_most: float = 5.0
    afresh: float = 10.0
    renewed: float = 300.0

    def backoff(self, failures: int) -> float:
        """Return the delay after so many failures in a row (1 and more)."""
        return min(self.retry_least * 2.0 ** min(failures - 1, 16), self.retry_most)


def patience_of(times: Times) -> Patience:
    """Take the transfer's waits from the table of times."""
    return Patience(
        answer=times.acknowledged,
        dry=2 * times.want_parked,
        stuck=3 * times.stuck,
        parked=times.want_parked,
        unacknowledged=2 * times.acknowledged,
        silent=3 * times.lost,
        repeat=times.orders,
        retry_least=times.retry_least,
        retry_most=times.retry_most,
        afresh=times.stuck,
    )
