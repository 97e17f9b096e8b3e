from checkpoint_coordinator.desk import Desk, Options
from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Epoch, Host, Incarnation
from checkpoint_replicator.records import HostRecord
from checkpoint_replicator.times import Times
from support.coordination import JOB, Bench


def running() -> tuple[Bench, Desk]:
    bench = Bench()
    coordinator = bench.coordinator()
    bench.cluster(3)
    assert bench.run(5, bench.all_running)
    return bench, coordinator.machine.desk


def test_every_stamp_is_above_the_last() -> None:
    desk = Desk(JOB, Times(), Options(), lambda: "id")
    desk.stamp = Stamp(4, Epoch(2), 7)
    assert desk.next_stamp() == Stamp(4, Epoch(2), 8)
    assert desk.next_stamp(Epoch(3)) == Stamp(4, Epoch(3), 9)
    assert desk.next_stamp(Epoch(1)) == Stamp(4, Epoch(3), 10)


def test_events_are_bounded() -> None:
    desk = Desk(JOB, Times(), Options(), lambda: "id")
    for number in range(1000):
        desk.note("save_committed", save=str(number))
    assert len(desk.events) == 256
    assert desk.events[-1] == {"event": "save_committed", "save": "999"}


def test_wall_time_is_that_of_redis() -> None:
    desk = Desk(JOB, Times(), Options(), lambda: "id")
    assert desk.wall(5) == 0
    desk.unix = 1000
    assert desk.wall(5) == 1005


def test_a_voice_counts_for_the_session_that_it_speaks_for() -> None:
    bench, desk = running()
    assert all(desk.voice(member) is not None for member in desk.members)
    member = desk.members[0]
    bench.nodes[member.host].open(0, desk.specs()[member.rank].shape)
    bench.run(0.2)
    desk.hearing.stale()
    assert desk.voice(member) is None


def test_the_crew_is_known_when_every_members_yaml_is() -> None:
    _, desk = running()
    crew = desk.crew()
    assert crew is not None
    assert [crew.placements[member.rank].peers for member in crew.members] == [(1,), (0,), (0,)]
    desk.membership.seats.clear()
    assert desk.crew() is None


def test_only_hosts_with_a_root_and_a_live_uploader_can_back_up() -> None:
    bench, desk = running()
    assert desk.uploaders(bench.clock.now) == ()
    assert desk.roots() == frozenset()
    assert set(desk.peers()) == {Host("node-0"), Host("node-1"), Host("node-2")}


def test_the_yaml_of_a_lost_member_is_not_waited_for_but_that_of_a_silent_one_is() -> None:
    bench, desk = running()
    gone = desk.members[2]
    del desk.membership.seats[gone.rank]
    assert desk.crew() is None
    desk.live = desk.live - {gone.host}
    desk.patient = True
    assert desk.crew() is None
    desk.patient = False
    crew = desk.crew()
    assert crew is not None
    assert set(crew.placements) == {0, 1}
    assert bench.restore is not None


def test_under_a_common_fault_copies_stay_placed_where_they_were() -> None:
    _, desk = running()
    desk.patient, desk.live = False, frozenset({Host("node-0"), Host("node-2")})
    crew = desk.crew()
    assert crew is not None
    assert crew.placements[desk.members[0].rank].peers == (2,)
    desk.common_fault = True
    crew = desk.crew()
    assert crew is not None
    assert crew.placements[desk.members[0].rank].peers == (1,)


def test_hosts_are_waited_for_from_their_first_appearance() -> None:
    desk = Desk(JOB, Times(), Options(), lambda: "id")
    desk.begin(10)
    record = HostRecord(host=Host("a"), incarnation=Incarnation("1"))
    desk.take_hosts({Host("a"): record}, 15)
    desk.take_hosts({Host("a"): record}, 20)
    assert desk.appeared(Host("a")) == 15
    assert desk.appeared(Host("b")) == 10
    desk.take_hosts({}, 30)
    desk.take_hosts({Host("a"): record}, 35)
    assert desk.appeared(Host("a")) == 35
