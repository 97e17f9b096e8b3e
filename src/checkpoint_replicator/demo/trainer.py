"""A trainer of one node: announces itself, restores, verifies every byte, then "trains" and saves.

Run as `python -m checkpoint_replicator.demo.trainer --local DIR ...`. Each event is one JSON line on stdout. It knows
the replicator only through files, and needs nothing but the standard library and click.
"""

import json
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from checkpoint_replicator.demo.content import PYTORCH, shard_bytes, step_files
from checkpoint_replicator.demo.contract import (
    BytesError,
    MarkerError,
    TrainerError,
    announce,
    complaints,
    wait_for_markers,
)

__all__ = ["Plan", "Trainer", "main"]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What one trainer does.

    Attributes:
        local: the directory that it shares with the replicator.
        size: bytes a worker saves.
        peers: `peers-per-node`.
        backup_minutes: `backup-interval-minutes`.
        timeout: seconds to wait for the replicator at each point.
    """

    local: Path
    job: str
    rank: int
    nodes: int
    workers: int = 1
    framework: str = PYTORCH
    size: int = 1 << 20
    peers: int = 1
    backup_minutes: float = 30
    timeout: float = 300.0

    @property
    def shards(self) -> int:
        """How many shards this node saves: one a worker, or one directory for all."""
        return self.workers if self.framework == PYTORCH else 1

    @property
    def yaml(self) -> Mapping[str, object]:
        """The keys of `replicator.yaml`, in the order in which real clients write them."""
        workers = {"workers-per-node": self.workers} if self.framework == PYTORCH else {}
        return {
            "job-name": self.job,
            "framework": self.framework,
            "node-rank": self.rank,
            "nodes": self.nodes,
            **workers,
            "peers-per-node": self.peers,
            "backup-interval-minutes": f"{self.backup_minutes:g}",
        }


class Trainer:
    """Speaks the file contract for one node."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def restore(self) -> int | None:
        """Announce this node, wait for what to restore, compare all of it, and take the markers away.

        Returns the restored step, None when there was nothing to restore.

        Raises:
            TrainerError: see its kinds.
        """
        plan = self.plan
        announce(plan.local, plan.yaml, plan.timeout)
        markers = wait_for_markers(plan.local, plan.job, plan.rank, plan.shards, plan.timeout)
        for worker, marker in markers.by_worker.items():
            if markers.step is None:
                marker.unlink()
            elif plan.framework == PYTORCH:
                self._verify(marker, markers.step, worker)
                marker.unlink()
            else:
                self._verify(marker.rename(plan.local / f"step={markers.step}"), markers.step, worker)
        return markers.step

    def save(self, step: int) -> None:
        """Write this node's shards of a step aside, then rename them."""
        if self.plan.framework == PYTORCH:
            self._save_files(step)
        else:
            self._save_directory(step)

    def _save_files(self, step: int) -> None:
        plan = self.plan
        for worker in range(plan.workers):
            final = plan.local / f"{plan.job}-s{step}-n{plan.rank}-w{worker}.save"
            draft = final.with_suffix(".save.tmp")
            draft.write_bytes(shard_bytes(plan.job, step, plan.rank, worker, plan.size))
            draft.replace(final)

    def _save_directory(self, step: int) -> None:
        plan = self.plan
        draft = plan.local / f"step={step}"
        if draft.is_symlink():
            draft.unlink()
        shutil.rmtree(draft, ignore_errors=True)
        unfinished = plan.local / f"step={step}-unfinished"
        unfinished.touch()
        draft.mkdir()
        for name, content in step_files(plan.job, step, plan.rank, plan.workers, plan.size).items():
            (draft / name).write_bytes(content)
        unfinished.unlink()
        draft.rename(plan.local / str(step))

    def _verify(self, path: Path, step: int, worker: int) -> None:
        plan = self.plan
        if plan.framework == PYTORCH:
            expected = {"": shard_bytes(plan.job, step, plan.rank, worker, plan.size)}
            found = {"": path.read_bytes()}
        else:
            expected = dict(step_files(plan.job, step, plan.rank, plan.workers, plan.size))
            found = {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
        if found.keys() != expected.keys():
            raise BytesError(f"{path.name} holds {sorted(found)}, expected {sorted(expected)}")
        for name, content in expected.items():
            if found[name] != content:
                raise BytesError(f"{path.name}/{name} of step {step} differs from what was saved")


def _steps(_context: click.Context, _option: click.Parameter, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(",") if word)
    except ValueError:
        raise click.BadParameter(f"expected step numbers with commas between, found {text!r}") from None


def _expect(_context: click.Context, _option: click.Parameter, text: str) -> str:
    if text in {"any", "none"} or text.isdigit():
        return text
    raise click.BadParameter(f"expected any, none or a step number, found {text!r}")


@click.command()
@click.option("--local", type=click.Path(path_type=Path, file_okay=False, exists=True), required=True)
@click.option("--job", required=True)
@click.option("--rank", type=int, required=True)
@click.option("--nodes", type=int, required=True)
@click.option("--workers", type=int, default=1, show_default=True)
@click.option("--framework", default=PYTORCH, show_default=True)
@click.option("--size", type=int, default=1 << 20, show_default=True, help="Bytes a worker saves.")
@click.option("--peers", type=int, default=1, show_default=True, help="peers-per-node")
@click.option("--backup-minutes", type=float, default=30.0, show_default=True, help="backup-interval-minutes")
@click.option(
    "--steps", callback=_steps, default="", help="Steps to save, as 1,2,3; those up to the restored one are left out."
)
@click.option("--pause", type=float, default=0.5, show_default=True, help="Seconds of training before each save.")
@click.option("--stay", type=float, default=0.0, help="Seconds to stay alive after the last save.")
@click.option("--expect", callback=_expect, default="any", help="What must be restored: any, none or a step.")
@click.option("--timeout", type=float, default=300.0, show_default=True, help="Seconds to wait for the replicator.")
def main(steps: tuple[int, ...], pause: float, stay: float, expect: str, **plan: Any) -> None:
    """Run one node's trainer."""
    _run(Trainer(Plan(**plan)), steps, pause=pause, stay=stay, expect=expect)


def _run(trainer: Trainer, steps: tuple[int, ...], *, pause: float, stay: float, expect: str) -> None:
    plan = trainer.plan
    try:
        _say(plan.rank, "announced")
        restored = trainer.restore()
        _say(plan.rank, "restored", step=restored)
        found = "none" if restored is None else str(restored)
        if expect not in {"any", found}:
            raise MarkerError(f"expected {expect} to be restored, found {found}")
        for step in steps:
            if restored is None or step > restored:
                time.sleep(pause)
                if errors := complaints(plan.local):
                    _say(plan.rank, "complained", reason=errors)
                trainer.save(step)
                _say(plan.rank, "saved", step=step)
        time.sleep(stay)
    except TrainerError as error:
        _say(plan.rank, "failed", reason=str(error), code=error.exit_code)
        sys.exit(error.exit_code)
    _say(plan.rank, "finished")


def _say(rank: int, event: str, **more: object) -> None:
    sys.stdout.write(json.dumps({"event": event, "rank": rank, **more}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
