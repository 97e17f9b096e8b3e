import json

import msgspec
import pytest
from click.testing import CliRunner

from checkpoint_replicator.cli import explain as module
from checkpoint_replicator.cli import main
from checkpoint_replicator.ids import Job
from checkpoint_replicator.store import Snapshot
from support.memory_store import MemoryManifestStore, StoreModel


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> StoreModel:
    model = StoreModel(lambda: 0.0)
    monkeypatch.setattr(module, "RedisManifestStore", lambda _: MemoryManifestStore(model))
    return model


def test_a_job_is_explained_in_lines_or_as_json(model: StoreModel) -> None:
    model.add_job(Job("llama"))
    done = CliRunner().invoke(main, ["explain", "--job", "llama"])
    assert done.exit_code == 0
    assert done.stdout.splitlines()[1] == "no epoch was ever opened: no trainer came"
    as_json = CliRunner().invoke(main, ["explain", "--job", "llama", "--json"])
    assert json.loads(as_json.stdout) == done.stdout.splitlines()


def test_a_job_that_was_written_while_it_was_read_is_explained_as_such(
    model: StoreModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def snapshot(store: MemoryManifestStore, job: Job, *, mixed: bool = False) -> Snapshot:
        return msgspec.structs.replace(store.model.snapshot(job), mixed=mixed)

    model.add_job(Job("llama"))
    monkeypatch.setattr(MemoryManifestStore, "snapshot", snapshot)
    done = CliRunner().invoke(main, ["explain", "--job", "llama"])
    assert done.stdout.splitlines()[-1] == "read while it was written; what is shown may be of different moments"


def test_a_save_is_explained(model: StoreModel) -> None:
    model.add_job(Job("llama"))
    done = CliRunner().invoke(main, ["explain", "--job", "llama", "--save", "1.5"])
    assert "save 1.5 is not in the index" in done.stdout


def test_an_unknown_job_is_an_error_that_names_the_known_ones(model: StoreModel) -> None:
    model.add_job(Job("llama"))
    done = CliRunner().invoke(main, ["explain", "--job", "gemma"])
    assert (done.exit_code, done.stderr) == (66, "checkpoint-replicator: no job gemma; known: llama\n")


def test_the_reason_of_a_hold_is_told_in_one_line(model: StoreModel) -> None:
    model.add_job(Job("llama"))
    model.put("ckpt:{llama}:keys", {"hold": "hash"})
    model.put("ckpt:{llama}:hold", {"reason": "disk\nswap"})
    done = CliRunner().invoke(main, ["explain", "--job", "llama"])
    assert "people hold all deleting, pruning and backups: disk\\nswap" in done.stdout.splitlines()
