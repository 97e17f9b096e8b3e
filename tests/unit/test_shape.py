import pytest

from checkpoint_replicator.shape import Shape


def shape(nodes: int = 4, workers: int = 1, d: int = 1, framework: str = "pytorch") -> Shape:
    return Shape(nodes, workers, d, framework)


def test_equal_shapes_fit() -> None:
    assert shape().fits(shape())


@pytest.mark.parametrize("other", [shape(nodes=8), shape(workers=2), shape(framework="pytorch.distributed")])
def test_without_data_parallelism_any_difference_does_not_fit(other: Shape) -> None:
    assert not shape().fits(other)


def test_with_data_parallelism_the_columns_count() -> None:
    assert shape(nodes=4, d=2).fits(shape(nodes=8, d=4))
    assert not shape(nodes=4, d=2).fits(shape(nodes=8, d=2))


def test_a_d_that_does_not_divide_the_nodes_fits_only_itself() -> None:
    assert shape(nodes=3, d=2).fits(shape(nodes=3, d=2))
    assert not shape(nodes=3, d=2).fits(shape(nodes=2, d=2))


def test_twins_are_the_ranks_of_one_column() -> None:
    assert shape(nodes=6, d=2).twins(1) == (1, 4)
    assert shape(nodes=3).twins(1) == (1,)


def test_a_shape_reads_well() -> None:
    assert str(shape(nodes=4, workers=2, d=2)) == "4 nodes x 2 workers, d=2, pytorch"
    assert str(shape()) == "4 nodes x 1 worker, pytorch"
    assert str(shape(nodes=1, workers=3)) == "1 node x 3 workers, pytorch"
