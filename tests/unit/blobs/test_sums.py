import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoint_replicator.blobs.sums import compute_sum, forget_sum, keep_sum, kept_sum


@pytest.fixture
def base(tmp_path: Path) -> Iterator[int]:
    folder = os.open(tmp_path, os.O_RDONLY)
    yield folder
    os.close(folder)


def test_a_kept_sum_counts_for_the_very_file_only(base: int, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    about = (tmp_path / "a").stat()
    keep_sum(base, ("a",), about, "sum")
    assert kept_sum(base, ("a",), about) == "sum"
    (tmp_path / "b").write_bytes(b"2")
    assert kept_sum(base, ("a",), (tmp_path / "b").stat()) is None
    assert kept_sum(base, ("b",), about) is None


def test_a_torn_note_is_no_sum(base: int, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    about = (tmp_path / "a").stat()
    keep_sum(base, ("a",), about, "sum")
    for torn in (b"", b"\xff\xff", b"12"):
        (tmp_path / ".blobs" / "sums" / "a").write_bytes(torn)
        assert kept_sum(base, ("a",), about) is None


def test_a_forgotten_sum_leaves_no_empty_folders(base: int, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    about = (tmp_path / "a").stat()
    keep_sum(base, ("j", "d", "a"), about, "sum")
    keep_sum(base, ("j", "b"), about, "sum")
    forget_sum(base, ("j", "d", "a"))
    forget_sum(base, ("j", "d", "a"))
    assert [path.name for path in (tmp_path / ".blobs" / "sums" / "j").iterdir()] == ["b"]
    forget_sum(base, ("j", "b"))
    assert list((tmp_path / ".blobs" / "sums").iterdir()) == []


def test_a_sum_is_computed_over_the_whole_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"123456789")
    file = os.open(tmp_path / "a", os.O_RDONLY)
    try:
        assert compute_sum(file) == "4waSgw=="
    finally:
        os.close(file)
