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
from checkpoint_replicator.ids import new_id

__all__ = ["Files", "no_room"]

_FULL: Final = {errno.ENOSPC, errno.EDQUOT}
_FILE_MODE: Final = 0o644
_FOLDER_MODE: Final = 0o755
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Files:
    """Changes names; whatever the umask, files are 0644 and directories 0755.

    Raises:
        NoRoomError: bytes or inodes ran out; nothing was changed.
        OSError: anything else.
    """

    def write(self, path: Path, data: bytes) -> None:
        """Write a file that nobody looks at yet, anew; after an error it is gone."""
        failpoint.change()
        with no_room(path):
            try:
                fd = os.open(path, _NEW, _FILE_MODE)
            except FileExistsError:  # of a crash; never written through, it may be a link, a pipe or a second name
                self.remove(path)
                fd = os.open(path, _NEW, _FILE_MODE)
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

    def replace(self, source: Path, target: Path) -> None:
        """Rename onto a private name of ours; what cannot be replaced there (a directory) is set aside."""
        try:
            self.rename(source, target)
        except IsADirectoryError:
            self.set_aside(target)
            self.rename(source, target)

    def set_aside(self, path: Path) -> Path:
        """Rename what stands in the place of something of ours, so that people can look at it; returns its new name."""
        aside = path.with_name(f"{path.name}.unreadable")
        self.remove(aside)
        self.rename(path, aside)
        return aside

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

    def make_own(self, path: Path) -> None:
        """Make a directory of ours; a file or link in its place is set aside, for a link would lead us elsewhere."""
        if path.is_symlink() or (os.path.lexists(path) and not path.is_dir()):
            self.set_aside(path)
        self.make_folder(path)

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
            with suppress(RecursionError):
                shutil.rmtree(path, ignore_errors=True)
            if path.exists():  # a trainer may leave directories that nobody may write to, or very deep ones
                self._level(path)
        else:
            with suppress(OSError):
                path.unlink(missing_ok=True)
        return not os.path.lexists(path)

    def _level(self, root: Path) -> None:
        """Remove a directory by drawing what lies below up beside it: no path grows long, and nothing recurses."""
        left = [root]
        while left:
            folder = left.pop()
            with suppress(OSError):
                folder.chmod(_FOLDER_MODE)
                with os.scandir(folder) as entries:
                    names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
                for name, is_folder in names:
                    if is_folder:
                        drawn = root.with_name(f"{new_id()}.level")
                        self.rename(folder / name, drawn)
                        left.append(drawn)
                    else:
                        (folder / name).unlink()
                folder.rmdir()


@contextmanager
def no_room(path: Path) -> Iterator[None]:
    """Say a full file system in our words."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise NoRoomError(f"{path}: the ramdisk has no bytes or inodes left ({error.strerror})") from error
        raise
