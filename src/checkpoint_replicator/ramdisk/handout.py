"""The hand-out: a second name for every file of a shard, so that who deletes through the link empties nothing."""

import os
from pathlib import Path

from checkpoint_replicator.errors import NoRoomError
from checkpoint_replicator.ids import SessionId
from checkpoint_replicator.ramdisk.files import Files
from checkpoint_replicator.ramdisk.layout import PRIVATE, Layout, ShardName
from checkpoint_replicator.ramdisk.register import Register
from checkpoint_replicator.tree import ROOT, Tree

__all__ = ["Handouts"]


class Handouts:
    """Publishes `.restore` markers and the hand-outs behind them."""

    def __init__(self, layout: Layout, register: Register, files: Files) -> None:
        self._layout = layout
        self._register = register
        self._files = files

    def publish(self, session: SessionId, name: ShardName, tree: Tree) -> bool:
        """Let `<name>.restore` point to a hand-out of a shard that stands here.

        Returns:
            False when hard links are not possible (or there are no inodes): the marker points to the data itself.
        """
        handout = self._layout.handout(session, tree.address)
        linked = os.path.lexists(handout) or self._link(handout, tree)
        target = f"{PRIVATE}/handout/{session}/{handout.name}" if linked else self._layout.data(tree.address).name
        with self._register.lock():
            aside = self._layout.aside / f"{name}.restore"
            self._files.unlink(aside)
            self._files.point(aside, target)
            self._files.rename(aside, self._layout.restore(name))
        return linked

    def publish_none(self, name: ShardName) -> None:
        """Let `<name>.restore`, with step 0, say by an empty file that there is nothing to restore."""
        with self._register.lock():
            aside = self._layout.aside / f"{name}.restore"
            self._files.write(aside, b"")
            self._files.rename(aside, self._layout.restore(name))

    def discard(self, keep: SessionId | None = None) -> int:
        """Move the hand-outs of all sessions but one into the trash; returns how many."""
        with self._register.lock():
            old = [path for path in sorted(self._layout.handouts.iterdir()) if path.name != keep]
            for path in old:
                self._register.trash(path)
        return len(old)

    def _link(self, handout: Path, tree: Tree) -> bool:
        """Link every file aside, then give the whole its name; without the names lock, since it may take long."""
        data, aside = self._layout.data(tree.address), handout.with_suffix(".part")
        self._files.make_folder(handout.parent)
        self._files.remove(aside)
        try:
            if tree.is_directory:
                self._files.make_folder(aside)
            for directory in tree.directories:
                self._files.make_folder(aside / os.fsdecode(directory.path))
            for file in tree.files:
                if file.path == ROOT:
                    self._files.link(data, aside)
                else:
                    path = os.fsdecode(file.path)
                    self._files.link(data / path, aside / path)
            self._files.rename(aside, handout)
        except FileNotFoundError:
            self._files.remove(aside)
            raise
        except (OSError, NoRoomError):
            self._files.remove(aside)
            return False
        return True
