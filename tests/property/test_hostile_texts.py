"""What people write by hand, garbled in every way: a right answer or an error of ours that says what was expected."""

import os
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from checkpoint_coordinator.config import CoordinatorConfig
from checkpoint_replicator.config import NodeConfig, load, parse_size, parse_span
from checkpoint_replicator.errors import ConfigError
from checkpoint_replicator.yaml import Accepted, Rejected, read_session

YAML = b"job-name: j\nframework: pytorch\nnode-rank: 0\nnodes: 2\n"
PIECES = [
    b"job-name: ",
    b"nodes: ",
    b"node-rank: ",
    b"peer-ranks: [",
    b"]",
    b"{",
    b"}",
    b"- ",
    b"&a ",
    b"*a",
    b"!!python/object:os.system ",
    b"<<: ",
    b'"\\UFFFFFFFF"',
    b'"\\uD800"',
    b"'",
    b'"',
    b"|\n",
    b"---\n",
    b"...\n",
    b"%YAML 9.9\n",
    b"%TAG ! x\n",
    b"\n",
    b"\t",
    b"\0",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"9" * 400,
    b"-1",
    b"1e999",
    b"\xef\xbb\xbf",
    b"? ",
    b": ",
    b"#",
    b"~",
]
garbled = st.lists(st.sampled_from([*PIECES, YAML]) | st.binary(max_size=6), max_size=12).map(b"".join)


def fault_of(kind: type[Exception], call: Callable[[], bool]) -> str | None:
    """Return the text of the one error that may come; None when the call says yes."""
    try:
        said = call()
    except kind as error:
        return str(error)
    assert said
    return None


@given(garbled | st.binary(max_size=200))
@example(b'a: "\\UFFFFFFFF"')
@example(b'job-name: "\\uD800"\nframework: pytorch\nnode-rank: 0\nnodes: 1')
@example(b"[" * 30_000)
@example(b"a: " * 20_000)
@example(b"{a: " * 15_000)
@example(b"? " * 30_000)
@example(b"%TAG " + b"x" * 60_000)
@example(b"&" + b"x" * 60_000 + b" a")
@example(b"a: !<" + b"x" * 60_000 + b"> b")
def test_s16_whatever_a_replicator_yaml_holds_is_a_session_or_a_short_reason(text: bytes) -> None:
    answer = read_session(text)
    if isinstance(answer, Accepted):
        assert 0 <= answer.spec.rank < answer.spec.shape.nodes
        assert all(note.isprintable() for note in answer.notes)
    else:
        assert isinstance(answer, Rejected)
        assert answer.reason.startswith("replicator.yaml: ")
        assert answer.reason.isprintable()
        assert len(answer.reason) < 700


@given(st.text(max_size=30) | st.from_regex(r"[0-9.]{1,400} ?([KMGT]i?B|B|ms|s|min|h)", fullmatch=True))
@example("9" * 400 + "B")
@example("9" * 400 + "s")
@example("9" * 5000 + "TiB")
def test_s55_a_size_or_a_time_is_a_number_that_can_be_used_or_an_error(text: str) -> None:
    for parse in (parse_size, parse_span):
        fault = fault_of(ValueError, lambda parse=parse: parse(text) >= 0)  # type: ignore[misc]
        assert fault is None or (fault.startswith("expected a ") and len(fault) < 200)


KEYS = ["ramdisk", "ramdisk-size", "redis", "run", "bind", "health", "log-level", "times", "host", "advertise", "nokey"]
VALUES = ['"x"', "1", "-1", "9" * 40, "1e999", "nan", "inf", "true", "[]", "{}", '{lost = "1s"}', '{lost = "9e9s"}']
VALUES += ['"\\u0000"', "[" * 2000, "1979-05-27", f'"{"x" * 3000}"', '"99999999999999999999TiB"', f'":{"9" * 5000}"']
values = st.sampled_from(VALUES)
lines = st.tuples(st.sampled_from(KEYS), values).map(lambda pair: f"{pair[0]} = {pair[1]}\n".encode())


@given(st.lists(lines | st.binary(max_size=20), max_size=5).map(b"".join))
@example(b"a = " + b"[" * 100_000)
@example(b"a = " + b"9" * 10_000)
@example(b"a." * 2000 + b"b = 1")
@example(b"#" * 100_000)
@example(b'ramdisk = "/x"\nramdisk-size = "' + b"9" * 400 + b'B"')
@example(b'ramdisk = "/x"\nhealth = "h:' + b"9" * 5000 + b'"')
@example(b'ramdisk = "/x"\nredis = "redis://[::1"')
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_configuration_is_right_or_named_wrong(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "service.toml"
    path.write_bytes(text)
    for kind in (NodeConfig, CoordinatorConfig):
        fault = fault_of(ConfigError, lambda kind=kind: load(kind, path, {}).health_address[1] < 1 << 16)  # type: ignore[misc]
        assert fault is None or (len(fault) < 1500 and fault.isprintable())


@given(st.sampled_from(["redis", "ramdisk-size", "times", "health", "run"]), st.text(st.characters(), max_size=20))
@example("run", "~nobody-of-this-name/x")
@example("ramdisk-size", "\ud800")
def test_a_variable_with_bytes_that_are_no_text_is_right_or_named_wrong(key: str, text: str) -> None:
    environ = {f"CHECKPOINT_{key.upper().replace('-', '_')}": text, "CHECKPOINT_RAMDISK": os.fsdecode(b"/x\xff")}
    fault = fault_of(ConfigError, lambda: bool(load(NodeConfig, None, environ).endpoint("watcher")))
    assert fault is None or fault.isprintable()
