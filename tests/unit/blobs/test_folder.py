import errno
import os
from pathlib import Path

import pytest

from checkpoint_replicator.blobs.folder import faults, open_file, open_folder, translated
from checkpoint_replicator.errors import NoRoomError, PermanentError, ReplicatorError, UnreachableError


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, NoRoomError),
        (errno.EDQUOT, NoRoomError),
        (errno.EACCES, PermanentError),
        (errno.EROFS, PermanentError),
        (errno.ELOOP, PermanentError),
        (errno.EOPNOTSUPP, PermanentError),
        (errno.EIO, UnreachableError),
        (errno.ESTALE, UnreachableError),
        (errno.ETIMEDOUT, UnreachableError),
    ],
)
def test_an_error_of_the_system_says_whether_to_try_again(number: int, kind: type[ReplicatorError]) -> None:
    error = translated(OSError(number, os.strerror(number)), "job/x")
    assert type(error) is kind
    assert str(error).startswith(f"job/x: {os.strerror(number)}")


def test_a_missing_file_is_for_the_caller_to_judge() -> None:
    with pytest.raises(FileNotFoundError), faults("x"):
        raise FileNotFoundError


def test_folders_are_made_on_the_way_only_when_asked(tmp_path: Path) -> None:
    base = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(FileNotFoundError), open_folder(base, ("a", "b")):
            pass
        with open_folder(base, ("a", "b"), create=True):
            pass
        assert (tmp_path / "a" / "b").is_dir()
    finally:
        os.close(base)


def test_no_link_is_followed_neither_on_the_way_nor_at_the_end(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("s")
    root = tmp_path / "root"
    root.mkdir()
    (root / "folder").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    base = os.open(root, os.O_RDONLY)
    try:
        for parts in (("folder", "secret"), ("file",)):
            with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
                open_file(base, parts)
        with pytest.raises(NotADirectoryError), open_folder(base, ("folder", "new"), create=True):
            pass
    finally:
        os.close(base)
    assert sorted(path.name for path in outside.iterdir()) == ["secret"]
