import ctypes
import mmap

import pytest

from checkpoint_replicator.buffer import new_buffer


@pytest.mark.parametrize("size", [0, 1, 4096, 5000, 1 << 20])
def test_a_buffer_has_its_size_and_is_writable(size: int) -> None:
    buffer = new_buffer(size)
    assert len(buffer) == size
    buffer[:] = b"x" * size
    assert bytes(buffer) == b"x" * size


def test_a_buffer_begins_a_page() -> None:
    view = (ctypes.c_char * 10).from_buffer(new_buffer(10))
    assert ctypes.addressof(view) % mmap.PAGESIZE == 0
