import pytest
from click.testing import CliRunner

from checkpoint_replicator.cli import main
from checkpoint_replicator.cli import restore as module
from checkpoint_replicator.ids import Epoch, Step
from checkpoint_replicator.messages import Wish
from checkpoint_replicator.save import Save

WORDS = ["restore", "--job", "llama"]


@pytest.fixture
def wishes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, float, Wish]]:
    heard: list[tuple[str, str, float, Wish]] = []

    def run(redis: str, job: str, timeout: float, wish: Wish) -> str:
        heard.append((redis, job, timeout, wish))
        return "it is ordered"

    monkeypatch.setattr(module, "run_order", run)
    return heard


@pytest.mark.parametrize(
    ("words", "wish"),
    [
        (["--save", "3.40"], Wish(id="", kind="restore", until=0, save=Save(Epoch(3), Step(40)))),
        (["--backup", "2026-01-31_12-00"], Wish(id="", kind="restore", until=0, backup="2026-01-31_12-00")),
        (["--none"], Wish(id="", kind="restore", until=0, none=True)),
        (["--withdraw"], Wish(id="", kind="withdraw", until=0)),
    ],
)
def test_one_thing_is_ordered_and_what_became_of_it_is_printed(
    wishes: list[tuple[str, str, float, Wish]], words: list[str], wish: Wish
) -> None:
    done = CliRunner().invoke(main, [*WORDS, *words, "--redis", "redis://r:1/0", "--timeout", "7"])
    assert (done.exit_code, done.stdout) == (0, "it is ordered\n")
    assert wishes == [("redis://r:1/0", "llama", 7, wish)]


@pytest.mark.parametrize("words", [[], ["--none", "--save", "1.1"], ["--backup", "../x"], ["--save", "newest"]])
def test_what_is_not_exactly_one_thing_is_wrong_usage(
    wishes: list[tuple[str, str, float, Wish]], words: list[str]
) -> None:
    done = CliRunner().invoke(main, [*WORDS, *words])
    assert done.exit_code == 2
    assert wishes == []
