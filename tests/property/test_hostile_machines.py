"""Whatever a message that parses says, no machine fails over it, and what it wants done then can be done."""

from typing import get_args

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkpoint_replicator.ids import Address, Host, Incarnation, Job
from checkpoint_replicator.machine import Ticked
from checkpoint_replicator.messages import (
    Beacon,
    Leaves,
    Offer,
    Party,
    Run,
    Service,
    TransferOrders,
    TransferReport,
    UploaderReport,
    Want,
)
from checkpoint_replicator.records import BackupOrder, NodeView, Peer
from checkpoint_replicator.times import Times
from checkpoint_replicator.wire import decode, encode
from checkpoint_transfer import effects as do
from checkpoint_transfer.machine import Limits, TransferMachine
from checkpoint_transfer.patience import Patience
from checkpoint_uploader import holder, machine
from checkpoint_watcher import events as did
from checkpoint_watcher.effects import SendReport, SendTransfer, SendUploader
from checkpoint_watcher.machine import WatcherMachine
from support.factories import envelope
from support.strategies import struct

ME = Peer(host=Host("a"), incarnation=Incarnation("a1"), control="tcp://127.0.0.1:1", leaves=("tcp://127.0.0.1:2",))
LOCAL = Peer(host=Host("a"), incarnation=Incarnation("a1"), control="ipc://x", leaves=("ipc://x",))
B = Peer(host=Host("b"), incarnation=Incarnation("b1"), control="tcp://127.0.0.1:3", leaves=("tcp://127.0.0.1:4",))
KNOWN, OTHER = Address("a" * 64), Address("D" + "b" * 64)
JOB = Job("job")
slow = settings(suppress_health_check=list(HealthCheck), max_examples=25)

parties = st.builds(
    Party,
    host=st.sampled_from([Host("a"), Host("b"), Host("c")]),
    service=st.sampled_from(Service),
    incarnation=st.sampled_from([Incarnation("a1"), Incarnation("b1")]),
)
numbers = st.sampled_from([0, 1, 2, 3, 4, 1 << 31, (1 << 53) - 1])
runs = st.lists(st.builds(Run, first=numbers, count=st.sampled_from([1, 2, 4, 1 << 31])), max_size=4).map(tuple)
peers = st.sampled_from([ME, LOCAL, B])
addresses = st.sampled_from([KNOWN, OTHER])
wants = st.builds(Want, address=addresses, answer_to=peers, runs=runs, credit=numbers, tree=st.booleans())
leaves = st.builds(Leaves, address=addresses, runs=runs)
bodies = st.lists(st.sampled_from([b"", b"x", b"x" * 100]), max_size=4).map(tuple)
wire = st.one_of(*(struct(kind) for kind in get_args(do.Wire)), wants, leaves)
steps = st.lists(st.tuples(parties, wire, bodies, st.sampled_from([0.0, 0.1, 3.0, 100.0])), max_size=12)


def sendable(message: object) -> bool:
    """Whether every reader takes it."""
    return decode(encode(envelope(message)))[0].message == message  # type: ignore[arg-type]


@given(steps)
@slow
def test_no_message_stops_a_transfer(said: list[tuple[Party, do.Wire, tuple[bytes, ...], float]]) -> None:
    transfer = TransferMachine(ME, LOCAL, Limits(peers=4, copies=2, window=8 << 20), Patience())
    now = 0.0
    transfer.handle(do.ShardOpened(KNOWN, [1, 2, 3]), now)
    for sender, message, body, pause in said:
        for event in (do.MessageCame(sender, JOB, message, body), Ticked()):
            now += pause
            for effect in transfer.handle(event, now):
                if isinstance(effect, do.Tell | do.TellUploader):
                    assert sendable(effect.message)
        assert transfer.next_deadline() > float("-inf")
    assert sendable(transfer.report)
    order = Offer(tags=(), answer_to=B, address=OTHER)
    transfer.handle(do.MessageCame(Party(host=Host("b"), service=Service.TRANSFER), JOB, order, ()), now)
    for _ in range(40):  # everybody falls silent: nothing is kept of it
        now += 30
        transfer.handle(Ticked(), now)
    assert len(transfer.report.fetches) <= 256


@given(st.lists(st.tuples(parties, struct(Want) | wants, st.sampled_from([0.0, 100.0])), max_size=12))
@slow
def test_no_want_stops_an_uploader(said: list[tuple[Party, Want, float]]) -> None:
    holding = holder.Holder(holder.Bounds(shards=3, reads=2))
    now = 0.0
    for asker, want, pause in said:
        now += pause
        queue: list[holder.HolderEvent] = [holder.Wanted(JOB, asker, want), Ticked()]
        while queue:
            for effect in holding.handle(queue.pop(0), now):
                if isinstance(effect, holder.OpenShard):
                    queue.append(holder.Opened(effect.shard, [1, 2, 3]))
                elif isinstance(effect, holder.ReadLeaves):
                    assert sum(run.count for run in effect.runs) <= 3
                    queue.append(holder.LeavesSent(effect.shard, effect.runs))


@given(
    st.lists(
        st.builds(
            machine.Ordered,
            st.sampled_from([Incarnation("w"), Incarnation("v")]),
            st.just(JOB),
            numbers,
            st.lists(struct(BackupOrder), max_size=4).map(tuple),
        ),
        max_size=6,
    )
)
@slow
def test_no_order_stops_an_uploader(said: list[machine.Ordered]) -> None:
    uploader = machine.Uploader("file:///x", machine.Limits())
    now = 0.0
    for order in said:
        now += 1
        for effect in [*uploader.handle(order, now), *uploader.handle(Ticked(), now)]:
            if isinstance(effect, machine.Report):
                assert sendable(effect.report)


stories = st.one_of(
    struct(TransferReport).map(lambda report: did.TransferReported(Incarnation("t"), report)),
    struct(UploaderReport).map(lambda report: did.UploaderReported(JOB, Incarnation("u"), report)),
    struct(Beacon).map(lambda beacon: did.BeaconHeard(JOB, Incarnation("c"), beacon)),
    struct(NodeView).map(lambda view: did.ViewRead(JOB, view)),
)


@given(st.lists(stories, max_size=10))
@slow
def test_no_report_beacon_or_view_stops_a_watcher(events: list[did.Event]) -> None:
    ids = iter(range(10**6))
    watcher = WatcherMachine(Host("a"), Incarnation("w"), Times(), lambda: f"id{next(ids)}")
    now = 0.0
    queue: list[did.Event] = [did.Started(session=None, fences={}, held=(), claims=()), *events]
    for event in queue:
        now += 1
        for effect in [*watcher.handle(event, now), *watcher.handle(Ticked(), now + 0.5)]:
            match effect:
                case SendReport(_, report):
                    assert sendable(report)
                case SendTransfer(orders):
                    assert isinstance(orders, TransferOrders)
                    assert sendable(orders)
                case SendUploader(_, wanted):
                    assert sendable(wanted)
                case _:
                    pass
        deadline = watcher.next_deadline()
        assert deadline is None or deadline == deadline  # noqa: PLR0124 - no NaN
