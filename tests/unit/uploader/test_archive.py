"""The order of a backup, at every crash point and under repetition."""

import pytest

from checkpoint_replicator.backup import abandoned_document, order_document
from checkpoint_replicator.errors import PermanentError, ProtocolError, RefusedError, UnreachableError
from checkpoint_replicator.ids import Epoch, Step
from checkpoint_replicator.messages import BackupResult
from checkpoint_replicator.records import BackupOrder
from checkpoint_replicator.save import Save
from checkpoint_uploader.archive import Archive
from checkpoint_uploader.progress import CancelledError, Progress
from support.backup_scene import JOB, NAME, STAMP, Scene, broken_law
from support.memory_blobs import MemoryBlobStore


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return Scene(tmp_path_factory.mktemp("shards"))


@pytest.fixture
def store() -> MemoryBlobStore:
    return MemoryBlobStore()


@pytest.fixture
def archive(store: MemoryBlobStore, scene: Scene) -> Archive:
    return Archive(store, scene.shards, threads=1)


def perform(archive: Archive, order: BackupOrder) -> BackupResult:
    result = archive.perform(JOB, order, Progress())
    assert (result.id, result.kind, result.done) == (order.id, order.kind, True)
    return result


def back_up(archive: Archive, scene: Scene) -> None:
    perform(archive, scene.reserve())
    answers = [perform(archive, scene.upload(rank)) for rank in range(2)]
    answers.append(perform(archive, scene.seal()))
    perform(archive, scene.manifest(answers))


def test_a_whole_backup_is_listed_with_its_shards(archive: Archive, scene: Scene) -> None:
    back_up(archive, scene)
    (entry,) = perform(archive, scene.simple("list")).entries
    assert (entry.name, entry.whole, entry.tags) == (NAME, True, scene.tags)


def test_an_upload_answers_sizes_and_sums(archive: Archive, scene: Scene) -> None:
    perform(archive, scene.reserve())
    address = scene.trees[0].address
    result = perform(archive, scene.upload(0))
    assert result.sizes[f"{address}.data"] == scene.trees[0].size
    assert result.crc32c.keys() == result.sizes.keys() == {f"{address}.data", f"{address}.tree"}
    assert result.size == sum(result.sizes.values())


def test_every_order_may_be_repeated(archive: Archive, store: MemoryBlobStore, scene: Scene) -> None:
    back_up(archive, scene)
    written = len(store.log)
    back_up(archive, scene)
    assert len(store.log) == written


class CrashError(BaseException):
    """Stands for the death of the process."""


def test_a_crash_at_any_call_breaks_no_law_and_a_repetition_completes_the_backup(scene: Scene) -> None:
    calls = 0
    finished = False
    while not finished:
        store = MemoryBlobStore()
        left = calls

        def count(_method: str, _name: str) -> None:
            nonlocal left
            if left == 0:
                raise CrashError
            left -= 1

        store.before = count
        try:
            back_up(Archive(store, scene.shards, threads=1), scene)
            finished = True
        except CrashError:
            assert broken_law(store, scene) == ""
        store.before = lambda _method, _name: None
        again = Archive(store, scene.shards, threads=2)
        back_up(again, scene)
        assert broken_law(store, scene) == ""
        (entry,) = perform(again, scene.simple("list")).entries
        assert entry.whole
        calls += 1
    assert calls > 20


def test_two_uploaders_with_the_same_order_both_succeed(store: MemoryBlobStore, scene: Scene) -> None:
    for archive in (Archive(store, scene.shards), Archive(store, scene.shards)):
        back_up(archive, scene)
    assert len(store.log) == len(set(store.log))


def test_a_name_reserved_for_another_order_is_refused(archive: Archive, scene: Scene) -> None:
    perform(archive, scene.reserve())
    other = order_document(stamp=STAMP, save=Save(Epoch(3), Step(8)), shape=scene.tags[0].shape)
    with pytest.raises(RefusedError):
        perform(archive, BackupOrder(id="x", kind="reserve", name=NAME, document=other))


def test_nothing_is_uploaded_or_sealed_into_a_name_that_is_not_reserved(archive: Archive, scene: Scene) -> None:
    for order in (scene.upload(0), scene.seal()):
        with pytest.raises(RefusedError, match="not reserved"):
            perform(archive, order)


def test_shards_of_another_save_are_refused(archive: Archive, scene: Scene) -> None:
    other = order_document(stamp=STAMP, save=Save(Epoch(3), Step(8)), shape=scene.tags[0].shape)
    perform(archive, BackupOrder(id="x", kind="reserve", name=NAME, document=other))
    with pytest.raises(RefusedError, match=r"reserved for save 3\.8"):
        perform(archive, scene.upload(0))


def test_no_mark_before_all_data(archive: Archive, store: MemoryBlobStore, scene: Scene) -> None:
    perform(archive, scene.reserve())
    perform(archive, scene.upload(0))
    with pytest.raises(RefusedError, match=r"expected all data before any \.meta"):
        perform(archive, scene.seal())
    assert not [name for name in store.objects if name.endswith(".meta")]


def test_no_mark_when_the_seal_lacks_a_shard(archive: Archive, store: MemoryBlobStore, scene: Scene) -> None:
    perform(archive, scene.reserve())
    perform(archive, scene.upload(0))
    with pytest.raises(ProtocolError, match="seal lacks n1/w0"):
        perform(archive, BackupOrder(id="s", kind="seal", name=NAME, tags=scene.tags[:1]))
    assert not [name for name in store.objects if name.endswith(".meta")]


@pytest.mark.parametrize("change", ["gone", "shorter", "flipped"])
def test_no_manifest_over_data_that_is_not_as_it_was_stored(
    archive: Archive, store: MemoryBlobStore, scene: Scene, change: str
) -> None:
    perform(archive, scene.reserve())
    answers = [perform(archive, scene.upload(rank)) for rank in range(2)]
    answers.append(perform(archive, scene.seal()))
    name = f"{JOB}/{NAME}/{scene.trees[0].address}.data"
    data = store.objects.pop(name)
    if change != "gone":
        store.objects[name] = data[:-1] if change == "shorter" else bytes([data[0] ^ 1]) + data[1:]
    with pytest.raises(PermanentError, match="is not complete"):
        perform(archive, scene.manifest(answers))
    assert f"{JOB}/{NAME}/MANIFEST.json" not in store.objects


def test_a_manifest_names_all_data(archive: Archive, scene: Scene) -> None:
    perform(archive, scene.reserve())
    answers = [perform(archive, scene.upload(rank)) for rank in range(2)]
    answers.append(perform(archive, scene.seal()))
    name = f"{scene.trees[1].address}.data/deep/a.bin"
    for answer in answers:
        answer.crc32c.pop(name, None)
    with pytest.raises(PermanentError, match=r"the manifest lacks D.*deep/a\.bin"):
        perform(archive, scene.manifest(answers))


def test_an_abandoned_name_takes_nothing_any_more(archive: Archive, store: MemoryBlobStore, scene: Scene) -> None:
    perform(archive, scene.reserve())
    answers = [perform(archive, scene.upload(rank)) for rank in range(2)]
    perform(archive, scene.simple("abandon"))
    for order in (scene.upload(0), scene.seal()):
        with pytest.raises(RefusedError, match="was abandoned"):
            perform(archive, order)
    with pytest.raises(PermanentError):
        perform(archive, scene.manifest(answers))
    assert sorted(store.objects) == [f"{JOB}/{NAME}/MANIFEST.json", f"{JOB}/{NAME}/ORDER.json"]


def test_a_seal_that_meets_an_abandonment_leaves_no_mark(
    archive: Archive, store: MemoryBlobStore, scene: Scene
) -> None:
    perform(archive, scene.reserve())
    for rank in range(2):
        perform(archive, scene.upload(rank))

    def give_up(method: str, name: str) -> None:
        if method == "put_new" and name.endswith(".meta"):
            store.objects[f"{JOB}/{NAME}/MANIFEST.json"] = abandoned_document().encode()

    store.before = give_up
    with pytest.raises(RefusedError, match="while it was sealed"):
        perform(archive, scene.seal())
    assert not [name for name in store.objects if name.endswith(".meta")]


def test_an_unknown_kind_is_refused_by_name(archive: Archive) -> None:
    with pytest.raises(ProtocolError, match="kind 'burn'"):
        archive.perform(JOB, BackupOrder(id="x", kind="burn", name=NAME), Progress())


def test_an_abandoned_document_is_no_manifest_to_complete(archive: Archive) -> None:
    with pytest.raises(ProtocolError, match="expected a complete one"):
        perform(archive, BackupOrder(id="x", kind="manifest", name=NAME, document=abandoned_document()))


def test_a_cancelled_order_stops_between_leaves(archive: Archive, store: MemoryBlobStore, scene: Scene) -> None:
    perform(archive, scene.reserve())
    progress = Progress(lambda _size: progress.cancel())
    with pytest.raises(CancelledError):
        archive.perform(JOB, scene.upload(0), progress)
    assert sorted(store.objects) == [f"{JOB}/{NAME}/ORDER.json"]


def test_a_store_that_does_not_answer_gives_no_list(archive: Archive, store: MemoryBlobStore, scene: Scene) -> None:
    def silent(_method: str, name: str) -> None:
        raise UnreachableError(f"{name}: no answer")

    store.before = silent
    with pytest.raises(UnreachableError):
        perform(archive, scene.simple("list"))
