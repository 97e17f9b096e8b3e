from pathlib import Path

import pytest

from checkpoint_replicator.errors import NoRoomError
from checkpoint_replicator.ramdisk import Ramdisk
from checkpoint_replicator.ramdisk.spare import Spare

GIB = 1 << 30


class Full:
    """Has no room for a number of tries."""

    def __init__(self, failures: int) -> None:
        self.failures = failures

    def __call__(self) -> str:
        self.failures -= 1
        if self.failures >= 0:
            raise NoRoomError("full")
        return "done"


def test_what_finds_no_room_gets_the_spare_once(tmp_path: Path) -> None:
    spare = Spare(tmp_path)
    spare.refill(GIB, GIB)
    assert spare.is_full
    assert spare.urgently(Full(0)) == "done"
    assert spare.is_full
    assert spare.urgently(Full(1)) == "done"
    assert not spare.is_full
    with pytest.raises(NoRoomError):
        spare.urgently(Full(1))
    spare.refill(GIB, GIB)
    with pytest.raises(NoRoomError):
        spare.urgently(Full(2))


def test_it_grows_with_the_ramdisk(tmp_path: Path) -> None:
    spare = Spare(tmp_path)
    spare.refill(1 << 20, GIB)
    assert {path.stat().st_size for path in tmp_path.iterdir()} == {8 << 10}
    spare.release()
    spare.refill(8 * GIB, GIB)
    assert {path.stat().st_size for path in tmp_path.iterdir()} == {128 << 10}


def test_it_is_not_taken_where_room_is_short(tmp_path: Path) -> None:
    spare = Spare(tmp_path)
    spare.refill(1 << 20, 100 << 10)
    assert list(tmp_path.iterdir()) == []


def test_a_recovery_and_a_sweep_take_it_again(tmp_path: Path) -> None:
    ramdisk = Ramdisk(tmp_path, quota=64 << 20)
    ramdisk.recover()
    spare = Spare(ramdisk.layout.spare)
    assert spare.is_full
    spare.release()
    ramdisk.sweep()
    assert spare.is_full
