"""Tell a trainer that waits why this watcher cannot even begin: its own working files may not be written.

Without them there is no session to fail, and a trainer reads no `replicator.errors` before its yaml is gone. So this is
the contract's answer to a bad yaml, with nothing but the public directory: what a trainer would take for the answer to
its yaml goes, then the yaml, then `replicator.failed` stands. Saves, copies and directories are not touched: the
clean-up of the next session finds them.
"""

import os
import stat
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Final

from checkpoint_replicator.errors import BusyError
from checkpoint_replicator.ramdisk.layout import Layout
from checkpoint_replicator.ramdisk.locks import alone
from checkpoint_watcher.entry import YAML, Kind, classify
from checkpoint_watcher.framework import QUIET, Openness, look_into, openness

__all__ = ["FAILED", "give_notice"]

FAILED: Final = "replicator.failed"
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def give_notice(root: Path, reason: str, now: float, *, owned: bool) -> bool:
    """Fail a yaml that stands unchanged for QUIET seconds, so that what passes soon fails nobody.

    Args:
        root: the public directory.
        reason: the text of `replicator.failed`.
        now: seconds of the wall clock.
        owned: this process has the lock of the ramdisk's watcher; else it looks that nobody else has.

    Returns:
        Whether it was done; False too where the directory may not be written: then nobody can be told.
    """
    lock = nullcontext() if owned else alone(Layout(root).service_lock("watcher"))
    with suppress(OSError, BusyError), lock:
        return _fail(root, reason, now)
    return False


def _fail(root: Path, reason: str, now: float) -> bool:
    yaml, aside = root / YAML, root / f"{FAILED}.tmp"
    with suppress(OSError):
        facts = yaml.lstat()
        content = look_into(yaml)
        if not stat.S_ISREG(facts.st_mode) or content is None or now < max(facts.st_mtime, facts.st_ctime) + QUIET:
            return False
        if openness(yaml, content) is Openness.WRITTEN:
            return False
        # Written before anything goes: without room for it the trainer would lose its yaml and learn nothing.
        aside.unlink(missing_ok=True)
        file = os.open(aside, _NEW, 0o644)
        try:
            os.write(file, f"{reason}\n".encode(errors="backslashreplace"))
            os.fchmod(file, 0o644)
        finally:
            os.close(file)
        _clear(root, aside.name)
        yaml.unlink()
        aside.rename(root / FAILED)
        return True
    with suppress(OSError):
        aside.unlink(missing_ok=True)
    return False


def _clear(root: Path, kept: str) -> None:
    """Remove the files and links of an earlier run; a directory is none that a trainer would take for an answer."""
    with os.scandir(root) as entries:
        listed = [(entry.name, entry.is_symlink(), entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, link, directory in listed:
        if name != kept and not directory and classify(name, link=link) is Kind.LEFTOVER:
            (root / name).unlink(missing_ok=True)
