import contextlib
import io

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from checkpoint_replicator.errors import ProtocolError, ReplicatorError, UnreachableError
from checkpoint_replicator.resp import Failure, Reply, Status, encode, read_reply

RESP_PIECES = [b"*", b"$", b":", b"+", b"-", b"\r\n", b"1", b"-1", b"0", b"OK", b"*2\r\n", b"$3\r\nabc\r\n", b":1\r\n"]


def read(data: bytes) -> Reply:
    return read_reply(io.BytesIO(data))


def test_a_command_is_an_array_of_strings() -> None:
    assert encode([b"GET", b"a\r\nb", b""]) == b"*3\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n$0\r\n\r\n"


@pytest.mark.parametrize(
    ("data", "reply"),
    [
        (b"+OK\r\n", Status(b"OK")),
        (b"-ERR no\r\n", Failure(b"ERR no")),
        (b":-7\r\n", -7),
        (b"$0\r\n\r\n", b""),
        (b"$4\r\na\r\nb\r\n", b"a\r\nb"),
        (b"$-1\r\n", None),
        (b"*-1\r\n", None),
        (b"*0\r\n", []),
        (b"*2\r\n*1\r\n:1\r\n+x\r\n", [[1], Status(b"x")]),
    ],
)
def test_each_kind_of_answer_stays_apart(data: bytes, reply: Reply) -> None:
    assert read(data) == reply


@pytest.mark.parametrize("data", [b"", b"+OK", b"$5\r\nabc", b"*2\r\n:1\r\n", b"$1\r\na\r"])
def test_an_answer_that_is_cut_off_is_a_lost_connection(data: bytes) -> None:
    with pytest.raises(UnreachableError):
        read(data)


@pytest.mark.parametrize(
    "data",
    [b"HTTP/1.1 400\r\n", b":x\r\n", b"$-2\r\n", b"$1\r\nabc\r\n", b"$9999999999\r\n", b"%1\r\n", b"*1\r\n" * 99],
)
def test_what_is_no_answer_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        read(data + b"\r\n")


def test_an_endless_line_is_refused() -> None:
    with pytest.raises(ProtocolError, match="expected a line of at most"):
        read(b"+" + b"x" * 100_000)


@given(st.binary(max_size=200))
def test_garbage_ends_in_an_answer_or_in_an_error_of_ours(data: bytes) -> None:
    with contextlib.suppress(ReplicatorError):
        read(data)


@given(st.lists(st.sampled_from(RESP_PIECES) | st.binary(max_size=6), max_size=12).map(b"".join))
@example(b"*1\r\n" * 200)
@example(b"*-5\r\n")
@example(b"$99999999999999999999\r\n")
@example(b":1_0\r\n")
@example(b":" + b"9" * 5000 + b"\r\n")
def test_whatever_a_server_says_is_an_answer_or_an_error_of_ours(said: bytes) -> None:
    with contextlib.suppress(ProtocolError, UnreachableError):
        read_reply(io.BytesIO(said))
