import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextvars import copy_context
from pathlib import Path

import msgspec
import pytest

from checkpoint_replicator import failpoint


class Begin(msgspec.Struct, frozen=True):
    kinds: tuple[str, ...] = ("upload",)


class Named(msgspec.Struct, frozen=True):
    pass


@pytest.fixture
def passed(tmp_path: Path) -> Iterator[Path]:
    """An armed process: the places that it passes."""
    census = tmp_path / "census"
    census.touch()
    failpoint.arm({failpoint.VARIABLE: str(tmp_path)}, "watcher")
    yield census
    failpoint.disarm()


def test_an_effect_is_named_by_its_class_and_what_it_is_about() -> None:
    assert failpoint.names(Named()) == ("Named",)
    assert failpoint.names(Begin(("keep", "epoch=running"))) == ("Begin keep", "Begin epoch=running")


def test_points_are_numbered_by_what_performing_changes() -> None:
    listed = failpoint.numbered({"Tell": None, "Read": 1, "Name": 3})
    assert listed[:2] == ("Tell before", "Tell given")
    assert listed[2:] == ("Read before", "Read done", "Name before", "Name 2", "Name 3", "Name done")


def test_places_are_passed_in_their_order(passed: Path) -> None:
    with failpoint.giving(Named()), failpoint.doing(Named()):
        failpoint.change()
        failpoint.change()
    failpoint.change()  # on nobody's behalf
    assert passed.read_text().splitlines() == [f"watcher Named {place}" for place in ("before", "2", "done", "given")]


def test_threads_that_perform_together_count_together(passed: Path) -> None:
    with failpoint.doing(Begin()):
        for _ in range(2):
            thread = threading.Thread(target=copy_context().run, args=(failpoint.change,))
            thread.start()
            thread.join()
    assert passed.read_text().splitlines() == ["watcher Begin upload 2", "watcher Begin upload done"]


def test_work_that_no_machine_gave_has_its_place_before_it_too(passed: Path) -> None:
    with failpoint.doing("Start"):
        pass
    assert passed.read_text().splitlines() == ["watcher Start before", "watcher Start done"]


def test_what_fails_is_not_done(passed: Path) -> None:
    with pytest.raises(ValueError, match="no"), failpoint.doing(Named()):
        raise ValueError("no")
    assert passed.read_text() == ""


def test_without_the_variable_nothing_is_armed(tmp_path: Path) -> None:
    (tmp_path / "armed").write_text("watcher Named before")
    failpoint.arm({}, "watcher")
    with failpoint.giving(Named()), failpoint.doing("Start"):
        failpoint.change()
    assert (tmp_path / "armed").exists()


def test_the_process_that_comes_to_the_armed_point_is_killed_there_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "armed").write_text("watcher Start 2")
    program = (
        "import sys; from checkpoint_replicator import failpoint as f\n"
        f"f.arm({{f.VARIABLE: {str(tmp_path)!r}}}, sys.argv[1])\n"
        "with f.doing('Start'): f.change(); f.change()\n"
    )

    def run(service: str) -> int:
        return subprocess.run([sys.executable, "-c", program, service], check=False).returncode

    assert run("transfer") == 0
    assert not (tmp_path / "reached").exists()
    assert run("watcher") == -9
    assert (tmp_path / "reached").read_text() == "watcher Start 2"
    assert run("watcher") == 0


def test_the_process_that_comes_to_the_halting_point_stands_still_there_until_it_is_let_go_on(tmp_path: Path) -> None:
    (tmp_path / "halting").write_text("watcher Start 2")
    (tmp_path / "armed").write_text("watcher Start done")
    program = (
        "from checkpoint_replicator import failpoint as f\n"
        f"f.arm({{f.VARIABLE: {str(tmp_path)!r}}}, 'watcher')\n"
        "with f.doing('Start'): f.change(); f.change()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program])
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    assert (tmp_path / "halted").read_text() == "watcher Start 2"
    assert not (tmp_path / "reached").exists()
    process.send_signal(signal.SIGCONT)
    assert process.wait() == -signal.SIGKILL
