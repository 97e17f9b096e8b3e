import pytest

from checkpoint_coordinator import hearing
from checkpoint_coordinator.hearing import Hearing
from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Address, Epoch, Host, Incarnation, Job, Rank, Step, Worker
from checkpoint_replicator.liveness import Life
from checkpoint_replicator.messages import Held, NodeReport, Party, RestoreProgress, Service
from checkpoint_replicator.records import Help
from checkpoint_replicator.save import Save, ShardKey, Tag
from checkpoint_replicator.shape import Shape
from checkpoint_replicator.times import Times

SHAPE = Shape(1, 1, 1, "pytorch")
TAG = Tag(Job("run"), Save(Epoch(1), Step(1)), SHAPE, ShardKey(Rank(0), Worker(0)), Address("a" * 64), 1)
STAMP = Stamp(1, Epoch(1), 1)


def party(host: str, life: str = "1") -> Party:
    return Party(host=Host(host), service=Service.WATCHER, incarnation=Incarnation(f"{host}{life}"))


def test_late_reports_of_one_life_are_passed_over() -> None:
    hearing = Hearing(Times())
    assert hearing.take(party("a"), NodeReport(version=5), 1)
    assert not hearing.take(party("a"), NodeReport(version=4), 2)
    assert hearing.voices[Host("a")].at == 1


def test_a_repeated_report_is_a_heartbeat() -> None:
    hearing = Hearing(Times())
    hearing.take(party("a"), NodeReport(version=5), 1)
    assert hearing.take(party("a"), NodeReport(version=5), 9)
    assert hearing.silence(Host("a"), 9) == 0


def test_of_two_lives_the_later_counts_and_the_earlier_is_never_heard_again() -> None:
    hearing = Hearing(Times())
    hearing.take(party("a", "old"), NodeReport(version=50), 1)
    assert hearing.take(party("a", "new"), NodeReport(version=1), 2)
    assert not hearing.take(party("a", "old"), NodeReport(version=51), 3)
    assert hearing.taken() == {"anew": 1}


def test_hosts_are_judged_by_our_own_clock() -> None:
    hearing = Hearing(Times())
    hearing.take(party("a"), NodeReport(version=1), 100)
    assert [hearing.life(Host("a"), now) for now in (101, 107, 121)] == [Life.OK, Life.SUSPECT, Life.LOST]
    assert hearing.life(Host("stranger"), 101) is Life.LOST
    assert hearing.live(107) == {"a"}
    assert hearing.live(121) == frozenset()


def test_progress_remembers_since_when_it_stands_still() -> None:
    hearing = Hearing(Times())
    for now, have in ((1, 10), (5, 10), (9, 20)):
        progress = RestoreProgress(stamp=STAMP, have=have, size=100)
        hearing.take(party("a"), NodeReport(version=now, restore=progress), now)
        found = hearing.voices[Host("a")].progress
        assert found is not None
        assert found.at == {1: 1, 5: 1, 9: 9}[now]


def test_a_new_lease_asks_for_full_reports() -> None:
    hearing = Hearing(Times())
    hearing.take(party("a"), NodeReport(version=1), 1)
    hearing.stale()
    assert not hearing.voices[Host("a")].fresh
    hearing.take(party("a"), NodeReport(version=1), 2)
    assert hearing.voices[Host("a")].fresh


def test_hosts_that_fell_silent_together_are_a_common_fault() -> None:
    hearing = Hearing(Times())
    for number in range(6):
        hearing.take(party(f"h{number}"), NodeReport(version=1), 100 if number < 3 else 110)
    hosts = list(hearing.voices)
    assert hearing.common_fault(hosts, 110)
    assert not hearing.common_fault(hosts[2:], 110)


def test_hosts_that_were_silent_for_long_are_forgotten() -> None:
    hearing = Hearing(Times())
    hearing.take(party("a"), NodeReport(version=1), 1)
    hearing.forget_silent(50, 60)
    assert hearing.voices
    hearing.forget_silent(62, 60)
    assert not hearing.voices


def test_only_the_same_words_of_the_same_life_soon_after_are_a_repetition() -> None:
    hearing = Hearing(Times())
    report = NodeReport(version=1)
    assert hearing.repeats(party("a"), report, 1) is None
    hearing.take(party("a"), report, 1)
    assert hearing.repeats(party("a"), NodeReport(version=1), 2) == report
    assert hearing.repeats(party("a"), NodeReport(version=2), 2) == NodeReport(version=2)
    assert hearing.repeats(party("a"), NodeReport(version=2, complete=True), 2) is None
    assert hearing.repeats(party("a", "new"), report, 2) is None
    assert hearing.repeats(party("a"), report, 1 + Times().suspect) is None
    hearing.stale()
    assert hearing.repeats(party("a"), report, 2) is None


def test_a_host_that_calls_for_help_is_suspect_and_not_lost_for_as_long_as_it_calls() -> None:
    hearing = Hearing(Times())
    hearing.take(party("a"), NodeReport(version=1), 100)
    hearing.called({Host("a"): Help(host=Host("a"), incarnation=Incarnation("a1"), reason="no beacon")}, 119)
    assert hearing.call(Host("a"), 120) == "no beacon"
    assert hearing.life(Host("a"), 125) is Life.SUSPECT
    assert hearing.life(Host("a"), 129) is Life.LOST
    assert hearing.call(Host("a"), 129) == ""
    hearing.called({Host("a"): Help(host=Host("a"), incarnation=Incarnation("a1"), reason="no beacon")}, 130)
    hearing.take(party("a"), NodeReport(version=2), 131)
    assert hearing.call(Host("a"), 131) == ""


def test_a_life_that_was_superseded_calls_in_vain() -> None:
    hearing = Hearing(Times())
    hearing.supersede(Host("a"), Incarnation("a1"))
    hearing.called({Host("a"): Help(host=Host("a"), incarnation=Incarnation("a1"), reason="no beacon")}, 1)
    assert hearing.call(Host("a"), 1) == ""
    assert hearing.superseded() == {Host("a"): ["a1"]}
    assert not hearing.take(party("a"), NodeReport(version=1), 2)


def test_all_hosts_together_report_so_many_shards_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hearing, "MOST_SHARDS", 3)
    heard = Hearing(Times())
    two = NodeReport(version=1, held=(Held(tag=TAG),) * 2)
    assert heard.take(party("a"), two, 0.0)
    assert not heard.take(party("b"), two, 0.0)
    assert heard.take(party("a"), NodeReport(version=2, held=two.held), 0.0)
    assert heard.take(party("b"), NodeReport(version=1, held=two.held[:1]), 0.0)
    assert not heard.take(party("b"), NodeReport(version=2, held=two.held), 0.0)
    heard.take(party("b"), NodeReport(version=2), 50.0)
    heard.forget_silent(100.0, 60.0)
    assert heard.take(party("c"), NodeReport(version=1, held=(*two.held, Held(tag=TAG))), 100.0)
