"""What a scan of the public directory makes of it."""

import os
import pickle
from pathlib import Path

import pytest

from checkpoint_replicator.ramdisk.files import Files
from checkpoint_watcher.framework import QUIET, Arrival
from checkpoint_watcher.scan import Scanner
from checkpoint_watcher.snapshot import Snapshot


def names(snapshot: Snapshot) -> list[str]:
    return [found.name for found in snapshot.finished]


@pytest.fixture
def scanner(tmp_path: Path) -> Scanner:
    return Scanner(tmp_path)


def test_an_empty_directory_gives_an_empty_snapshot(scanner: Scanner) -> None:
    assert scanner.scan(0) == Snapshot()


def test_a_file_with_an_event_is_finished_and_one_without_after_two_scans(scanner: Scanner, tmp_path: Path) -> None:
    (tmp_path / "j-s1-n0-w0.save").write_bytes(b"1")
    (tmp_path / "j-s2-n0-w1.save").write_bytes(b"22")
    snapshot = scanner.scan(0, {"j-s1-n0-w0.save": Arrival.CLOSED})
    assert names(snapshot) == ["j-s1-n0-w0.save"]
    assert snapshot.settling == 1
    assert names(scanner.scan(0.5)) == ["j-s1-n0-w0.save"]
    both = scanner.scan(1.0)
    assert [(found.job, found.step, found.rank, found.worker, found.size) for found in both.finished] == [
        ("j", 1, 0, 0, 1),
        ("j", 2, 0, 1, 2),
    ]


def test_a_growing_file_is_waited_for(scanner: Scanner, tmp_path: Path) -> None:
    path = tmp_path / "j-s1-n0-w0.save"
    with path.open("wb") as file:
        for moment in range(5):
            file.write(b"x")
            file.flush()
            assert scanner.scan(moment).finished == ()
        assert scanner.scan(9).finished == ()  # quiet, but still open
        assert scanner.scan(9).unfinished == ("j-s1-n0-w0.save",)
    scanner.scan(10)
    assert names(scanner.scan(11)) == ["j-s1-n0-w0.save"]


def test_a_write_after_its_event_takes_the_verdict_back(scanner: Scanner, tmp_path: Path) -> None:
    path = tmp_path / "j-s1-n0-w0.save"
    path.write_bytes(b"1")
    assert names(scanner.scan(0, {path.name: Arrival.CLOSED})) == [path.name]
    with path.open("ab") as file:
        file.write(b"2")
        file.flush()
        assert scanner.scan(0.1).finished == ()


def test_s39_a_directory_moved_in_without_an_event_is_found(scanner: Scanner, tmp_path: Path) -> None:
    outside = tmp_path / "logs" / "x"
    outside.mkdir(parents=True)
    (outside / "__0_0.distcp").write_bytes(b"x")
    (outside / ".metadata").write_bytes(pickle.dumps(["__0_0.distcp"]))
    outside.rename(tmp_path / "7")
    assert scanner.scan(0).finished == ()
    snapshot = scanner.scan(1)
    assert [(found.name, found.step, found.job) for found in snapshot.finished] == [("7", 7, None)]
    assert snapshot.foreign == 1


def test_s24_a_directory_that_fills_slowly_is_not_taken_early(scanner: Scanner, tmp_path: Path) -> None:
    step = tmp_path / "7"
    step.mkdir()
    now = 0.0
    for part in range(5):
        assert scanner.scan(now).finished == ()
        (step / f"__{part}_0.distcp").write_bytes(b"x")
        for _ in range(4):
            now += 1
            assert scanner.scan(now).finished == ()
    (step / ".metadata").write_bytes(pickle.dumps([f"__{part}_0.distcp" for part in range(5)]))
    assert scanner.scan(now).finished == ()
    assert names(scanner.scan(now + 1)) == ["7"]


def test_a_directory_renamed_into_place_is_ready_at_once_but_an_empty_one_never(
    scanner: Scanner, tmp_path: Path
) -> None:
    (tmp_path / "step=7").mkdir()
    (tmp_path / "step=7" / "x.pt").write_bytes(b"x")
    (tmp_path / "step=7").rename(tmp_path / "7")
    (tmp_path / "8").mkdir()
    snapshot = scanner.scan(0, {"7": Arrival.MOVED, "8": Arrival.MOVED})
    assert names(snapshot) == ["7"]
    assert snapshot.unfinished == ("8",)
    assert names(scanner.scan(100)) == ["7"]


def test_leftovers_and_foreign_names_are_counted(scanner: Scanner, tmp_path: Path) -> None:
    (tmp_path / "7").symlink_to("x")
    (tmp_path / "a.restore").touch()
    (tmp_path / "notes.txt").touch()
    (tmp_path / "jax-init-info.txt").touch()
    os.mkfifo(tmp_path / "j-s1-n0-w0.save")
    snapshot = scanner.scan(0)
    (tmp_path / "j-s2-n0-w0.save").symlink_to("x")
    (tmp_path / "j-s3-n0-w0.save").mkdir()
    (tmp_path / "odd.save").touch()
    assert (snapshot.leftovers, snapshot.foreign) == (2, 2)
    assert scanner.scan(0).misfits == (
        ("j-s1-n0-w0.save", "a pipe or device"),
        ("j-s2-n0-w0.save", "a link"),
        ("j-s3-n0-w0.save", "a directory"),
        ("odd.save", "a file"),
    )
    assert not snapshot.finished


def test_a_yaml_is_finished_with_its_event_and_settled_after_two_scans(scanner: Scanner, tmp_path: Path) -> None:
    (tmp_path / "replicator.yaml").write_bytes(b"a: b")
    first = scanner.scan(0).yaml
    assert first is not None
    assert (first.text, first.finished, first.settled) == (b"a: b", False, False)
    told = scanner.scan(0.1, {"replicator.yaml": Arrival.CLOSED}).yaml
    assert told is not None
    assert (told.finished, told.settled) == (True, False)
    settled = scanner.scan(1).yaml
    assert settled is not None
    assert settled.settled
    assert settled.identity == first.identity


def test_a_yaml_that_its_writer_holds_open_is_not_finished(scanner: Scanner, tmp_path: Path) -> None:
    with (tmp_path / "replicator.yaml").open("wb"):
        for moment in range(3):
            yaml = scanner.scan(moment, {"replicator.yaml": Arrival.CLOSED}).yaml
            assert yaml is not None
            assert not yaml.finished


def test_an_equal_yaml_written_anew_is_another_one(scanner: Scanner, tmp_path: Path) -> None:
    path = tmp_path / "replicator.yaml"
    path.write_bytes(b"a: b")
    first = scanner.scan(0).yaml
    path.with_suffix(".tmp").write_bytes(b"a: b")
    path.with_suffix(".tmp").rename(path)
    second = scanner.scan(0).yaml
    assert first is not None
    assert second is not None
    assert first.text == second.text
    assert first.identity != second.identity


def test_a_yaml_that_is_a_link_is_a_bad_one_and_says_so(scanner: Scanner, tmp_path: Path) -> None:
    (tmp_path / "replicator.yaml").symlink_to("/etc/passwd")
    seen = scanner.scan(0).yaml
    assert seen is not None
    assert (seen.text, seen.obstacle) == (b"", "replicator.yaml: is a link, expected a file")


def test_a_save_with_paths_that_are_too_long_is_left_to_hashing_which_names_it(
    scanner: Scanner, tmp_path: Path
) -> None:
    top = tmp_path / "5"
    top.mkdir()
    folder = os.open(top, os.O_RDONLY)
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=folder)
        folder, old = os.open("d" * 250, os.O_RDONLY, dir_fd=folder), folder
        os.close(old)
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
    os.close(folder)
    assert names(scanner.scan(-QUIET - 2)) == []
    assert names(scanner.scan(-QUIET)) == []
    assert names(scanner.scan(-2)) == ["5"], "with nothing else in it, too"
    (top / "a").write_bytes(b"x")
    assert names(scanner.scan(0, {"5": Arrival.MOVED})) == ["5"]
    Files().remove(top)


def test_a_pipe_among_the_saves_is_foreign_and_holds_nobody(scanner: Scanner, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "j-s1-n0-w0.save")
    os.mkfifo(tmp_path / "replicator.yaml")
    (tmp_path / "6").mkdir()
    os.mkfifo(tmp_path / "6" / ".metadata")
    (tmp_path / "6" / "a").write_bytes(b"x")
    assert scanner.scan(0).foreign == 2
    assert names(scanner.scan(20.0, {"6": Arrival.CLOSED})) == []
