"""A backup store in memory, with faults on demand."""

import threading
from collections.abc import Callable, Iterator
from typing import BinaryIO

from checkpoint_replicator.blobs import Blob
from checkpoint_replicator.blobs.crc32c import crc32c_of
from checkpoint_replicator.blobs.name import name_parts
from checkpoint_replicator.errors import CorruptError, RefusedError

__all__ = ["MemoryBlobStore"]


class MemoryBlobStore:
    """Objects in a dict.

    Attributes:
        before: called with the method's name and the object's before each call; what it raises comes out.
        log: every change, in order: `put <name>`, `delete <name>`.
    """

    def __init__(self, root: str = "memory://") -> None:
        self.root = root
        self.objects: dict[str, bytes] = {}
        self.log: list[str] = []
        self.before: Callable[[str, str], None] = lambda _method, _name: None
        self._lock = threading.Lock()

    def put_new(self, name: str, source: BinaryIO, size: int, crc32c: str) -> bool:
        self._enter("put_new", name)
        if name not in self.objects:
            data = source.read(size + 1)
            while 0 < len(data) <= size and (more := source.read(size + 1 - len(data))):
                data += more
            if len(data) != size or crc32c_of(data) != crc32c:
                raise CorruptError(f"{name}: expected {size} bytes with {crc32c}")
            with self._lock:
                if name not in self.objects:
                    self.objects[name] = data
                    self.log.append(f"put {name}")
                    return True
        found = self.objects[name]
        if len(found) != size or crc32c_of(found) != crc32c:
            raise RefusedError(f"{name}: expected {size} bytes with {crc32c}, found {len(found)} others")
        return False

    def read(self, name: str, offset: int, size: int) -> bytes:
        self._enter("read", name)
        if name not in self.objects:
            raise FileNotFoundError(name)
        data = self.objects[name][offset : offset + size]
        if len(data) < size:
            raise CorruptError(f"{name}: expected {offset + size} bytes, it ends at {offset + len(data)}")
        return data

    def stat(self, name: str) -> Blob | None:
        self._enter("stat", name)
        data = self.objects.get(name)
        return None if data is None else Blob(name, len(data), crc32c_of(data))

    def list(self, prefix: str) -> Iterator[Blob]:
        self.before("list", prefix)
        for name, data in sorted(self.objects.items()):
            if name.startswith(prefix):
                yield Blob(name, len(data), crc32c_of(data))

    def delete(self, name: str) -> None:
        self._enter("delete", name)
        with self._lock:
            if self.objects.pop(name, None) is not None:
                self.log.append(f"delete {name}")

    def _enter(self, method: str, name: str) -> None:
        name_parts(name)
        self.before(method, name)
