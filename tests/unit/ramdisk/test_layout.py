from pathlib import Path

import msgspec
import pytest

from checkpoint_replicator.errors import ProtocolError
from checkpoint_replicator.ids import Address, Job, Rank, SessionId, Step, Worker
from checkpoint_replicator.ramdisk.layout import Layout, ShardName, check_tag, is_session_id, parse_data, parse_name
from checkpoint_replicator.save import Save, ShardKey, Tag
from checkpoint_replicator.tree import Tree
from support.shards import tag_of

TAG = tag_of(Tree([]))


@pytest.mark.parametrize("job", ["job", "a-s1-n2-w3", "x.y_z-0"])
def test_a_public_name_is_read_back(job: str) -> None:
    name = ShardName(Job(job), Step(0), ShardKey(Rank(12), Worker(3)))
    assert str(name) == f"{job}-s0-n12-w3"
    assert parse_name(f"{name}.save", ".save") == name
    assert parse_name(str(name)) == name


@pytest.mark.parametrize(
    "text",
    [
        "job-s1-n2-w3.meta",
        "-s1-n2-w3.save",
        "job-s01-n2-w3.save",
        "job-s1-n2.save",
        "job-s-1-n2-w3.save",
        "a/b-s1-n2-w3.save",
        "../x-s1-n2-w3.save",
        "job-s1-n2-w3.save.tmp",
        "job-s٣-n2-w3.save",
        f"{'j' * 129}-s1-n2-w3.save",
        f"job-s{'9' * 30}-n0-w0.save",
        "job-s1-n2-w3\n.save",
    ],
)
def test_other_names_are_none(text: str) -> None:
    assert parse_name(text, ".save") is None


def test_a_data_name_gives_the_address() -> None:
    assert parse_data(f"{TAG.address}.data") == TAG.address
    assert parse_data(TAG.address) is None
    assert parse_data("x.data") is None


def test_paths_of_addresses_and_sessions_cannot_leave_the_ramdisk() -> None:
    layout = Layout(Path("/r"))
    with pytest.raises(ProtocolError, match="no address"):
        layout.data(Address("../x"))
    with pytest.raises(ProtocolError, match="no session id"):
        layout.handout(SessionId("../x"), TAG.address)


@pytest.mark.parametrize(
    "tag",
    [
        msgspec.structs.replace(TAG, job=Job("../x")),
        msgspec.structs.replace(TAG, address=Address("x")),
        msgspec.structs.replace(TAG, size=-1),
        msgspec.structs.replace(TAG, key=ShardKey(Rank(-1), Worker(0))),
        msgspec.structs.replace(TAG, save=Save(TAG.save.epoch, Step(1 << 63))),
    ],
)
def test_a_tag_that_does_not_fit_into_a_name_is_refused(tag: Tag) -> None:
    with pytest.raises(ProtocolError):
        check_tag(tag)


def test_a_sidecar_stands_below_its_epoch() -> None:
    assert Layout(Path("/r")).sidecar(TAG) == Path("/r/.replicator/saves/1/job-s1-n0-w0.json")


@pytest.mark.parametrize(
    ("text", "good"),
    [("a-Z_9", True), ("x" * 64, True), ("", False), ("x" * 65, False), ("../x", False), ("x\n", False)],
)
def test_a_session_id_is_short_and_plain(text: str, *, good: bool) -> None:
    assert is_session_id(text) is good
