"""Whatever a report says, the coordinator goes on; what is true of the others stays true."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkpoint_coordinator.words import ReportReceived
from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Address, Epoch, Host, Incarnation, Job, Rank, SessionId, Step, StoreId, Worker
from checkpoint_replicator.messages import (
    BackupEntry,
    BackupResult,
    Fault,
    Held,
    NodeReport,
    Party,
    RestoreProgress,
    Saving,
    Service,
    ServiceHealth,
)
from checkpoint_replicator.records import Peer
from checkpoint_replicator.save import Save, ShardKey, Tag
from checkpoint_replicator.session import Session, SessionSpec, SessionState
from checkpoint_replicator.shape import Shape
from support.coordination import JOB, Bench
from support.fake_nodes import Bucket

numbers = st.integers(-2, 3) | st.sampled_from([-(2**63), 2**63 - 1, 2**53, 2**31])
names = st.sampled_from(["", "a", "node-0", "node-1", "../x", "\x00", "é" * 300])
jobs = st.sampled_from([JOB, Job("other")])
saves = st.builds(Save, st.builds(Epoch, numbers), st.builds(Step, numbers))
shapes = st.builds(Shape, numbers, numbers, numbers, st.sampled_from(["pytorch", ""])) | st.just(
    Shape(2, 1, 1, "pytorch")
)
keys = st.builds(ShardKey, st.builds(Rank, numbers), st.builds(Worker, numbers))
stamps = st.builds(Stamp, numbers, st.builds(Epoch, numbers), numbers)
addresses = st.sampled_from([Address("a" * 64), Address("b" * 64), Address("../x"), Address("")])
tags = st.builds(Tag, jobs, saves, shapes, keys, addresses, numbers)
ranks = st.none() | st.builds(Rank, numbers)
specs = st.builds(
    SessionSpec,
    job=jobs,
    rank=st.builds(Rank, numbers),
    shape=shapes,
    peer_ranks=st.none() | st.tuples(st.builds(Rank, numbers)),
    peers_per_node=st.none() | numbers,
    backup_interval_minutes=st.none() | st.floats(),
    backup_interval_steps=st.none() | numbers,
)
sessions = st.builds(
    Session,
    id=st.builds(SessionId, names | st.just("node-0-session-1")),
    spec=specs,
    state=st.sampled_from(SessionState),
    epoch=st.builds(Epoch, numbers),
)
peers = st.builds(
    Peer, host=st.builds(Host, names), incarnation=st.just(Incarnation("x")), control=names, leaves=st.just(())
)
entries = st.builds(
    BackupEntry, name=names | st.just("2026-01-01_00-00"), whole=st.booleans(), tags=st.tuples(tags), order=names
)
results = st.builds(
    BackupResult,
    id=st.sampled_from(["", "c1-1", "c1-2", "c1-3"]),
    kind=st.sampled_from(["list", "reserve", "upload", "odd"]),
    name=names,
    done=st.booleans(),
    reason=names,
    entries=st.tuples(entries),
    size=numbers,
)
reports = st.builds(
    NodeReport,
    version=numbers,
    session=st.none() | sessions,
    rank=ranks,
    store=st.builds(StoreId, names),
    obeyed=stamps,
    newest_committed=st.none() | saves,
    complete=st.booleans(),
    held=st.lists(st.builds(Held, tag=tags, committed=st.booleans(), own=st.booleans()), max_size=3).map(tuple),
    saving=st.lists(st.builds(Saving, save=saves, key=keys), max_size=2).map(tuple),
    restore=st.none() | st.builds(RestoreProgress, stamp=stamps, verified=st.tuples(keys), have=numbers, size=numbers),
    faults=st.lists(
        st.builds(Fault, kind=st.sampled_from(["mutated", "odd"]), reason=names, save=st.none() | saves), max_size=2
    ).map(tuple),
    services=st.tuples(st.builds(ServiceHealth, service=st.sampled_from(Service), alive=st.booleans())),
    transfer=st.none() | peers,
    backup_root=st.none() | names,
    backup=st.lists(results, max_size=2).map(tuple),
    backup_requested=st.lists(saves, max_size=2).map(tuple),
)
senders = st.builds(
    Party,
    host=st.builds(Host, names),
    service=st.sampled_from(Service),
    incarnation=st.builds(Incarnation, st.sampled_from(["", "x", "y"])),
)


@given(st.lists(st.tuples(senders, reports), min_size=1, max_size=6), st.booleans())
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example, HealthCheck.data_too_large])
def test_s16_no_report_stops_the_coordinator(heard: list[tuple[Party, NodeReport]], bucket: bool) -> None:
    bench = Bench(bucket=Bucket() if bucket else None)
    coordinator = bench.coordinator()
    bench.cluster(2)
    bench.run(0.3)
    for sender, report in heard:
        coordinator.hear(ReportReceived(sender, report))
        bench.run(0.2)
    bench.run(3)
    assert coordinator.machine.active
