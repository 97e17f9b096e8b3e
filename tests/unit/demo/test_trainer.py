from pathlib import Path

import pytest
from click.testing import CliRunner

from checkpoint_replicator.demo.content import PYTORCH, shard_bytes, step_files
from checkpoint_replicator.demo.contract import BytesError
from checkpoint_replicator.demo.trainer import Plan, Trainer, main

DISTRIBUTED = "pytorch.distributed"


class Replicator(Trainer):
    """A trainer whose yaml is taken and answered at once, as a replicator would."""

    def __init__(self, plan: Plan, markers: dict[str, Path | None], monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(plan)

        def announce(local: Path, keys: dict[str, object], timeout: float) -> None:
            del timeout
            self.keys = dict(keys)
            steps = {name.split("-s")[1].split("-")[0] for name, data in markers.items() if data}
            (local / "replicator.prerestore").write_text(f"restore-step: {steps.pop()}\n" if steps else "{}\n")
            for name, data in markers.items():
                (local / name).symlink_to(data) if data else (local / name).touch()

        monkeypatch.setattr("checkpoint_replicator.demo.trainer.announce", announce)


def plan_for(local: Path, framework: str, rank: int = 1) -> Plan:
    return Plan(local=local, job="j", rank=rank, nodes=2, workers=2, framework=framework, size=1000, timeout=0)


def test_pytorch_saves_one_file_a_worker_under_its_final_name(tmp_path: Path) -> None:
    Trainer(plan_for(tmp_path, PYTORCH)).save(5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["j-s5-n1-w0.save", "j-s5-n1-w1.save"]
    assert (tmp_path / "j-s5-n1-w1.save").read_bytes() == shard_bytes("j", 5, 1, 1, 1000)


def test_pytorch_distributed_saves_one_directory_named_by_the_step(tmp_path: Path) -> None:
    (tmp_path / "step=5").symlink_to("gone")
    Trainer(plan_for(tmp_path, DISTRIBUTED)).save(5)
    assert [path.name for path in tmp_path.iterdir()] == ["5"]
    files = {path.name: path.read_bytes() for path in (tmp_path / "5").iterdir()}
    assert files == step_files("j", 5, 1, 2, 1000)


def test_the_yaml_holds_the_keys_of_the_framework(tmp_path: Path) -> None:
    assert list(plan_for(tmp_path, PYTORCH).yaml) == [
        "job-name",
        "framework",
        "node-rank",
        "nodes",
        "workers-per-node",
        "peers-per-node",
        "backup-interval-minutes",
    ]
    assert "workers-per-node" not in plan_for(tmp_path, DISTRIBUTED).yaml


def test_nothing_to_restore_is_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    markers: dict[str, Path | None] = {"j-s0-n1-w0.restore": None, "j-s0-n1-w1.restore": None}
    trainer = Replicator(plan_for(tmp_path, PYTORCH), markers, monkeypatch)
    assert trainer.restore() is None
    assert list(tmp_path.glob("*.restore")) == []


def test_restored_files_are_compared_and_a_changed_byte_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_for(tmp_path, PYTORCH)
    Trainer(plan).save(5)
    saves: dict[str, Path | None] = {
        f"j-s5-n1-w{worker}.restore": tmp_path / f"j-s5-n1-w{worker}.save" for worker in (0, 1)
    }
    assert Replicator(plan, saves, monkeypatch).restore() == 5
    with (tmp_path / "j-s5-n1-w1.save").open("r+b") as file:
        file.seek(500)
        file.write(b"\0\0\0")
    with pytest.raises(BytesError, match="of step 5 differs"):
        Replicator(plan, saves, monkeypatch).restore()


def test_a_restored_directory_is_renamed_and_must_hold_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_for(tmp_path, DISTRIBUTED)
    Trainer(plan).save(5)
    saves: dict[str, Path | None] = {"j-s5-n1-w0.restore": tmp_path / "5"}
    assert Replicator(plan, saves, monkeypatch).restore() == 5
    assert (tmp_path / "step=5").is_symlink()
    (tmp_path / "5" / ".metadata").unlink()
    with pytest.raises(BytesError, match=r"expected .*.metadata"):
        Replicator(plan, saves, monkeypatch).restore()


def test_the_command_tells_each_event_and_the_exit_code(tmp_path: Path) -> None:
    arguments = ["--local", str(tmp_path), "--job", "j", "--rank", "0", "--nodes", "1", "--timeout", "0"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 5
    assert result.output.splitlines() == [
        '{"event": "announced", "rank": 0}',
        '{"event": "failed", "rank": 0, "reason": "waited 0 s for replicator.yaml to be taken", "code": 5}',
    ]


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [("--steps", "1,x", "step numbers with commas"), ("--expect", "5.", "any, none or a step")],
)
def test_the_command_says_what_it_expected(tmp_path: Path, option: str, value: str, text: str) -> None:
    arguments = ["--local", str(tmp_path), "--job", "j", "--rank", "0", "--nodes", "1", option, value]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert text in result.output
