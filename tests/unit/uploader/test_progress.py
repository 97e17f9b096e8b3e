import pytest

from checkpoint_uploader.progress import CancelledError, Progress


def test_bytes_are_counted_and_any_sign_of_life_is_a_beat() -> None:
    counted: list[int] = []
    progress = Progress(counted.append)
    progress.moved()
    progress.moved(5)
    progress.moved(7)
    assert (progress.beats, progress.sent, counted) == (3, 12, [5, 7])


def test_after_cancel_the_next_move_raises() -> None:
    progress = Progress()
    progress.cancel()
    with pytest.raises(CancelledError):
        progress.moved(1)
    assert progress.sent == 0
