import os
from pathlib import Path

import pytest

from checkpoint_replicator.config import Size
from checkpoint_replicator.errors import NoRoomError
from checkpoint_replicator.messages import Room
from checkpoint_replicator.ramdisk.room import admit, inodes_for, measure, usage
from support.shards import fill

ROOM = Room(size=100, free=50, inodes=20, inodes_free=10)


def test_what_fits_beside_the_reserve_is_admitted() -> None:
    admit(ROOM, 30, 4, reserve=20, reserve_inodes=6)


@pytest.mark.parametrize(("size", "inodes", "word"), [(31, 4, "31 bytes"), (30, 5, "5 inodes")])
def test_what_does_not_is_refused_with_the_numbers(size: int, inodes: int, word: str) -> None:
    with pytest.raises(NoRoomError, match=word):
        admit(ROOM, size, inodes, reserve=20, reserve_inodes=6)


def test_the_file_system_is_measured(tmp_path: Path) -> None:
    room = measure(tmp_path)
    status = os.statvfs(tmp_path)
    assert room.size == status.f_blocks * status.f_frsize
    assert 0 < room.free <= room.size
    assert room.inodes_free > 0


def test_s53_a_quota_counts_what_stands_below_the_root(tmp_path: Path) -> None:
    fill(tmp_path / "d" / "f", 1 << 20)
    room = measure(tmp_path, 4 << 20)
    assert room.size == 4 << 20
    assert (2 << 20) < room.free <= (3 << 20)
    assert measure(tmp_path, 1 << 10).free == 0


def test_a_quota_out_of_the_configuration_becomes_plain_numbers_that_a_message_can_carry(tmp_path: Path) -> None:
    for quota in (Size(0), Size(4 << 20)):
        room = measure(tmp_path, quota)
        assert {type(room.size), type(room.free)} == {int}


def test_a_file_with_two_names_counts_once_and_links_are_not_followed(tmp_path: Path) -> None:
    fill(tmp_path / "r" / "f", 1 << 20)
    before = usage(tmp_path / "r")
    (tmp_path / "r" / "g").hardlink_to(tmp_path / "r" / "f")
    fill(tmp_path / "big", 3 << 20)
    (tmp_path / "r" / "l").symlink_to(tmp_path / "big")
    assert usage(tmp_path / "r") < before + (1 << 16)


def test_s51_a_copy_needs_more_inodes_than_it_has_entries() -> None:
    assert inodes_for(10) > 11
