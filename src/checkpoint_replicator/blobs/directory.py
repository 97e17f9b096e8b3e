"""A folder as backup store: objects are its files, so that people and other tools read them as they are."""

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO, Final

from checkpoint_replicator import failpoint
from checkpoint_replicator.blobs import Blob
from checkpoint_replicator.blobs.crc32c import Crc32c
from checkpoint_replicator.blobs.folder import faults, open_file, open_folder
from checkpoint_replicator.blobs.name import OWN_FOLDER, is_name_part, name_parts
from checkpoint_replicator.blobs.partial import Partial, new_partial, sweep
from checkpoint_replicator.blobs.sums import compute_sum, forget_sum, keep_sum, kept_sum
from checkpoint_replicator.errors import CorruptError, PermanentError, RefusedError, UnreachableError

__all__ = ["DirectoryBlobStore"]

_PIECE: Final = 1 << 20
_ATTEMPTS: Final = 5
"""How often a folder may vanish under a write (somebody deletes its last object) before we say so."""


class DirectoryBlobStore:
    """Objects in a folder that must exist: one that is not mounted is unreachable, not empty.

    An object is written aside, synced and linked to its name, which fails when the name is taken. What the store
    needs for itself lies in `.blobs` of the root: writes in flight and the sums of objects.
    """

    def __init__(self, path: Path, root: str | None = None) -> None:
        self.path = path
        self.root = path.as_uri() if root is None else root
        self._swept = False
        self._sweeping = threading.Lock()

    def put_new(self, name: str, source: BinaryIO, size: int, crc32c: str) -> bool:
        """See `BlobStore.put_new`."""
        parts = name_parts(name)
        with self._base() as base:
            self._sweep_once(base)
            found = self._stat(base, name, parts)
            if found is None:
                if self._create(base, parts, source, size, crc32c):
                    return True
                found = self._stat(base, name, parts)  # somebody else was quicker
            if found is None:
                raise PermanentError(f"{name}: expected a free name, found a folder")
            return self._same(found, Blob(name, size, crc32c))

    def read(self, name: str, offset: int, size: int) -> bytes:
        """See `BlobStore.read`."""
        parts = name_parts(name)
        with self._base() as base, faults(name):
            file, _ = _open(base, parts)
            try:
                pieces: list[bytes] = []
                have = 0
                while have < size:
                    data = os.pread(file, size - have, offset + have)
                    if not data:
                        raise CorruptError(f"{name}: expected {offset + size} bytes, it ends at {offset + have}")
                    pieces.append(data)
                    have += len(data)
                return pieces[0] if len(pieces) == 1 else b"".join(pieces)
            finally:
                os.close(file)

    def stat(self, name: str) -> Blob | None:
        """See `BlobStore.stat`; reads the whole object where its sum is not known."""
        parts = name_parts(name)
        with self._base() as base:
            return self._stat(base, name, parts)

    def list(self, prefix: str) -> Iterator[Blob]:
        """See `BlobStore.list`."""
        folder, _, _ = prefix.rpartition("/")
        parts = name_parts(folder) if folder else ()
        with self._base() as base:
            yield from self._walk(base, parts, prefix)

    def delete(self, name: str) -> None:
        """See `BlobStore.delete`."""
        parts = name_parts(name)
        failpoint.change()
        with self._base() as base, faults(name):
            with contextlib.suppress(FileNotFoundError), open_folder(base, parts[:-1]) as folder:
                os.unlink(parts[-1], dir_fd=folder)
                os.fsync(folder)
            forget_sum(base, parts)
            self._prune(base, parts[:-1])

    @contextlib.contextmanager
    def _base(self) -> Iterator[int]:
        try:
            with faults(str(self.path)):
                base = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise UnreachableError(f"{self.path}: no such folder; expected the root of the backup store") from error
        try:
            yield base
        finally:
            os.close(base)

    def _sweep_once(self, base: int) -> None:
        with self._sweeping:
            if not self._swept:
                with faults(str(self.path)):
                    sweep(base)
                self._swept = True

    def _create(self, base: int, parts: Sequence[str], source: BinaryIO, size: int, crc32c: str) -> bool:
        """Write aside and link; False: the name is taken, or its folder vanished."""
        name = "/".join(parts)
        with contextlib.ExitStack() as stack:
            with faults(name):
                partial = stack.enter_context(new_partial(base))
            found = _copy(source, partial.file, size, name)
            if found != crc32c:
                raise CorruptError(f"{name}: expected crc32c {crc32c}, the source gave {found}")
            with faults(name):
                os.fsync(partial.file)
                keep_sum(base, parts, os.fstat(partial.file), crc32c)
                return self._link(base, partial, parts)

    def _link(self, base: int, partial: Partial, parts: Sequence[str]) -> bool:
        """Give the file its name; False: the name is taken."""
        for _ in range(_ATTEMPTS):
            try:
                with open_folder(base, parts[:-1], create=True) as folder:
                    failpoint.change()
                    os.link(
                        partial.name, parts[-1], src_dir_fd=partial.folder, dst_dir_fd=folder, follow_symlinks=False
                    )
                    os.fsync(folder)
            except FileExistsError:
                return False
            except FileNotFoundError:
                continue
            return True
        raise UnreachableError(f"{'/'.join(parts)}: its folder vanishes while it is written")

    def _same(self, found: Blob, wanted: Blob) -> bool:
        if found == wanted:
            return False
        raise RefusedError(
            f"{found.name}: expected {wanted.size} bytes with crc32c {wanted.crc32c}, "
            f"found {found.size} with {found.crc32c}"
        )

    def _stat(self, base: int, name: str, parts: Sequence[str]) -> Blob | None:
        try:
            with faults(name):
                file, about = _open(base, parts)
                try:
                    crc32c = kept_sum(base, parts, about)
                    if crc32c is None:
                        crc32c = compute_sum(file)
                        keep_sum(base, parts, about, crc32c)
                    return Blob(name, about.st_size, crc32c)
                finally:
                    os.close(file)
        except FileNotFoundError:
            return None

    def _walk(self, base: int, parts: Sequence[str], prefix: str) -> Iterator[Blob]:
        """List in the order of names: a folder sorts by its name with `/`, as its objects' names do."""
        try:
            with faults("/".join(parts)), open_folder(base, parts) as folder:
                found = sorted(_entries(folder), key=itemgetter(0))
        except FileNotFoundError:
            return
        for entry, about in found:
            inner = (*parts, entry.rstrip("/"))
            name = "/".join((*parts, entry))
            if inner == (OWN_FOLDER,):
                continue
            if about is not None and name.startswith(prefix):
                yield Blob(name, about.st_size, kept_sum(base, inner, about) or "")
            elif about is None and (name.startswith(prefix) or prefix.startswith(name)):
                yield from self._walk(base, inner, prefix)

    def _prune(self, base: int, parts: Sequence[str]) -> None:
        """Remove folders that hold nothing any more; a bucket has none either."""
        for depth in range(len(parts), 0, -1):
            try:
                with open_folder(base, parts[: depth - 1]) as folder:
                    os.rmdir(parts[depth - 1], dir_fd=folder)
            except OSError:  # most likely not empty; an empty folder left standing is no object
                return


def _open(base: int, parts: Sequence[str]) -> tuple[int, os.stat_result]:
    """Open an object for reading; a folder of that name is no object."""
    file = open_file(base, parts)
    about = os.fstat(file)
    if stat.S_ISREG(about.st_mode):
        return file, about
    os.close(file)
    name = "/".join(parts)
    if stat.S_ISDIR(about.st_mode):
        raise FileNotFoundError(errno.ENOENT, "no such object", name)
    raise PermanentError(f"{name}: expected a file, found a device, socket or fifo")


def _entries(folder: int) -> Iterator[tuple[str, os.stat_result | None]]:
    """Yield folders, with `/` behind the name, and files with what the system says about them; nothing else.

    A name that no object can have is none of ours, and must not stop a listing.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            if not is_name_part(entry.name):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield f"{entry.name}/", None
            elif entry.is_file(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError):
                    yield entry.name, entry.stat(follow_symlinks=False)


def _copy(source: BinaryIO, file: int, size: int, name: str) -> str:
    """Write the source's bytes and return their sum. Only the store's own faults are translated."""
    total = Crc32c()
    have = 0
    while have < size and (data := source.read(min(_PIECE, size - have))):
        total.update(data)
        have += len(data)
        with faults(name):
            view = memoryview(data)
            while view:
                view = view[os.write(file, view) :]
    if have < size or source.read(1):
        raise CorruptError(f"{name}: expected {size} bytes, the source gave {'fewer' if have < size else 'more'}")
    return total.text
