"""Each row of the table of times takes effect: it is set to two values, and what is waited for is measured."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import msgspec
import pytest

from checkpoint_coordinator import words
from checkpoint_coordinator.archive import Archive
from checkpoint_coordinator.backups import Situation
from checkpoint_coordinator.tenure import Tenure
from checkpoint_coordinator.words import AcquireLease, LeaseAnswered, RenewLease
from checkpoint_replicator.backoff import spread
from checkpoint_replicator.fence import ZERO
from checkpoint_replicator.ids import Epoch, Host, Incarnation, Step
from checkpoint_replicator.liveness import Life, Pace, Progress, life, pace
from checkpoint_replicator.records import Lease, Outcome
from checkpoint_replicator.save import Save
from checkpoint_replicator.shape import Shape
from checkpoint_replicator.times import Times
from checkpoint_transfer.patience import patience_of
from checkpoint_watcher import effects as do
from checkpoint_watcher import events as did
from support.coordination import Bench
from support.fake_nodes import Bucket
from support.watcher_shell import ModelRamdisk, WatcherShell
from support.watcher_story import JOB, open_session, run_fresh

TWO: Final = Shape(2, 1, 1, "pytorch")
STEP: Final = 0.02
ELSEWHERE: Final = {
    "client": "only what the others must stay below",
    "drain": "unit/test_process.py::test_a_service_that_does_not_drain_is_ended_at_its_deadline",
    "linger": "unit/test_process.py::test_a_service_that_does_not_drain_is_ended_at_its_deadline",
    "loop_silent": "unit/test_metrics.py",
    "store_silent": "integration/test_uploader.py::test_s86_…",
    "idle": "unit/coordinator",
}
"""Rows that need a real process, or that only others are measured against."""


def first(true: Callable[[float], object], most: float = 400) -> float:
    """Return the first moment at which something holds."""
    moment = 0.0
    while not true(moment):
        moment += STEP
        assert moment < most
    return moment


# ---- the coordinator


def lease() -> Lease:
    return Lease(incarnation=Incarnation("me"), token=1, host=Host("h"), reports="", beacons="")


def tenure(times: Times) -> Tenure:
    made = Tenure(times)
    assert isinstance(made.wanted(0)[0], AcquireLease)
    made.answered(LeaseAnswered(0, lease()), 0)
    return made


def renewed(times: Times) -> float:
    made = tenure(times)
    return first(lambda now: any(isinstance(one, RenewLease) for one in made.wanted(now)))


def acts(times: Times) -> float:
    made = tenure(times)
    return first(lambda now: not made.may_act(now))


def gap(times: Times, kind: type[words.Effect]) -> float:
    """Return the time between two effects of a running coordinator."""
    bench = Bench(times=times)
    one = bench.coordinator()
    bench.cluster(2)
    assert bench.run(10, bench.all_running)
    moments: list[float] = []
    perform = one.perform

    def noted(effect: words.Effect) -> None:
        if isinstance(effect, kind):
            moments.append(bench.clock.now)
        perform(effect)

    one.perform = noted  # type: ignore[method-assign]
    bench.run(130)
    assert len(moments) > 3
    return (moments[-1] - moments[1]) / (len(moments) - 2)


def looked(times: Times) -> float:
    """Return when a coordinator that heard something wants to look at it."""
    bench = Bench(times=times)
    one = bench.coordinator()
    nodes = bench.cluster(2)
    assert bench.run(10, bench.all_running)
    one.hear(words.ReportReceived(nodes[0].sender, nodes[0].report()))
    bench.clock.advance(0.001)
    one.hear(words.ReportReceived(nodes[0].sender, nodes[0].report()))
    deadline = one.machine.next_deadline()
    assert deadline is not None
    return deadline - bench.clock.now


def facts(times: Times) -> float:
    """Return how often `alive` changes."""
    bench = Bench(times=times)
    bench.coordinator()
    bench.cluster(2)
    assert bench.run(10, bench.all_running)
    texts = []
    for _ in range(600):
        bench.run(0.1)
        texts.append(str(bench.store.contents().get("ckpt:{run}:alive")))
    return 60 / sum(one != other for one, other in pairwise(texts))


def quarrelled(times: Times) -> float:
    bench = Bench(times=times)
    bench.coordinator()
    one, other = bench.node("a"), bench.node("b")
    one.open(0, TWO)
    other.open(1, Shape(3, 1, 1, "pytorch"))
    begun = bench.clock.now
    assert bench.run(60, lambda: one.failed is not None)
    return bench.clock.now - begun


def reopened(times: Times, *, every: float | None) -> float:
    """Return when an epoch opens after an abandonment, with a new session now and then."""
    bench = Bench(times=times)
    bench.coordinator()
    nodes = bench.cluster(2)
    nodes[1].complete = False
    bench.run(2)
    nodes[0].open(0, TWO)
    begun, last = bench.clock.now, bench.clock.now
    while bench.store.contents()["ckpt:{run}:epoch"]["number"] != "2":  # type: ignore[call-overload,index]
        bench.run(0.1)
        if every is not None and bench.clock.now - last >= every:
            last = bench.clock.now
            nodes[0].open(0, TWO)
        assert bench.clock.now - begun < 60
    return bench.clock.now - begun


def waited_for_the_bucket(times: Times) -> float:
    bucket = Bucket()
    bucket.fault = "403 forbidden"
    bench = Bench(bucket=bucket, times=times)
    bench.coordinator()
    nodes = bench.cluster(2)
    for rank, node in enumerate(nodes):
        node.hold(Save(Epoch(1), Step(3)), rank, 0, TWO, own=True)
    begun = bench.clock.now
    assert bench.run(90, bench.all_running)
    return bench.clock.now - begun


def waited_for_witnesses_of_a_wish(times: Times) -> float:
    bucket = Bucket()
    bench = Bench(bucket=bucket, times=times)
    bench.coordinator()
    bench.cluster(2)
    assert bench.run(10, bench.all_running)
    bucket.fault = "403 forbidden"
    begun = bench.clock.now
    assert bench.ordered("restore", backup="2026-01-01_00-00").state == "done"
    return bench.clock.now - begun


def next_uploader(times: Times) -> float:
    archive = Archive(times, iter("abcdef").__next__)
    archive.want_listing(0)

    def both(now: float) -> bool:
        archive.advance(Situation(now=now, unix=now, stamp=ZERO, uploaders=(Host("a"), Host("b"))))
        return len(archive.orders()) > 1

    return first(both)


# ---- the watcher


def every(times: Times, kind: type[do.Effect], *, busy: bool = False) -> float:
    """Return the longest time between two effects of a running watcher; `busy`: the usual one, under changes."""
    shell = WatcherShell(ModelRamdisk(), times=times).start()
    run_fresh(shell)
    shell.wait(15)
    moments, seen, begun = [], len(shell.all(kind)), shell.now
    while shell.now < begun + (4 if busy else 80):
        shell.wait(STEP if busy else 0.1, scan=False)
        if busy:
            shell.disk.save(round(shell.now * 1000))
            shell.scan()
        if len(shell.all(kind)) > seen:
            seen = len(shell.all(kind))
            moments.append(shell.now)
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    return sum(gaps) / len(gaps) if busy else max(gaps)


def until(times: Times, true: Callable[[WatcherShell], object], **keys: Any) -> float:
    shell = WatcherShell(ModelRamdisk(), times=times).start()
    open_session(shell)
    if keys:
        shell.read(shell.view_of(**keys))
    begun = shell.now
    while not true(shell):
        shell.wait(0.1)
        assert shell.now < 400
    return shell.now - begun


def failed(shell: WatcherShell) -> bool:
    return "replicator.failed" in shell.disk.files


def without_rendezvous(times: Times) -> float:
    return until(times, failed) - until(times, lambda shell: shell.disk.yaml is None)


def blank(times: Times) -> float:
    shell = WatcherShell(ModelRamdisk(), times=times).start()
    shell.disk.write_yaml(b"")
    shell.scan()
    begun = shell.now
    while not failed(shell):
        shell.wait(0.1)
    return shell.now - begun


def removed_again(times: Times) -> float:
    """Return when a yaml that could not be removed is tried again."""
    shell = WatcherShell(ModelRamdisk(), times=times, hold=(do.RemoveYaml,)).start()
    session = open_session(shell)
    shell.read(shell.view_of(outcome=Outcome.UNKNOWN))
    begun = shell.now
    shell.feed(did.YamlRemoved(session, "permission denied"))
    while len(shell.all(do.RemoveYaml)) < 2:
        shell.wait(STEP, scan=False)
        assert shell.now < 60
    return shell.now - begun


def tried_again(times: Times, failures: int) -> float:
    """Return the full delay after so many failures, without its spread."""
    shell = WatcherShell(ModelRamdisk(), times=times).start()
    open_session(shell)
    authority = shell.machine.authorities[JOB]
    authority._failures = failures
    authority.failed("Redis is away", shell.now)
    return (authority.due - shell.now) / (0.5 + spread(f"{shell.incarnation} {JOB}", failures) / 2)


MEASURES: Final[dict[str, tuple[float, float, Callable[[Times], float]]]] = {
    "report_gap": (0.2, 0.5, lambda times: every(times, do.SendReport, busy=True)),
    "report": (1.0, 4.0, lambda times: every(times, do.SendReport)),
    "orders": (2.0, 5.0, lambda times: every(times, do.SendTransfer)),
    "suspect": (4.0, 9.0, lambda times: first(lambda now: life(now, times) is not Life.OK)),
    "lost": (15.0, 40.0, lambda times: first(lambda now: life(now, times) is Life.LOST)),
    "stuck": (6.0, 20.0, lambda times: first(lambda now: pace(0, Progress(1, 2, 0), now, times).pace is Pace.STUCK)),
    "lease_renewed": (1.0, 5.0, renewed),
    "lease_ttl": (7.0, 20.0, lambda times: acts(times) + times.lease_margin),
    "lease_margin": (1.0, 5.0, lambda times: times.lease_ttl - acts(times)),
    "look": (0.2, 0.6, looked),
    "facts": (3.0, 6.0, facts),
    "hosts": (3.0, 9.0, lambda times: gap(times, words.ReadHosts)),
    "repair": (10.0, 20.0, lambda times: gap(times, words.ReadSnapshot)),
    "beacon": (0.5, 3.0, lambda times: gap(times, words.Publish)),
    "beacon_silent": (4.0, 9.0, lambda times: every(times, do.ReadView)),
    "scan": (0.5, 3.0, removed_again),
    "stocktake": (4.0, 15.0, lambda times: every(times, do.TakeInventory)),
    "empty_yaml": (4.0, 20.0, blank),
    "consumed": (20.0, 90.0, lambda times: until(times, lambda shell: shell.disk.yaml is None)),
    "shape_quarrel": (5.0, 20.0, quarrelled),
    "rendezvous": (100.0, 150.0, without_rendezvous),
    "failed": (250.0, 290.0, lambda times: until(times, failed, outcome=Outcome.UNKNOWN)),
    "abandoned_quiet": (2.0, 8.0, lambda times: reopened(times, every=None)),
    "abandoned_most": (6.0, 12.0, lambda times: reopened(times, every=1.5)),
    "bucket_silent": (15.0, 40.0, waited_for_the_bucket),
    "wish_unheard": (8.0, 14.0, waited_for_witnesses_of_a_wish),
    "want_parked": (1.0, 4.0, lambda times: patience_of(times).parked),
    "acknowledged": (3.0, 8.0, lambda times: patience_of(times).answer),
    "uploader_turn": (5.0, 20.0, next_uploader),
    "retry_least": (0.1, 1.0, lambda times: tried_again(times, 0)),
    "retry_most": (2.0, 9.0, lambda times: tried_again(times, 30)),
}
"""Row to two values and to how it is measured."""

TOGETHER: Final = frozenset({"report", "orders"})
"""What is to be said again soon is said together with what is due."""


def test_every_row_is_measured_or_said_where_else_it_is() -> None:
    assert {*MEASURES} | {*ELSEWHERE} == set(Times.__struct_fields__)
    assert not {*MEASURES} & {*ELSEWHERE}


@pytest.mark.parametrize("row", MEASURES)
def test_s72_each_row_takes_effect(row: str) -> None:
    *values, measure = MEASURES[row]
    for value in values:
        times = msgspec.structs.replace(Times(), **{row: value})
        found = measure(times)
        least = 0.7 * value if row in TOGETHER else value
        short, late = min(0.88 * least, least - 0.25), max(1.12 * value, value + 0.25)
        assert short <= found <= late, f"{row} = {value:g} s: measured {found:.2f} s"
