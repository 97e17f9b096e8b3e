"""Room for the trainer's next save: what is kept free, what fits, and what goes for it."""

import json

import msgspec
import pytest

from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Epoch, Incarnation, Job
from checkpoint_replicator.messages import Room, TransferReport
from checkpoint_replicator.records import KeepList, NodeView, Outcome
from checkpoint_replicator.save import Tag
from checkpoint_watcher import effects as do
from checkpoint_watcher import events as did
from support.watcher_shell import LEASE, ModelRamdisk, WatcherShell
from support.watcher_story import SELF, keep, open_session, run_fresh, save, tag

OTHER = Job("other")


def other(step: int, size: int, content: str = "") -> Tag:
    return msgspec.structs.replace(tag(step, content=content or f"other {step}"), job=OTHER, size=size)


def with_other(disk: ModelRamdisk, *sizes: int) -> list[Tag]:
    tags = [other(step, size) for step, size in enumerate(sizes, 1)]
    for one in tags:
        disk.hold(one, f"other {one.save.step}")
    return tags


def started(disk: ModelRamdisk) -> WatcherShell:
    """Start a watcher that has read what is decided for the other job."""
    shell = WatcherShell(disk).start()
    shell.feed(did.ViewRead(OTHER, NodeView()))
    return shell


def test_law_8_a_save_on_its_way_counts_for_what_is_kept_free(shell: WatcherShell) -> None:
    run_fresh(shell)
    shell.hold = (do.HashClaim,)
    shell.disk.save(1, "x" * 1000)
    shell.scan()
    shell.wait(0.2)
    assert shell.transfer.reserve == 1100
    assert shell.transfer.trainer


def test_law_8_a_restored_shard_tells_a_replaced_node_how_large_the_next_save_is(disk: ModelRamdisk) -> None:
    disk.hold(tag(1, content="x" * 1000), "x" * 1000, own=False)
    disk.hold(tag(1, content="y" * 5000, rank=1), "y" * 5000, own=False)
    shell = WatcherShell(disk).start()
    open_session(shell)
    shell.wait(0.2)
    assert shell.transfer.reserve == 1100
    assert not shell.transfer.trainer


def test_inodes_are_counted_over_all_shards_of_a_save_and_known_after_a_restart(disk: ModelRamdisk) -> None:
    for worker in (0, 1):
        disk.hold(tag(1, worker=worker), f"1/0/{worker}")
    shell = WatcherShell(disk)
    entries = {tag(1, worker=worker).address: 100 for worker in (0, 1)}
    shell.feed(did.Started(held=tuple(disk.held.values()), entries=entries))
    open_session(shell, workers_per_node=2)
    shell.wait(0.2)
    assert shell.transfer.reserve_inodes == 238  # 1.1 x 2 x (100 + 8)


def test_what_was_counted_of_a_shard_is_known_while_any_of_its_names_stands(disk: ModelRamdisk) -> None:
    first, second = (tag(step, content="same") for step in (1, 2))
    foreign = other(3, 600)
    for one in (first, second, foreign):
        disk.hold(one, "same")
    shell = WatcherShell(disk)
    entries = {first.address: 100, foreign.address: 7}
    shell.feed(did.Started(held=tuple(disk.held.values()), entries=entries))
    room = shell.machine.saves.room
    shell.feed(did.SavesDropped((first,)))
    assert room.entries == entries
    shell.feed(did.ForeignDropped((foreign,)))
    assert room.entries == {first.address: 100}
    shell.feed(did.SavesDropped((second,)))
    assert room.entries == {}


def test_of_a_job_that_was_forgotten_no_count_is_kept(disk: ModelRamdisk) -> None:
    mine, foreign = tag(1), other(3, 600)
    for one in (mine, foreign):
        disk.hold(one, "x")
    shell = WatcherShell(disk)
    shell.feed(did.Started(held=tuple(disk.held.values()), entries={mine.address: 1, foreign.address: 7}))
    shell.feed(did.JobForgotten(OTHER, (disk.held[mine],)))
    assert shell.machine.saves.room.entries == {mine.address: 1}


@pytest.mark.parametrize(("size", "alarm"), [(141, True), (142, False)])
def test_s52_a_ramdisk_that_cannot_hold_two_saves_is_told_after_the_first_with_the_bytes_it_needs(
    shell: WatcherShell, size: int, *, alarm: bool
) -> None:
    run_fresh(shell, nodes=3, peers_per_node=2)
    shell.disk.room = Room(size=size, free=size)
    shell.disk.save(1, "x" * 20)
    shell.scan()
    shell.scan()
    shell.wait(2)
    assert shell.report.room is not None
    assert (shell.report.room.needed, shell.report.room.comfortable) == (142, 202)
    assert shell.report.room.generations == (size - 22) // 60
    faults = [fault.reason for fault in shell.report.faults if fault.kind == "undersized"]
    text = (
        "the ramdisk has 141 bytes; two saves and 2 copies for others of each need 142, three, "
        "which is comfortable, 202"
    )
    assert faults == ([text] if alarm else [])
    assert (text in shell.disk.files.get("replicator.errors", "")) is alarm
    (*_, status) = shell.all(do.PublishStatus)
    assert isinstance(status, do.PublishStatus)
    assert json.loads(status.text)["room"]["needed"] == 142
    assert (text in json.loads(status.text)["reasons"]) is alarm


def test_s52_inodes_may_be_what_is_too_few(shell: WatcherShell) -> None:
    run_fresh(shell, peers_per_node=1)
    shell.disk.room = Room(size=1 << 30, free=1 << 30, inodes=44, inodes_free=44)
    shell.disk.save(1, "x" * 20)
    shell.scan()
    shell.scan()
    shell.wait(0.2)
    (fault,) = shell.report.faults
    assert fault.reason.startswith("the ramdisk has 44 inodes; two saves and 1 copies for others of each need 45")
    shell.disk.room = Room(size=1 << 30, free=1 << 30, inodes=45, inodes_free=45)
    shell.scan()
    shell.wait(0.2)
    assert shell.report.faults == ()


def test_another_jobs_oldest_data_goes_when_the_next_save_has_no_room(disk: ModelRamdisk) -> None:
    first, second, third = with_other(disk, 600, 600, 600)
    shell = started(disk)
    run_fresh(shell)
    disk.save(1, "x" * 1000)
    shell.scan()
    assert len(disk.held) == 4
    disk.room = Room(size=5000, free=300)
    shell.scan()
    assert shell.all(do.DropForeign) == [do.DropForeign((first, second))]
    assert set(disk.held) == {third, tag(1, content="x" * 1000)}
    assert "step 1 of job other (600 bytes) goes from here: job j lacks 800" in disk.files["replicator.errors"]
    dropped = [
        effect.fields["step"]
        for effect in shell.done
        if isinstance(effect, do.Announce) and effect.event == "foreign_save_dropped"
    ]
    assert dropped == [1, 2]
    assert not shell.all(do.DropSaves)


def test_another_jobs_data_stays_while_there_is_room_or_nobody_saves(disk: ModelRamdisk) -> None:
    with_other(disk, 600, 600)
    shell = started(disk)
    open_session(shell)
    disk.room = Room(size=5000, free=0)
    shell.wait(5)
    assert not shell.all(do.DropForeign)
    shell.read(shell.view_of(outcome=Outcome.NONE, released=True))
    disk.room = Room(size=5000, free=1100)
    disk.save(1, "x" * 1000)
    shell.wait(5)
    assert not shell.all(do.DropForeign)


def test_bytes_that_this_job_shares_with_another_stay(disk: ModelRamdisk) -> None:
    shared = other(1, 1000, content="x" * 1000)
    disk.hold(shared, "x" * 1000)
    shell = started(disk)
    run_fresh(shell)
    disk.save(1, "x" * 1000)
    shell.scan()
    disk.room = Room(size=5000, free=0)
    shell.wait(5)
    assert shared in disk.held
    assert not shell.all(do.DropForeign)


def test_what_was_dropped_shows_in_the_room_before_more_goes(disk: ModelRamdisk) -> None:
    with_other(disk, 600, 600, 600)
    shell = started(disk)
    run_fresh(shell)
    disk.save(1, "x" * 500)
    disk.room = Room(size=5000, free=0)
    shell.scan()
    shell.scan()
    assert len(shell.all(do.DropForeign)) == 1
    shell.wait(1)
    assert len(shell.all(do.DropForeign)) == 1
    shell.wait(3)
    assert len(shell.all(do.DropForeign)) == 2


def test_a_copy_without_room_drops_another_jobs_data_of_which_one_has_the_session(disk: ModelRamdisk) -> None:
    (first,) = with_other(disk, 600)
    shell = started(disk)
    open_session(shell)
    shell.feed(did.TransferReported(Incarnation("t0"), TransferReport(peer=SELF, lacking={"other": 50})))
    assert first in disk.held
    shell.feed(did.TransferReported(Incarnation("t0"), TransferReport(peer=SELF, lacking={"j": 50})))
    assert first not in disk.held


def test_a_keep_list_of_the_other_job_still_counts(disk: ModelRamdisk) -> None:
    first, second = with_other(disk, 600, 600)
    shell = WatcherShell(disk).start()
    shell.read(shell.view_of(keep=keep(2)), job="other")
    assert first not in disk.held
    assert second in disk.held


def test_another_job_that_people_look_at_gives_no_room(disk: ModelRamdisk) -> None:
    tags = with_other(disk, 1000)
    shell = WatcherShell(disk).start()
    run_fresh(shell)
    keep = KeepList(stamp=Stamp(1, Epoch(1), 1), upto=save(9), hold=True)
    shell.read(NodeView(lease=LEASE, fence=Stamp(1, Epoch(1), 1), keep=keep), "other")
    disk.room = Room(size=2000, free=10)
    shell.disk.save(1, "x" * 1000)
    shell.scan()
    shell.wait(3)
    assert set(tags) <= disk.held.keys()
    assert shell.machine.saves.room.yielding == 0


def test_until_redis_said_whether_people_look_another_job_gives_no_room(disk: ModelRamdisk) -> None:
    (first,) = with_other(disk, 1000)
    shell = WatcherShell(disk).start()
    run_fresh(shell)
    disk.save(1, "x" * 1000)
    shell.scan()
    disk.room = Room(size=2000, free=10)
    shell.scan()
    assert first in disk.held
    assert shell.machine.saves.room.yielding == 0
    shell.feed(did.ViewRead(OTHER, NodeView()))
    shell.scan()
    assert first not in disk.held


def test_a_hold_counts_though_who_ordered_it_has_no_lease_any_more(disk: ModelRamdisk) -> None:
    (first,) = with_other(disk, 1000)
    shell = WatcherShell(disk).start()
    run_fresh(shell)
    shell.feed(did.ViewRead(OTHER, NodeView(keep=KeepList(stamp=Stamp(1, Epoch(1), 1), hold=True))))
    disk.save(1, "x" * 1000)
    shell.scan()
    disk.room = Room(size=2000, free=10)
    shell.scan()
    assert first in disk.held
