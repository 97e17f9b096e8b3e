from itertools import count

import pytest

from checkpoint_coordinator.chores import Chore
from checkpoint_replicator.ids import Host
from checkpoint_replicator.messages import BackupResult

HOSTS = (Host("a"), Host("b"))


class Script:
    def __init__(self) -> None:
        self.chore = Chore("seal", "2026-01-01_00-00")
        self.results: dict[str, tuple[Host, BackupResult]] = {}
        self.ids = (f"id-{number}" for number in count(1))

    def at(self, now: float, hosts: tuple[Host, ...] = HOSTS) -> list[tuple[str, str]]:
        self.chore.advance(now, 10, hosts, self.results, lambda: next(self.ids))
        return [(host, order.id) for host, order in self.chore.orders()]

    def answer(self, host: str, order: str, *, done: bool = False, reason: str = "", size: int = 0) -> None:
        result = BackupResult(id=order, kind="seal", done=done, reason=reason, size=size)
        self.results[order] = (Host(host), result)


@pytest.fixture
def script() -> Script:
    return Script()


def test_one_host_is_asked_and_its_answer_counts(script: Script) -> None:
    assert script.at(0) == [("a", "id-1")]
    assert script.at(9) == [("a", "id-1")]
    script.answer("a", "id-1", done=True)
    assert script.at(9.5) == []
    assert script.chore.result is not None


def test_the_next_is_asked_after_its_turn_and_the_first_may_still_finish(script: Script) -> None:
    script.at(0)
    assert script.at(10) == [("a", "id-1"), ("b", "id-2")]
    script.answer("a", "id-1", done=True)
    assert script.at(11) == []
    assert script.chore.host == "a"


def test_a_host_that_moves_keeps_its_turn(script: Script) -> None:
    script.at(0)
    for now in range(5, 60, 5):
        script.answer("a", "id-1", size=now)
        assert script.at(now) == [("a", "id-1")]


def test_after_a_failure_the_next_is_asked_at_once(script: Script) -> None:
    script.at(0)
    script.answer("a", "id-1", reason="403 forbidden")
    assert script.at(1) == [("b", "id-2")]
    assert script.chore.reason == "a: 403 forbidden"
    script.answer("b", "id-2", reason="403 too")
    assert script.at(2) == []
    assert script.chore.exhausted


def test_an_answer_of_somebody_else_or_of_another_kind_means_nothing(script: Script) -> None:
    script.at(0)
    script.answer("b", "id-1", done=True)
    script.results["id-1"] = (Host("b"), script.results["id-1"][1])
    script.at(1)
    assert script.chore.result is None


def test_a_host_that_is_gone_gives_its_turn_away(script: Script) -> None:
    script.at(0)
    assert script.at(1, (Host("b"),)) == [("a", "id-1"), ("b", "id-2")]


def test_without_uploaders_it_waits_and_says_so(script: Script) -> None:
    assert script.at(0, ()) == []
    assert not script.chore.exhausted
    assert script.chore.reason == "no uploader answers"
