import json
from collections.abc import Sequence
from pathlib import Path

import msgspec

from checkpoint_replicator.inputlog import InputLog


class Told(msgspec.Struct, frozen=True):
    body: tuple[bytes, ...] = ()


class Done(msgspec.Struct, frozen=True):
    pass


class Machine:
    def handle(self, event: Told, now: float) -> Sequence[Done]:
        return [Done()] if now > 1 and event.body else []

    def next_deadline(self) -> float | None:
        return 5.0


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_what_a_machine_is_told_draws_and_does_stands_in_the_log(tmp_path: Path) -> None:
    log = InputLog(tmp_path / "logs" / "inputs")
    machine = log.of("watcher", Machine(), host="node-0")
    assert machine.next_deadline() == 5.0
    draw = log.drawing(lambda: "id-1")
    assert list(machine.handle(Told((b"abc",)), 2.0)) == [Done()]
    assert draw() == "id-1"
    log.close()
    assert lines(tmp_path / "logs" / "inputs") == [
        {"log": 1, "machine": "watcher", "of": {"host": "node-0"}},
        {"log": 1, "at": 2.0, "event": "Told", "is": {"body": ["YWJj"]}},
        {"log": 1, "did": ["Done"]},
        {"draw": "id-1"},
    ]


def test_without_a_path_a_machine_is_itself() -> None:
    log, machine = InputLog(None), Machine()
    assert log.of("watcher", machine) is machine
    assert not log.wanted


def test_long_frames_are_left_out(tmp_path: Path) -> None:
    log = InputLog(tmp_path / "inputs")
    log.of("transfer", Machine()).handle(Told((b"x" * 5000, b"y")), 0.0)
    assert lines(tmp_path / "inputs")[1]["is"] == {"body": ["", "eQ=="]}
    log.close()


def test_the_log_ends_where_it_would_grow_too_long(tmp_path: Path) -> None:
    log = InputLog(tmp_path / "inputs", most=150)
    machine = log.of("watcher", Machine())
    for _ in range(5):
        machine.handle(Told(), 0.0)
    assert not log.wanted
    assert lines(tmp_path / "inputs")[-1] == {"full": True}
    assert (tmp_path / "inputs").stat().st_size < 200


def test_the_log_of_the_life_before_is_put_aside(tmp_path: Path) -> None:
    for kind in ("first", "second"):
        log = InputLog(tmp_path / "inputs")
        log.of(kind, Machine())
        log.close()
    assert lines(tmp_path / "inputs.1")[0]["machine"] == "first"
    assert lines(tmp_path / "inputs")[0]["machine"] == "second"


def test_the_log_ends_at_a_text_that_json_cannot_hold_and_the_machine_goes_on(tmp_path: Path) -> None:
    log = InputLog(tmp_path / "inputs")
    log.write({"event": "\udcff"})
    assert not log.wanted
    assert log.of("watcher", Machine()).handle(Told(), 0.0) == []


def test_a_sequence_of_any_kind_is_written_as_one(tmp_path: Path) -> None:
    log = InputLog(tmp_path / "inputs")
    log.write({"sizes": range(5, 8)})
    log.close()
    assert (tmp_path / "inputs").read_bytes() == b'{"sizes":[5,6,7]}\n'
