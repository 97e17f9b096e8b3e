"""Do the same for many things in a few threads; the first error ends it."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

__all__ = ["each"]

Item = TypeVar("Item")


def each(items: Iterable[Item], work: Callable[[Item], None], threads: int) -> None:
    """Call `work` for every item, at most `threads` at a time, begun in the order of the items.

    Raises what the first failing call raised, after the others at work came back; further items are not begun.
    """
    left = iter(items)
    lock = threading.Lock()
    failed = threading.Event()

    def run() -> None:
        while not failed.is_set():
            with lock:
                try:
                    item = next(left)
                except StopIteration:
                    return
            try:
                work(item)
            except BaseException:
                failed.set()
                raise

    if threads <= 1:
        run()
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="store") as pool:
        for future in [pool.submit(copy_context().run, run) for _ in range(threads)]:
            future.result()
