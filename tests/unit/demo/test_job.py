import asyncio
from pathlib import Path

import pytest

from checkpoint_replicator.demo.job import JobRun, JobSpec, JobTimeoutError, Progress, TrainerFailedError


async def replicate(local: Path, rank: int) -> None:
    """Answer one yaml as a replicator with nothing to restore would."""
    yaml = local / "replicator.yaml"
    while not yaml.exists():  # another process writes it
        await asyncio.sleep(0)
    yaml.unlink()  # tiny
    (local / "replicator.prerestore").write_text("{}\n")  # tiny
    (local / f"j-s0-n{rank}-w0.restore").touch()  # tiny


def directories(tmp_path: Path) -> list[Path]:
    found = [tmp_path / "0", tmp_path / "1"]
    for path in found:
        path.mkdir()
    return found


async def test_trainers_restore_save_and_finish(tmp_path: Path) -> None:
    ramdisks = directories(tmp_path)
    seen: list[Progress] = []
    spec = JobSpec(name="j", size=10)
    async with JobRun(spec, ramdisks, steps=(0, 4), expect="none", pause=0, watch=seen.append) as run:
        await asyncio.gather(*(replicate(path, rank) for rank, path in enumerate(ramdisks)))
        assert await run.restored(deadline=25) is None
        await run.saved(4, deadline=25)
        await run.finished(deadline=25)
    assert [(progress.event, progress.saved, progress.code) for progress in run.progress] == [("finished", 4, 0)] * 2
    assert {path.name for path in ramdisks[1].glob("*.save")} == {"j-s0-n1-w0.save", "j-s4-n1-w0.save"}
    assert {progress.event for progress in seen} == {"announced", "restored", "saved", "finished"}


async def test_a_trainer_that_fails_is_named_with_its_reason(tmp_path: Path) -> None:
    ramdisks = directories(tmp_path)
    (ramdisks[1] / "replicator.yaml").touch()
    async with JobRun(JobSpec(name="j"), ramdisks, timeout=0) as run:
        with pytest.raises(TrainerFailedError, match=r"rank [01] ended with 5: waited 0 s for .*replicator.yaml"):
            await run.finished(deadline=25)


async def test_a_killed_trainer_is_named(tmp_path: Path) -> None:
    async with JobRun(JobSpec(name="j"), directories(tmp_path)) as run:
        await run.kill([1])
        with pytest.raises(TrainerFailedError, match="rank 1 ended with -9: without a word"):
            await run.saved(1, deadline=25)


async def test_late_trainers_are_named(tmp_path: Path) -> None:
    async with JobRun(JobSpec(name="j"), directories(tmp_path)) as run:
        with pytest.raises(
            JobTimeoutError, match=r"waited 0 s for trainers to have restored: rank 0 \(started\), rank 1"
        ):
            await run.restored(deadline=0)
