import pytest
from click.testing import CliRunner

from checkpoint_replicator.cli import hold as module
from checkpoint_replicator.cli import main
from checkpoint_replicator.errors import RefusedError
from checkpoint_replicator.messages import Wish


@pytest.mark.parametrize(
    ("words", "wish"),
    [
        (["--reason", "loss is odd"], Wish(id="", kind="hold", until=0, reason="loss is odd")),
        (["--release"], Wish(id="", kind="resume", until=0)),
    ],
)
def test_a_hold_is_ordered_and_ended(monkeypatch: pytest.MonkeyPatch, words: list[str], wish: Wish) -> None:
    heard: list[Wish] = []

    def run(redis: str, job: str, timeout: float, wanted: Wish) -> str:
        del redis, job, timeout
        heard.append(wanted)
        return "done"

    monkeypatch.setattr(module, "run_order", run)
    assert CliRunner().invoke(main, ["hold", "--job", "llama", *words]).exit_code == 0
    assert heard == [wish]


def test_a_refusal_is_told_with_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object) -> str:
        raise RefusedError("nothing is held")

    monkeypatch.setattr(module, "run_order", run)
    done = CliRunner().invoke(main, ["hold", "--job", "llama", "--release"])
    assert (done.exit_code, done.stderr) == (77, "checkpoint-replicator: nothing is held\n")


@pytest.mark.parametrize("words", [["--reason", "disk\nswap"], ["--reason", "\x1b[2J"], ["--timeout", "nan"]])
def test_a_reason_of_two_lines_and_a_deadline_that_is_no_number_are_wrong_usage(words: list[str]) -> None:
    done = CliRunner().invoke(main, ["hold", "--job", "llama", *words])
    assert done.exit_code == 2
    assert "expected" in done.stderr
