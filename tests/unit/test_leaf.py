from blake3 import blake3

from checkpoint_replicator import leaf


def test_an_empty_file_has_no_leaf() -> None:
    assert leaf.count(0) == 0


def test_the_last_leaf_is_the_rest() -> None:
    size = 2 * leaf.LEAF_SIZE + 5
    assert leaf.count(size) == 3
    assert leaf.span(size, 0) == (0, leaf.LEAF_SIZE)
    assert leaf.span(size, 2) == (2 * leaf.LEAF_SIZE, 5)


def test_a_file_of_whole_leaves_has_no_empty_last_one() -> None:
    assert leaf.count(2 * leaf.LEAF_SIZE) == 2
    assert leaf.span(2 * leaf.LEAF_SIZE, 1) == (leaf.LEAF_SIZE, leaf.LEAF_SIZE)


def test_a_digest_is_the_blake3_of_the_bytes() -> None:
    assert leaf.digest(memoryview(b"abc")) == blake3(b"abc").digest()
    assert len(leaf.digest(b"")) == leaf.DIGEST_SIZE
