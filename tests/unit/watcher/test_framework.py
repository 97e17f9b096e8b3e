"""When a save is finished."""

import errno
import os
import pickle
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoint_replicator.ramdisk.files import Files
from checkpoint_replicator.tree import MAX_DEPTH
from checkpoint_watcher.framework import (
    QUIET,
    Arrival,
    Content,
    Openness,
    Verdict,
    is_complete,
    judge,
    look_into,
    mentioned_files,
    openness,
)

FILE = Content(((".", 1, 10, 0, 0),), directory=False, size=10)
DIRECTORY = Content((("a.pt", 1, 10, 0, 0),), directory=True, size=10)
EMPTY_FILE = Content(((".", 1, 0, 0, 0),), directory=False, size=0)
EMPTY_DIRECTORY = Content((), directory=True, size=0)


@pytest.fixture(autouse=True)
def _no_sigio() -> Iterator[None]:
    old = signal.signal(signal.SIGIO, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGIO, old)


def verdict(
    content: Content,
    arrival: Arrival = Arrival.NONE,
    steady: float = 0,
    scans: int = 1,
    probed: Openness = Openness.CLOSED,
    *,
    complete: bool | None = None,
) -> Verdict:
    return judge(content, arrival=arrival, steady=steady, scans=scans, probed=probed, complete=complete)


def test_a_file_that_was_closed_or_renamed_is_ready_at_once() -> None:
    assert verdict(FILE, Arrival.CLOSED) is Verdict.READY
    assert verdict(FILE, Arrival.MOVED) is Verdict.READY


def test_a_directory_that_was_renamed_is_ready_at_once() -> None:
    assert verdict(DIRECTORY, Arrival.MOVED, complete=False) is Verdict.READY


def test_what_the_scan_found_must_not_change_between_two_scans_a_second_apart() -> None:
    assert verdict(FILE) is Verdict.SETTLING
    assert verdict(FILE, steady=1, scans=1) is Verdict.SETTLING
    assert verdict(FILE, steady=0.5, scans=2) is Verdict.SETTLING
    assert verdict(FILE, steady=1, scans=2) is Verdict.READY


def test_where_the_kernel_does_not_tell_it_takes_three_scans() -> None:
    assert verdict(FILE, steady=1, scans=2, probed=Openness.UNKNOWN) is Verdict.SETTLING
    assert verdict(FILE, steady=2, scans=3, probed=Openness.UNKNOWN) is Verdict.READY


def test_what_is_open_for_writing_is_never_ready() -> None:
    assert verdict(FILE, Arrival.CLOSED, probed=Openness.WRITTEN) is Verdict.UNFINISHED
    assert verdict(FILE, steady=1000, scans=1000, probed=Openness.WRITTEN) is Verdict.UNFINISHED


def test_s24_a_directory_without_its_mark_needs_quiet() -> None:
    assert verdict(DIRECTORY, steady=QUIET - 1, scans=9, complete=False) is Verdict.SETTLING
    assert verdict(DIRECTORY, steady=QUIET, scans=9, complete=False) is Verdict.READY
    assert verdict(DIRECTORY, steady=1, scans=2, complete=True) is Verdict.READY


def test_s49_an_empty_save_is_not_ready() -> None:
    assert verdict(EMPTY_DIRECTORY, Arrival.MOVED, steady=1000, scans=1000) is Verdict.UNFINISHED
    assert verdict(EMPTY_FILE, Arrival.CLOSED) is Verdict.UNFINISHED
    assert verdict(EMPTY_FILE, steady=QUIET, scans=9) is Verdict.READY


def test_names_of_a_metadata_pickle_are_read_without_executing_it() -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, ("/nonexistent/never",)

    names = mentioned_files(pickle.dumps([{"a": "__0_0.distcp", "b": "__1_0.distcp", "c": "x.pt"}, Trap()]))
    assert names == {"__0_0.distcp", "__1_0.distcp"}


@pytest.mark.parametrize("torn", [b"", b"garbage", pickle.dumps(["__0_0.distcp"])[:-1], b"\x80\x05\x95\xff"])
def test_a_torn_metadata_pickle_is_an_error(torn: bytes) -> None:
    with pytest.raises(ValueError, match="expected a pickle"):
        mentioned_files(torn)


def test_a_distributed_checkpoint_is_complete_when_all_mentioned_files_stand(tmp_path: Path) -> None:
    def complete() -> bool | None:
        content = look_into(tmp_path)
        assert content is not None
        return is_complete(tmp_path, content)

    (tmp_path / "__0_0.distcp").write_bytes(b"x")
    assert complete() is False
    (tmp_path / ".metadata").write_bytes(pickle.dumps(["__0_0.distcp", "__1_0.distcp"]))
    assert complete() is False
    (tmp_path / "__1_0.distcp").write_bytes(b"x")
    assert complete() is True
    (tmp_path / ".metadata").write_bytes(b"torn")
    assert complete() is False


def test_an_orbax_step_is_complete_with_its_mark_and_nothing_in_work(tmp_path: Path) -> None:
    def complete() -> bool | None:
        content = look_into(tmp_path)
        assert content is not None
        return is_complete(tmp_path, content)

    state = tmp_path / "state.orbax-checkpoint-tmp"
    state.mkdir()
    (state / "commit_success.txt").touch()
    assert complete() is False
    (tmp_path / "commit_success.txt").write_text("committed")
    assert complete() is False
    state.rename(tmp_path / "state")
    assert complete() is True


def test_a_file_needs_no_mark(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x")
    content = look_into(tmp_path / "x")
    assert content is not None
    assert is_complete(tmp_path / "x", content) is None


def test_look_into_sees_every_file_and_nothing_where_nothing_is(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").write_bytes(b"12345")
    (tmp_path / "a" / "link").symlink_to("b")
    content = look_into(tmp_path / "a")
    assert content is not None
    assert [name for name, *_ in content.files] == ["b/c", "link"]
    assert content.size == 6  # a link has the length of its target's name
    assert look_into(tmp_path / "gone") is None


def test_a_file_at_a_path_beyond_any_limit_of_the_kernel_is_seen_and_one_too_deep_is_stood_for(tmp_path: Path) -> None:
    step = tmp_path / "7"
    step.mkdir()
    before = look_into(step)
    folder = os.open(step, os.O_RDONLY)
    for _ in range(MAX_DEPTH + 1):
        os.mkdir("d" * 200, dir_fd=folder)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=folder)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
        os.close(folder)
        folder = below
    content = look_into(step)
    os.utime(folder, ns=(1, 1))  # as a new name in it does
    os.close(folder)
    after = look_into(step)
    Files().remove(step)  # pytest cannot
    assert before == EMPTY_DIRECTORY
    assert content is not None
    assert after is not None
    assert content.cut
    assert is_complete(step, content) is False
    assert len(content.files) == MAX_DEPTH + 2
    assert max(len(name) for name, *_ in content.files) == 201 * (MAX_DEPTH + 1)
    assert verdict(content, probed=Openness.UNKNOWN, steady=QUIET, scans=3, complete=False) is Verdict.READY
    assert after != content, "what happens in the deepest directory that is known shows in its times"


def test_a_directory_that_may_not_be_listed_or_searched_is_judged_by_its_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = tmp_path / "7"
    (step / "closed").mkdir(parents=True)

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", refuse)
        whole = look_into(step)
    assert whole is not None
    assert [name for name, *_ in whole.files] == ["./"]
    assert openness(step, whole) is Openness.UNKNOWN
    assert verdict(whole, probed=Openness.UNKNOWN, steady=QUIET, scans=3, complete=False) is Verdict.READY
    opened = os.open

    def forbid(path: str | Path, flags: int, *, dir_fd: int | None = None) -> int:
        if path == "closed":
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, flags, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", forbid)
    part = look_into(step)
    assert part is not None
    assert [name for name, *_ in part.files] == ["closed/"]


def test_the_kernel_tells_whether_a_file_is_open_for_writing(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"x")
    content = look_into(path)
    assert content is not None
    assert openness(path, content) is Openness.CLOSED
    with path.open("ab"):
        assert openness(path, content) is Openness.WRITTEN
    assert openness(path, content) is Openness.CLOSED
    assert openness(tmp_path / "gone", content) is Openness.UNKNOWN
