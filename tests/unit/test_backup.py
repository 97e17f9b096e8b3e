import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint_replicator.backup import (
    MANIFEST_NAME,
    ORDER_NAME,
    ObjectMark,
    abandoned_document,
    data_name,
    documents_to_read,
    is_backup_name,
    judge,
    manifest_document,
    meta_name,
    name_at,
    next_name,
    order_document,
    parse_manifest,
    parse_order,
    time_of,
    tree_name,
)
from checkpoint_replicator.blobs import Blob
from checkpoint_replicator.errors import ProtocolError
from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Address, Epoch, Job, Step
from checkpoint_replicator.save import Save, Tag, shards_of
from checkpoint_replicator.shape import Shape

JOB = Job("run")
SHAPE = Shape(2, 1, 1, "pytorch")
SAVE = Save(Epoch(3), Step(20))
STAMP = Stamp(4, Epoch(3), 17)
NAME = "2026-11-30_15-40"


def tags() -> list[Tag]:
    return [Tag(JOB, SAVE, SHAPE, key, Address(f"{index + 1:064x}"), 10) for index, key in enumerate(shards_of(SHAPE))]


def finished() -> tuple[dict[str, Blob], dict[str, str]]:
    objects: dict[str, ObjectMark] = {}
    for tag in tags():
        objects[data_name(tag.address)] = ObjectMark(10, "data")
        objects[tree_name(tag.address)] = ObjectMark(5, "tree")
        objects[meta_name(tag)] = ObjectMark(64, "meta")
    manifest = manifest_document(save=SAVE, shape=SHAPE, stamp=STAMP, version="1", tags=tags(), objects=objects)
    order = order_document(stamp=STAMP, save=SAVE, shape=SHAPE)
    blobs = {name: Blob(name, mark.size, mark.crc32c) for name, mark in objects.items()}
    blobs[ORDER_NAME] = Blob(ORDER_NAME, len(order), "")
    blobs[MANIFEST_NAME] = Blob(MANIFEST_NAME, len(manifest), "")
    return blobs, {ORDER_NAME: order, MANIFEST_NAME: manifest}


def foreign() -> tuple[dict[str, Blob], dict[str, str]]:
    blobs: dict[str, Blob] = {}
    documents: dict[str, str] = {}
    for tag in tags():
        blobs[meta_name(tag)] = Blob(meta_name(tag), 64, "")
        documents[meta_name(tag)] = tag.address
        name = f"{data_name(tag.address)}/state/manifest.ocdbt"
        blobs[name] = Blob(name, 10, "")
    return blobs, documents


def test_a_name_is_a_minute_in_utc() -> None:
    assert name_at(0) == "1970-01-01_00-00"
    assert time_of("1970-01-01_00-01") == 60
    assert is_backup_name(NAME)
    assert not is_backup_name("2026-13-30_15-40")
    assert not is_backup_name("2026-11-30_15-40x")
    assert not is_backup_name("restore.version")


def test_names_are_in_order_whatever_the_clock_says() -> None:
    assert next_name(120, []) == "1970-01-01_00-02"
    assert next_name(120, ["1970-01-01_09-00", "junk"]) == "1970-01-01_09-01"
    assert next_name(120, ["1970-01-01_00-02"]) == "1970-01-01_00-03"


def test_documents_come_back_as_they_were_written() -> None:
    order = parse_order(order_document(stamp=STAMP, save=SAVE, shape=SHAPE))
    assert (order.stamp, order.save, order.shape) == (STAMP, SAVE, SHAPE)
    _, documents = finished()
    manifest = parse_manifest(documents[MANIFEST_NAME])
    assert manifest.tags == tuple(tags())
    assert manifest.objects[data_name(tags()[0].address)] == ObjectMark(10, "data")


def test_a_finished_backup_counts() -> None:
    entry = judge(JOB, NAME, *finished())
    assert entry.whole, entry.reason
    assert entry.tags == tuple(tags())
    assert entry.stamp == STAMP


def test_s20_an_order_without_manifest_never_counts() -> None:
    blobs, documents = finished()
    del blobs[MANIFEST_NAME]
    entry = judge(JOB, NAME, blobs, documents)
    assert not entry.whole
    assert entry.order == documents[ORDER_NAME]


def test_an_abandoned_backup_never_counts() -> None:
    blobs, documents = finished()
    documents[MANIFEST_NAME] = abandoned_document()
    entry = judge(JOB, NAME, blobs, documents)
    assert (entry.whole, entry.reason) == (False, "abandoned")


def test_an_abandoned_backup_shows_its_order_until_it_is_swept() -> None:
    blobs, documents = finished()
    documents[MANIFEST_NAME] = abandoned_document()
    assert judge(JOB, NAME, blobs, documents).order == documents[ORDER_NAME]
    swept = {name: blob for name, blob in blobs.items() if name in {ORDER_NAME, MANIFEST_NAME}}
    assert judge(JOB, NAME, swept, documents).order == ""


@pytest.mark.parametrize("name", sorted(name for name in finished()[0] if name not in {ORDER_NAME, MANIFEST_NAME}))
def test_a_manifest_counts_only_with_all_its_objects(name: str) -> None:
    blobs, documents = finished()
    gone = blobs.pop(name)
    assert judge(JOB, NAME, blobs, documents).reason == f"{name} is missing"
    blobs[name] = Blob(name, gone.size + 1, gone.crc32c)
    assert f"expected {gone.size} bytes" in judge(JOB, NAME, blobs, documents).reason
    blobs[name] = Blob(name, gone.size, "else")
    assert "crc32c" in judge(JOB, NAME, blobs, documents).reason


def test_a_manifest_that_lacks_a_shard_is_refused() -> None:
    text = manifest_document(save=SAVE, shape=SHAPE, stamp=STAMP, version="1", tags=tags()[:1], objects={})
    with pytest.raises(ProtocolError, match="lacks n1/w0"):
        parse_manifest(text)


def test_a_manifest_of_another_job_does_not_count() -> None:
    entry = judge(Job("other"), NAME, *finished())
    assert not entry.whole
    assert "expected other" in entry.reason


def test_a_backup_of_googles_counts_when_it_covers_every_rank() -> None:
    blobs, documents = foreign()
    assert set(documents_to_read(blobs)) == set(documents)
    entry = judge(JOB, NAME, blobs, documents)
    assert entry.whole, entry.reason
    assert {tag.save for tag in entry.tags} == {Save(Epoch(0), Step(20))}
    assert [tag.size for tag in entry.tags] == [10, 10]


def test_a_backup_of_googles_without_its_data_does_not_count() -> None:
    blobs, documents = foreign()
    del blobs[f"{data_name(tags()[0].address)}/state/manifest.ocdbt"]
    assert "is missing" in judge(JOB, NAME, blobs, documents).reason


def test_a_backup_of_googles_without_a_rank_does_not_count() -> None:
    blobs, documents = foreign()
    del blobs[meta_name(tags()[0])]
    assert judge(JOB, NAME, blobs, documents).reason == "lacks n0/w0"


def test_s09_a_meta_without_an_address_is_invalid() -> None:
    blobs, documents = foreign()
    for text in ("", "../x", "abc"):
        documents[meta_name(tags()[0])] = text
        assert "holds no address" in judge(JOB, NAME, blobs, documents).reason


def test_an_empty_directory_does_not_count() -> None:
    assert judge(JOB, NAME, {}, {}).reason == "holds no .meta"


def test_a_meta_of_an_absurd_rank_costs_no_memory() -> None:
    blobs, documents = foreign()
    name = "run-s20-n999999999-w0.meta"
    blobs[name], documents[name] = Blob(name, 64, ""), tags()[0].address
    assert "is of an impossible step, rank or worker" in judge(JOB, NAME, blobs, documents).reason


@given(st.binary(max_size=200) | st.text(max_size=200) | st.just("[" * 100_000))
def test_garbage_is_a_protocol_error(text: str | bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_order(text)
    with pytest.raises(ProtocolError):
        parse_manifest(text)
