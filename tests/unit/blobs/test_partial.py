import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoint_replicator.blobs.partial import new_partial, sweep


@pytest.fixture
def base(tmp_path: Path) -> Iterator[int]:
    folder = os.open(tmp_path, os.O_RDONLY)
    yield folder
    os.close(folder)


def left(root: Path) -> list[Path]:
    return list((root / ".blobs" / "partial").iterdir())


def test_a_partial_is_gone_when_its_writer_is_done(base: int, tmp_path: Path) -> None:
    with new_partial(base) as partial:
        os.write(partial.file, b"1")
        assert len(left(tmp_path)) == 1
    assert left(tmp_path) == []


def test_what_a_dead_writer_left_is_swept(base: int, tmp_path: Path) -> None:
    folder = tmp_path / ".blobs" / "partial"
    folder.mkdir(parents=True)
    (folder / "0123").write_bytes(b"half")
    assert sweep(base) == 1
    assert left(tmp_path) == []


def test_what_a_living_writer_writes_is_not_swept(base: int, tmp_path: Path) -> None:
    with new_partial(base):
        assert sweep(base) == 0
        assert len(left(tmp_path)) == 1


def test_a_root_where_nothing_was_written_has_nothing_to_sweep(base: int) -> None:
    assert sweep(base) == 0
