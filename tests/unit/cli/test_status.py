import json

import msgspec
import pytest
from click.testing import CliRunner

from checkpoint_replicator.cli import main
from checkpoint_replicator.cli.status import age_text, status_text
from checkpoint_replicator.status import (
    BackupStatus,
    ClusterStatus,
    JobStatus,
    MakingStatus,
    NodeStatus,
    Protection,
    SaveStatus,
)

JOB = JobStatus(
    job="llm",
    epoch=2,
    state="running",
    reason="restored step 9",
    shape="2 nodes x 1 worker, pytorch",
    coordinator="coordinator-1",
    committed="2.10",
    protection=Protection.PROTECTED,
    replicas=1,
    restored="1.9",
    nodes=(
        NodeStatus(rank=0, host="node-0", state="ok"),
        NodeStatus(rank=1, state="dead", reason="no report for 21 s"),
    ),
    laggards=("rank 1: dead",),
    saves=(
        SaveStatus(save="2.10", state="committed", replicas=1),
        SaveStatus(save="2.11", state="saving", reason="rank 1"),
    ),
    backup=BackupStatus(name="2026-01-01_00-00", save="1.9", age=754.0),
)
TEXT = """\
job llm: epoch 2, running (restored step 9)
  shape       2 nodes x 1 worker, pytorch
  coordinator coordinator-1
  committed   2.10, protected, replicas: 1
  restored    1.9
  backup      2026-01-01_00-00, save 1.9, 12 min old
  laggards    rank 1: dead

  rank  host    state  reason
  0     node-0  ok
  1     -       dead   no report for 21 s

  save  state      replicas  reason
  2.10  committed  1
  2.11  saving     0         rank 1"""
NEW = """\
job new: epoch 0, unknown
  shape       not known yet
  coordinator none
  committed   nothing
  restored    nothing
  backup      none
  laggards    none"""


def test_the_text_shows_all_of_a_job() -> None:
    assert status_text(ClusterStatus(jobs=(JOB,))) == TEXT


def test_what_fits_a_ramdisk_and_what_a_node_complains_of_are_shown() -> None:
    node = NodeStatus(rank=0, host="node-0", state="ok", generations=1, faults=("undersized: needs 142 bytes",))
    text = status_text(ClusterStatus(jobs=(msgspec.structs.replace(JOB, nodes=(node,)),)))
    assert "  room        node-0 fits 1 saves with their copies; 2 are needed, 3 comfortable\n" in text
    assert "  fault       node-0: undersized: needs 142 bytes\n" in text


def test_a_job_that_was_written_while_it_was_read_is_shown_as_such() -> None:
    text = status_text(ClusterStatus(jobs=(msgspec.structs.replace(JOB, mixed=True),)))
    assert "  read        while it was written; what is shown may be of different moments\n" in text


def test_why_the_last_start_failed_and_on_what_line_of_saves_a_job_is_are_shown() -> None:
    job = msgspec.structs.replace(JOB, failure="save 1.1 was committed", line="a fresh start in epoch 2")
    text = status_text(ClusterStatus(jobs=(job,)))
    assert "  last start  failed: save 1.1 was committed\n" in text
    assert "  line        from a fresh start in epoch 2 on, as ordered; no backup of it is verified yet\n" in text


def test_a_backup_under_way_and_a_job_that_is_being_forgotten_have_rows() -> None:
    making = MakingStatus(name="2026-01-01_01-00", save="2.9", state="reserving", reason="node-0: no space left")
    text = status_text(ClusterStatus(jobs=(msgspec.structs.replace(JOB, making=making, forgetting=""),)))
    assert "  under way   backup 2026-01-01_01-00 of save 2.9 is reserving: node-0: no space left\n" in text
    assert "  forgetting  the hosts remove all that they have\n" in text
    job = msgspec.structs.replace(JOB, making=msgspec.structs.replace(making, reason=""), forgetting="waiting for b")
    text = status_text(ClusterStatus(jobs=(job,)))
    assert "  under way   backup 2026-01-01_01-00 of save 2.9 is reserving\n" in text
    assert "  forgetting  the hosts remove all that they have: waiting for b\n" in text


def test_the_reason_of_a_hold_stays_in_its_row() -> None:
    text = status_text(ClusterStatus(jobs=(msgspec.structs.replace(JOB, hold="disk\n\x1b[2Jswap"),)))
    assert "  hold        nothing is deleted or backed up (disk\\n\\x1b[2Jswap)\n" in text


def test_jobs_stand_one_below_the_other() -> None:
    assert status_text(ClusterStatus(jobs=(JobStatus(job="new"), JOB))) == f"{NEW}\n\n{TEXT}"


def test_without_a_job_the_hosts_are_named() -> None:
    assert status_text(ClusterStatus()) == "no job yet; hosts: none"
    assert status_text(ClusterStatus(hosts=("a", "b"))) == "no job yet; hosts: a, b"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0 s"), (59.4, "59 s"), (60, "1 min"), (3599, "59 min"), (7200, "2 h"), (200000, "2 d")],
)
def test_an_age_is_told_in_its_largest_whole_unit(seconds: float, text: str) -> None:
    assert age_text(seconds) == text


def test_json_is_for_scripts(redis_url: str) -> None:
    result = CliRunner().invoke(main, ["status", "--json", "--redis", redis_url])
    assert result.exit_code == 0
    assert json.loads(result.output) == {"hosts": [], "jobs": []}


def test_redis_that_does_not_answer_is_exit_code_75() -> None:
    result = CliRunner().invoke(main, ["status", "--redis", "redis://127.0.0.1:1/0"])
    assert result.exit_code == 75
    assert "127.0.0.1:1" in result.stderr


def test_of_a_job_that_does_not_parse_nothing_is_claimed() -> None:
    spoilt = JobStatus(job="a", state="unreadable", reason="ckpt:{a}:fence: no number")
    text = status_text(ClusterStatus(jobs=(spoilt, JobStatus(job="b"))))
    assert text.startswith("job a: unreadable\n\njob b: epoch 0, unknown\n")
