from pathlib import Path

import pytest

from checkpoint_replicator.demo.job import Progress
from checkpoint_replicator.demo.story import headline, holds_text, services_text, trainer_text, wipe
from checkpoint_replicator.status import JobStatus, Protection
from checkpoint_replicator.supervisor import Condition, State


def states(*conditions: Condition) -> list[State | None]:
    return [State(name="x", condition=condition) for condition in conditions]


def test_the_headline_says_how_the_job_stands() -> None:
    assert headline(JobStatus(job="j")) == "job j: not known yet"
    assert headline(JobStatus(job="j", state="gathering")) == "job j: waits for all its trainers"
    assert headline(JobStatus(job="j", epoch=1, state="running")) == "job j: epoch 1 running, nothing committed yet"
    status = JobStatus(job="j", epoch=2, state="running", committed="1.3", protection=Protection.PROTECTED)
    assert headline(status) == "job j: epoch 2 running, step 3 committed, protected"


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ([None, None, None], "killed"),
        (states(Condition.READY, Condition.READY, Condition.READY), "3 ready"),
        (states(Condition.READY, Condition.WAITING, Condition.READY), "ready, waiting, ready"),
    ],
)
def test_services_are_told_in_few_words(found: list[State | None], text: str) -> None:
    assert services_text(found) == text


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (None, ""),
        (Progress(rank=0), "started"),
        (Progress(rank=0, event="restored"), "nothing to restore"),
        (Progress(rank=0, event="restored", restored=0), "restored step 0, equal"),
        (Progress(rank=0, event="saved", saved=4), "saved step 4"),
    ],
)
def test_a_trainer_is_told_in_few_words(progress: Progress | None, text: str) -> None:
    assert trainer_text(progress) == text


def test_a_ramdisk_is_told_by_its_public_names(tmp_path: Path) -> None:
    for name in ("my-job-s10-n0-w0.meta", "my-job-s10-n0-w1.meta", "my-job-s10-n1-w0.meta", "my-job-s9-n0-w0.meta"):
        (tmp_path / name).touch()
    assert holds_text(tmp_path) == "step 9: ranks 0  step 10: ranks 0, 1"
    assert holds_text(tmp_path / "gone") == ""


def test_wipe_empties_a_directory_and_follows_no_link(tmp_path: Path) -> None:
    ramdisk, outside = tmp_path / "node", tmp_path / "outside"
    for path in (ramdisk / "deep" / "er", outside):
        path.mkdir(parents=True)
    (outside / "precious").touch()
    (ramdisk / "file").touch()
    (ramdisk / "link").symlink_to(outside)
    wipe(ramdisk)
    assert list(ramdisk.iterdir()) == []
    assert (outside / "precious").exists()
