import errno
import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from blake3 import blake3

from checkpoint_replicator.errors import BusyError, CorruptError, UnsupportedError
from checkpoint_replicator.hashing import Difference, Watch, file_digest, fingerprint, hash_shard, verify_shard
from checkpoint_replicator.tree import Directory, File, Tree

MIB = 1 << 20


def fill(path: Path, size: int, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(blake3(b"%d" % seed).digest(length=size))
    return path


def shard(root: Path) -> Path:
    fill(root / "big", 20 * MIB + 7, 1)
    fill(root / "sub" / "small", 100, 2)
    fill(root / "sub" / "empty", 0)
    (root / "void").mkdir()
    return root


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_file_is_one_entry_with_the_digests_of_its_leaves(tmp_path: Path, threads: int) -> None:
    data = fill(tmp_path / "f", 33 * MIB + 1).read_bytes()
    tree = hash_shard(tmp_path / "f", threads)
    assert tree.entries == (
        File(b".", len(data), b"".join(blake3(data[at : at + MIB]).digest() for at in range(0, len(data), MIB))),
    )


@pytest.mark.parametrize("threads", [1, 4])
def test_a_directory_lists_empty_directories_and_empty_files(tmp_path: Path, threads: int) -> None:
    tree = hash_shard(shard(tmp_path / "s"), threads)
    assert [entry.path for entry in tree.entries] == [b"big", b"sub", b"sub/empty", b"sub/small", b"void"]
    assert isinstance(tree.entries[4], Directory)
    assert tree.files[1] == File(b"sub/empty", 0, b"")


def test_names_are_bytes(tmp_path: Path) -> None:
    for name in (b"new\nline", b"\xff\xfe", b"50%", b"a b"):
        (tmp_path / os.fsdecode(name)).write_bytes(name)
    tree = hash_shard(tmp_path)
    assert {file.path for file in tree.files} == {b"new\nline", b"\xff\xfe", b"50%", b"a b"}
    assert Tree.parse(tree.encode()) == tree


def test_ten_thousand_small_files(tmp_path: Path) -> None:
    for number in range(10_000):
        (tmp_path / f"{number:05}").write_bytes(b"%d" % number)
    tree = hash_shard(tmp_path)
    assert len(tree.files) == tree.leaves == 10_000
    assert tree.files[77].digests == blake3(b"77").digest()
    assert verify_shard(tmp_path, tree).is_none


def test_a_link_in_a_save_is_unsupported_by_name(tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to("x")
    with pytest.raises(UnsupportedError, match="latest"):
        hash_shard(tmp_path)


def test_a_save_with_too_many_entries_is_unsupported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("checkpoint_replicator.hashing.MAX_ENTRIES", 4)
    with pytest.raises(UnsupportedError, match="5 entries"):
        hash_shard(shard(tmp_path))


def test_a_file_that_may_not_be_opened_is_not_called_corrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = shard(tmp_path)
    real = os.open

    def refuse(path: str | bytes | Path, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == b"big":
            raise OSError(errno.EMFILE, "Too many open files")
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(OSError, match="Too many"):
        hash_shard(root)


class Meddler:
    """Changes the shard at the first bytes that were hashed: in the middle, whatever the threads do."""

    def __init__(self, change: object) -> None:
        self.change = change
        self.lock = threading.Lock()
        self.done = False

    def __call__(self, moved: int) -> None:
        assert moved > 0
        with self.lock:
            if not self.done:
                self.done = True
                assert callable(self.change)
                self.change()


def change_truncate(root: Path) -> None:
    os.truncate(root / "big", 5)


def change_grow(root: Path) -> None:
    with (root / "big").open("ab") as file:
        file.write(b"x")


def change_add(root: Path) -> None:
    (root / "more").write_bytes(b"")


def change_unlink(root: Path) -> None:
    (root / "sub" / "small").unlink()


def change_replace(root: Path) -> None:
    (root / "other").write_bytes((root / "big").read_bytes())
    (root / "other").rename(root / "big")


def change_link(root: Path) -> None:
    (root / "big").unlink()
    (root / "big").symlink_to("/dev/zero")


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("change", [change_truncate, change_grow, change_add, change_unlink, change_replace])
def test_a_change_while_hashing_is_mutated(tmp_path: Path, change: object, threads: int) -> None:
    root = shard(tmp_path / "s")
    assert callable(change)
    with pytest.raises(CorruptError) as caught:
        hash_shard(root, threads, Watch(moved=Meddler(lambda: change(root))))
    assert caught.value.kind == "mutated"


def test_a_file_that_became_a_link_while_hashing_is_not_followed(tmp_path: Path) -> None:
    root = shard(tmp_path / "s")
    with pytest.raises((CorruptError, UnsupportedError)):
        hash_shard(root, 1, Watch(moved=Meddler(lambda: change_link(root))))


def test_a_file_replaced_by_rename_while_hashing_is_mutated(tmp_path: Path) -> None:
    path = fill(tmp_path / "f", 20 * MIB)
    other = fill(tmp_path / "g", 20 * MIB)
    with pytest.raises(CorruptError) as caught:
        hash_shard(path, 1, Watch(moved=Meddler(lambda: other.rename(path))))
    assert caught.value.kind == "mutated"


def test_s44_truncation_a_hundred_times_kills_nobody(tmp_path: Path) -> None:
    path = tmp_path / "f"
    for round_ in range(100):
        path.write_bytes(bytes(4 * MIB))
        cutter = threading.Thread(target=os.truncate, args=(path, round_ * 1000))
        cutter.start()
        with suppress(CorruptError):
            assert hash_shard(path, 4).size in {4 * MIB, round_ * 1000}
        cutter.join()


def test_hashing_can_be_stopped(tmp_path: Path) -> None:
    stop = threading.Event()
    with pytest.raises(BusyError, match="stopped"):
        hash_shard(shard(tmp_path), 1, Watch(moved=lambda _: stop.set(), stop=stop))


def test_progress_adds_up_to_the_size(tmp_path: Path) -> None:
    moved: list[int] = []
    tree = hash_shard(shard(tmp_path), 2, Watch(moved=moved.append))
    assert sum(moved) == tree.size


def test_descriptors_do_not_leak(tmp_path: Path) -> None:
    root = shard(tmp_path)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count, not paths
    hash_shard(root)
    (root / "link").symlink_to("x")
    with pytest.raises(UnsupportedError):
        hash_shard(root)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_the_same_content_is_no_difference(tmp_path: Path) -> None:
    root = shard(tmp_path)
    difference = verify_shard(root, hash_shard(root))
    assert difference.is_none
    assert str(difference) == ""


@pytest.mark.parametrize("threads", [1, 4])
def test_a_flipped_bit_is_one_bad_leaf(tmp_path: Path, threads: int) -> None:
    root = shard(tmp_path)
    tree = hash_shard(root)
    with (root / "big").open("r+b") as file:
        file.seek(17 * MIB)
        byte = file.read(1)[0]
        file.seek(17 * MIB)
        file.write(bytes([byte ^ 1]))
    assert verify_shard(root, tree, threads) == Difference(leaves=(17,))


def test_missing_and_extra_entries_are_named(tmp_path: Path) -> None:
    root = shard(tmp_path)
    tree = hash_shard(root)
    (root / "sub" / "small").unlink()
    (root / "void").rmdir()
    (root / "sub" / "empty").unlink()
    (root / "sub" / "empty").symlink_to("small")
    (root / "stray").write_bytes(b"")
    (root / "link").symlink_to("x")
    difference = verify_shard(root, tree)
    assert difference.leaves == tuple(tree.leaves_of(b"sub/small"))
    assert difference.missing == (b"sub/empty", b"sub/small", b"void")
    assert difference.extra == (b"link", b"stray")
    assert "1 leaves differ" in str(difference)


def test_a_shorter_file_loses_its_last_leaves_and_a_longer_one_is_too_long(tmp_path: Path) -> None:
    path = fill(tmp_path / "f", 3 * MIB)
    tree = hash_shard(path)
    os.truncate(path, 4 * MIB)
    assert verify_shard(path, tree) == Difference(extra=(b".",))
    os.truncate(path, MIB + 1)
    assert verify_shard(path, tree) == Difference(leaves=(1, 2))


def test_nothing_there_is_all_missing(tmp_path: Path) -> None:
    path = fill(tmp_path / "f", 3 * MIB)
    tree = hash_shard(path)
    path.unlink()
    assert verify_shard(path, tree) == Difference(leaves=(0, 1, 2), missing=(b".",))
    path.mkdir()
    assert verify_shard(path, tree) == Difference(leaves=(0, 1, 2), missing=(b".",))
    assert verify_shard(tmp_path / "none", Tree([])).missing == (b".",)


def test_two_swapped_files_are_found(tmp_path: Path) -> None:
    fill(tmp_path / "a", 100, 1)
    fill(tmp_path / "b", 100, 2)
    tree = hash_shard(tmp_path)
    (tmp_path / "a").rename(tmp_path / "c")
    (tmp_path / "b").rename(tmp_path / "a")
    (tmp_path / "c").rename(tmp_path / "b")
    assert verify_shard(tmp_path, tree) == Difference(leaves=(0, 1))


def test_a_fingerprint_changes_with_names_sizes_and_inodes_only(tmp_path: Path) -> None:
    root = shard(tmp_path / "s")
    first = fingerprint(root)
    root.rename(tmp_path / "t")
    root = tmp_path / "t"
    assert fingerprint(root) == first
    (root / "sub" / "small").write_bytes(b"y" * 100)  # same inode and size: stat cannot know
    assert fingerprint(root) == first
    os.truncate(root / "big", 7)
    second = fingerprint(root)
    assert second != first
    (root / "big").rename(root / "big2")
    assert fingerprint(root) not in {first, second}


@pytest.mark.parametrize("size", [0, 1, (1 << 20) + 1])
def test_a_file_is_also_named_by_the_hash_of_its_whole(tmp_path: Path, size: int) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"x" * size)
    assert file_digest(path) == blake3(b"x" * size).hexdigest()
