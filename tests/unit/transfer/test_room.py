import pytest

from checkpoint_replicator.ids import Address, Job
from checkpoint_transfer.room import RoomKeeper

ONE, TWO = Address("1" * 64), Address("2" * 64)
JOB = Job("j")


@pytest.fixture
def room() -> RoomKeeper:
    return RoomKeeper(remembered=60, gap=10)


def test_the_largest_lack_of_each_job_counts_until_it_fits_or_is_old(room: RoomKeeper) -> None:
    room.lacked(ONE, JOB, 5, now=0)
    room.lacked(TWO, JOB, 9, now=10)
    room.lacked(TWO, JOB, 0, now=11)  # nobody knows by how much: what is known stays
    room.lacked(Address("3" * 64), Job("other"), 1, now=10)
    assert room.lacking(50) == {"j": 9, "other": 1}
    room.fits(TWO)
    assert room.lacking(59) == {"j": 5, "other": 1}
    assert room.lacking(60) == {"other": 1}
    assert room.lacking(70) == {}


def test_old_partials_are_looked_at_once_a_gap(room: RoomKeeper) -> None:
    assert [now for now in range(0, 25, 5) if room.is_due(now)] == [0, 10, 20]
    assert room.due == 30
