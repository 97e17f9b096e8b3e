from checkpoint_transfer.buffers import Buffers

SIZE = 1 << 20


def test_a_buffer_comes_back_when_its_last_view_dies() -> None:
    buffers = Buffers(SIZE, 2)
    view = buffers.lend(SIZE)
    part = view[:10]
    del view
    assert buffers.free == 0
    del part
    assert buffers.free == 1


def test_a_buffer_that_is_lent_is_not_lent_again() -> None:
    buffers = Buffers(SIZE, 2)
    one, two = buffers.lend(SIZE), buffers.lend(SIZE)
    one[:3] = b"one"
    two[:3] = b"two"
    assert bytes(one[:3]) == b"one"


def test_no_more_are_kept_than_wished() -> None:
    buffers = Buffers(SIZE, 1)
    views = [buffers.lend(SIZE) for _ in range(3)]
    views.clear()
    assert buffers.free == 1


def test_a_view_has_the_size_asked_for() -> None:
    buffers = Buffers(SIZE, 1)
    assert [len(buffers.lend(size)) for size in (0, 5, SIZE - 1, SIZE, 2 * SIZE)] == [0, 5, SIZE - 1, SIZE, 2 * SIZE]
