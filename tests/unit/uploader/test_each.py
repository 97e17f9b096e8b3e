import threading

import pytest

from checkpoint_uploader.each import each


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_every_item_is_worked_on_once(threads: int) -> None:
    seen: list[int] = []
    each(range(20), seen.append, threads)
    assert sorted(seen) == list(range(20))


def test_no_more_than_so_many_threads_work() -> None:
    names: set[str] = set()
    each(range(50), lambda _: names.add(threading.current_thread().name), 2)
    assert len(names) <= 2


@pytest.mark.parametrize("threads", [1, 2])
def test_the_first_error_comes_out_and_ends_the_work(threads: int) -> None:
    seen: list[int] = []

    def work(item: int) -> None:
        if item == 3:
            raise ValueError("three")
        seen.append(item)

    with pytest.raises(ValueError, match="three"):
        each(iter(range(1000)), work, threads)
    assert len(seen) < 1000
