import pytest
from click.testing import CliRunner

from checkpoint_replicator.cli import forget as module
from checkpoint_replicator.cli import main
from checkpoint_replicator.messages import Wish


@pytest.mark.parametrize(
    ("words", "wish"),
    [
        ([], Wish(id="", kind="forget", until=0)),
        (["--ramdisks", "--force"], Wish(id="", kind="forget", until=0, ramdisks=True, force=True)),
    ],
)
def test_a_job_is_ordered_to_be_forgotten(monkeypatch: pytest.MonkeyPatch, words: list[str], wish: Wish) -> None:
    heard: list[Wish] = []

    def run(redis: str, job: str, timeout: float, wanted: Wish) -> str:
        del redis, job, timeout
        heard.append(wanted)
        return "done"

    monkeypatch.setattr(module, "run_order", run)
    assert CliRunner().invoke(main, ["forget", "--job", "llama", *words]).exit_code == 0
    assert heard == [wish]
