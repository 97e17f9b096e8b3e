"""`session.json`, and the same once more: without it nothing of a running job commits before its trainers restart."""

from contextlib import suppress

from checkpoint_replicator.errors import TransientError
from checkpoint_replicator.quote import quote
from checkpoint_replicator.ramdisk.documents import Document
from checkpoint_replicator.ramdisk.layout import is_session_id, parse_name
from checkpoint_replicator.ramdisk.ramdisk import Ramdisk
from checkpoint_watcher.record import SessionRecord

__all__ = ["SessionFile", "session_fault"]


class SessionFile:
    """The session on the ramdisk.

    The copy is written after it and removed before it, and nothing that a session says is done before both stand: so
    the copy is what a crash just before the last write would have left.
    """

    def __init__(self, ramdisk: Ramdisk) -> None:
        self.path = ramdisk.layout.session
        self._files = [
            ramdisk.document(path, SessionRecord) for path in (ramdisk.layout.session, ramdisk.layout.session_copy)
        ]

    def salvage(self) -> tuple[SessionRecord | None, str]:
        """Return the session, and what is wrong with its file; what cannot be read is set aside under another name."""
        first, second = self._files
        session, fault = _read(first)
        if session is not None:
            return session, ""
        session, other = _read(second)
        if session is None:
            return None, "; ".join(text for text in (fault, other) if text)
        with suppress(TransientError):  # else it is written with the next change
            first.write(session)
        return session, f"{fault or f'{self.path}: is missing'}; went on with {second.path.name}"

    def write(self, session: SessionRecord) -> None:
        """Replace it.

        Raises:
            NoRoomError: the ramdisk is full.
        """
        for file in self._files:
            file.write(session)

    def remove(self) -> None:
        """Take it away."""
        for file in reversed(self._files):
            file.remove()


def session_fault(record: SessionRecord) -> str:
    """Say why no session of ours can have written this; empty when one can."""
    if not is_session_id(record.id):
        return f"expected a session id, found {quote(record.id, 80)!r}"
    for marker in record.markers:
        if parse_name(marker.name, ".restore") is None:
            return f"expected names of markers, found {quote(marker.name, 80)!r}"
    for spec in (record.spec, record.before.spec if record.before is not None else None):
        if spec is not None and spec.rank >= spec.shape.nodes:
            return f"expected a rank below {spec.shape.nodes}, found {spec.rank}"
    return ""


def _read(file: Document[SessionRecord]) -> tuple[SessionRecord | None, str]:
    """Read one of both; one that says what no session of ours can is unreadable too."""
    session, fault = file.salvage()
    if session is None or not (fault := session_fault(session)):
        return session, fault
    file.set_aside()
    return None, f"{file.path}: {fault}; kept as {file.path.name}.unreadable"
