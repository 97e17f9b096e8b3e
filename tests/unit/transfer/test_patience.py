from checkpoint_replicator.times import Times
from checkpoint_transfer.patience import Patience, patience_of


def test_delays_double_up_to_the_longest() -> None:
    patience = Patience(retry_least=0.5, retry_most=3.0)
    assert [patience.backoff(failures) for failures in (1, 2, 3, 4, 5000)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_the_waits_follow_the_table_of_times() -> None:
    patience = patience_of(Times(want_parked=1.5, acknowledged=4.0, stuck=7.0))
    assert (patience.parked, patience.answer, patience.unacknowledged) == (1.5, 4.0, 8.0)
    assert (patience.stuck, patience.afresh) == (21.0, 7.0)
