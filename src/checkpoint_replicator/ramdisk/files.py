"""The system calls that change names on the ramdisk: a small port, so that a test can stop between any two of them.

A ramdisk dies with its kernel, so nothing is synced here: what a killed process leaves is the order of its calls.
"""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from checkpoint_replicator import failpoint
from checkpoint_replicator.errors import NoRoomError

__all__ = ["Files", "no_room"]

_FULL: Final = {errno.ENOSPC, errno.EDQUOT}
_FILE_MODE: Final = 0o644
_FOLDER_MODE: Final = 0o755


class Files:
    """Changes names; whatever the umask, files are 0644 and directories 0755.

    Raises:
        NoRoomError: bytes or inodes ran out; nothing was changed.
        OSError: anything else.
    """

    def write(self, path: Path, data: bytes) -> None:
        """Write a file that nobody looks at yet; after an error it is gone."""
        failpoint.change()
        with no_room(path):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, _FILE_MODE)
            try:
                os.fchmod(fd, _FILE_MODE)
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
            except OSError:
                with suppress(OSError):
                    path.unlink()
                raise
            finally:
                os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file or directory its new name at once."""
        failpoint.change()
        with no_room(target):
            try:
                source.rename(target)
            except PermissionError:  # a directory that nobody may write to cannot move to another parent
                source.chmod(_FOLDER_MODE, follow_symlinks=False)
                source.rename(target)

    def unlink(self, path: Path) -> None:
        """Remove a name that may be gone already."""
        failpoint.change()
        path.unlink(missing_ok=True)

    def make_folder(self, path: Path) -> None:
        """Make a directory and its parents unless they stand."""
        with no_room(path):
            if not path.is_dir():
                failpoint.change()
                path.parent.mkdir(parents=True, exist_ok=True)
                path.mkdir(exist_ok=True)
                path.chmod(_FOLDER_MODE)

    def link(self, target: Path, name: Path) -> None:
        """Give a file a second name."""
        failpoint.change()
        with no_room(name):
            os.link(target, name, follow_symlinks=False)

    def point(self, name: Path, target: str) -> None:
        """Make a symbolic link."""
        failpoint.change()
        with no_room(name):
            name.symlink_to(target)

    def remove(self, path: Path) -> bool:
        """Remove a file or a whole directory, without following links; False when something stayed."""
        failpoint.change()
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
            if path.exists():  # a trainer may leave directories that nobody may write to
                for folder, _, _ in os.walk(path):
                    with suppress(OSError):
                        Path(folder).chmod(_FOLDER_MODE)
                shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink(missing_ok=True)
        return not os.path.lexists(path)


@contextmanager
def no_room(path: Path) -> Iterator[None]:
    """Say a full file system in our words."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise NoRoomError(f"{path}: the ramdisk has no bytes or inodes left ({error.strerror})") from error
        raise
