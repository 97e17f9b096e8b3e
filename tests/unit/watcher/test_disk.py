"""The machine's effects on a real directory."""

import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Address, Epoch, Job, Rank, SessionId, Step, Worker
from checkpoint_replicator.ramdisk import Ramdisk
from checkpoint_replicator.save import Save, ShardKey, Tag
from checkpoint_replicator.session import SessionSpec, SessionState
from checkpoint_watcher import effects as do
from checkpoint_watcher import events as did
from checkpoint_watcher.disk import MAX_ERRORS, Disk
from checkpoint_watcher.record import Claim, FenceRecord, Lineage, Marker, SessionRecord
from checkpoint_watcher.snapshot import YamlIdentity
from support.watcher_story import JOB, SHAPE, save

NAME = "j-s3-n0-w0.save"
CLAIM = Claim(JOB, save(3), SHAPE, ShardKey(Rank(0), Worker(0)))
SESSION = SessionId("session")
RECORD = SessionRecord(
    SESSION,
    YamlIdentity(1, 2, 3, "d"),
    1.5,
    SessionSpec(JOB, Rank(0), SHAPE),
    SessionState.OPEN,
    before=Lineage(SessionSpec(JOB, Rank(0), SHAPE), Epoch(1)),
)


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(Ramdisk(tmp_path), threads=1)


def root(disk: Disk) -> Path:
    return disk.ramdisk.root


def claim(disk: Disk, content: bytes = b"content") -> Claim:
    path = root(disk) / NAME
    path.write_bytes(content)
    answer = disk.perform(do.ClaimSave(NAME, path.stat().st_ino, CLAIM))
    assert answer == did.SaveClaimed(CLAIM, len(content))
    return CLAIM


def named(disk: Disk, content: bytes = b"content") -> Tag:
    claim(disk, content)
    hashed = disk.hash(do.HashClaim(CLAIM))
    assert isinstance(hashed, did.ClaimHashed)
    tag = Tag(JOB, CLAIM.save, SHAPE, CLAIM.key, hashed.address, hashed.size)
    assert disk.perform(do.NameShard(CLAIM, tag)) == did.ShardNamed(CLAIM, tag)
    return tag


@pytest.mark.parametrize("garbage", [b"", b"{}", b"\xff", b"[" * 100_000])
def test_documents_that_do_not_parse_stop_no_watcher_and_no_commit_is_forgotten(disk: Disk, garbage: bytes) -> None:
    tag = named(disk)
    disk.perform(do.MarkCommitted(JOB, tag.save))
    layout = disk.ramdisk.layout
    layout.session.write_bytes(garbage)
    layout.fence.write_bytes(garbage if garbage != b"{}" else b"[]")
    started = disk.start()
    assert started.session is None
    assert started.fences == {JOB: FenceRecord(committed=tag.save)}
    assert [held.tag for held in started.held] == [tag]
    assert [word in reason for word, reason in zip(("session", "fence"), started.unreadable, strict=True)] == [True] * 2
    disk.perform(do.WriteSession(RECORD))
    assert disk.start().unreadable == ()


def test_a_commit_is_traced_by_its_sidecar_even_when_fence_json_and_the_data_are_gone(disk: Disk) -> None:
    tag = named(disk)
    disk.perform(do.MarkCommitted(JOB, tag.save))
    disk.perform(do.WriteSession(RECORD))
    disk.ramdisk.layout.fence.unlink(missing_ok=True)
    disk.ramdisk.layout.data(tag.address).unlink()
    started = disk.start()
    assert started.held == ()
    assert started.fences == {JOB: FenceRecord(committed=tag.save)}
    assert disk.ramdisk.fences.read() is not None


def test_without_session_json_the_sidecars_tell_whose_saves_stand_here(disk: Disk) -> None:
    assert disk.start().lineage is None
    named(disk)
    claim(disk, b"again")
    for note in disk.ramdisk.layout.claims.rglob("*.json"):
        note.unlink()
    started = disk.start()
    assert started.lineage == Lineage(SessionSpec(JOB, Rank(0), SHAPE), CLAIM.save.epoch)
    assert started.claims == (CLAIM,)
    (reason,) = started.unreadable
    assert reason.endswith("session.json: is missing although epoch 1 of job j saved here")
    disk.perform(do.WriteSession(RECORD))
    assert disk.start().lineage is None


def test_a_save_is_claimed_hashed_named_and_stands(disk: Disk) -> None:
    tag = named(disk)
    assert (root(disk) / f"{tag.address}.data").read_bytes() == b"content"
    assert (root(disk) / "j-s3-n0-w0.meta").read_text() == tag.address
    inventory = disk.perform(do.TakeInventory())
    assert isinstance(inventory, did.InventoryTaken)
    assert [(held.tag, held.own, held.committed) for held in inventory.held] == [(tag, True, False)]
    assert not [path for path in disk.ramdisk.layout.claims.rglob("*") if path.is_file()]


def test_what_is_gone_or_another_is_not_claimed(disk: Disk) -> None:
    assert isinstance(disk.perform(do.ClaimSave(NAME, 1, CLAIM)), did.SaveGone)
    path = root(disk) / NAME
    path.write_bytes(b"x")
    assert isinstance(disk.perform(do.ClaimSave(NAME, path.stat().st_ino + 1, CLAIM)), did.SaveGone)
    assert path.exists()


def test_a_second_save_of_the_name_waits_for_the_first(disk: Disk) -> None:
    claim(disk)
    path = root(disk) / NAME
    path.write_bytes(b"second")
    assert isinstance(disk.perform(do.ClaimSave(NAME, path.stat().st_ino, CLAIM)), did.SaveGone)
    assert path.read_bytes() == b"second"


def test_law_3_a_claim_is_found_again_with_its_shape_after_a_crash(disk: Disk) -> None:
    claim(disk)
    later = Disk(Ramdisk(root(disk)), threads=1)
    started = later.start()
    assert started.claims == (CLAIM,)
    hashed = later.hash(do.HashClaim(CLAIM))
    assert isinstance(hashed, did.ClaimHashed)


def test_a_note_without_its_claim_is_removed_at_the_start(disk: Disk) -> None:
    claim(disk)
    [note] = disk.ramdisk.layout.claims.glob("*/*.json")
    stray = note.with_name("j-s9-n0-w0.json")
    stray.write_bytes(note.read_bytes())
    assert disk.start().claims == (CLAIM,)
    assert note.exists()
    assert not stray.exists()


def test_a_claim_without_its_note_belongs_to_the_last_session(disk: Disk) -> None:
    claim(disk)
    for note in disk.ramdisk.layout.claims.rglob("*.json"):
        note.unlink()
    assert disk.start().claims == ()
    disk.perform(do.WriteSession(RECORD))
    assert disk.start().claims == (CLAIM,)


def test_a_save_with_paths_beyond_any_limit_is_unsupported_by_name_and_can_be_let_go(disk: Disk) -> None:
    step = root(disk) / "3"
    step.mkdir()
    folder = os.open(step, os.O_RDONLY)
    for _ in range(30):
        os.mkdir("d" * 200, dir_fd=folder)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
    os.close(folder)
    answer = disk.perform(do.ClaimSave("3", step.stat().st_ino, CLAIM))
    assert isinstance(answer, did.SaveClaimed)
    failed = disk.hash(do.HashClaim(CLAIM))
    assert isinstance(failed, did.HashFailed)
    assert failed.kind == "unsupported"
    assert "expected at most 4095" in failed.reason
    disk.perform(do.DropClaim(CLAIM))
    disk.sweep()
    assert not list(disk.ramdisk.layout.claims.rglob("*w0"))
    assert not list(disk.ramdisk.layout.trash.iterdir())


def test_a_link_in_a_save_makes_it_unsupported(disk: Disk) -> None:
    step = root(disk) / "3"
    step.mkdir()
    (step / "link").symlink_to("x")
    disk.perform(do.ClaimSave("3", step.stat().st_ino, CLAIM))
    answer = disk.hash(do.HashClaim(CLAIM))
    assert isinstance(answer, did.HashFailed)
    assert answer.kind == "unsupported"
    disk.perform(do.DropClaim(CLAIM))
    assert disk.start().claims == ()
    assert isinstance(disk.hash(do.HashClaim(CLAIM)), did.SaveGone)


def test_a_trainers_wish_for_a_backup_is_seen(disk: Disk) -> None:
    step = root(disk) / "3"
    step.mkdir()
    (step / "_BACKUP_REQUESTED").touch()
    disk.perform(do.ClaimSave("3", step.stat().st_ino, CLAIM))
    answer = disk.hash(do.HashClaim(CLAIM))
    assert isinstance(answer, did.ClaimHashed)
    assert answer.wanted
    disk.perform(do.NameShard(CLAIM, Tag(JOB, CLAIM.save, SHAPE, CLAIM.key, answer.address, answer.size)))
    assert disk.start().wished == (CLAIM.save,)


def test_the_next_life_counts_what_a_shard_has_by_its_tree(disk: Disk) -> None:
    tag = named(disk)
    tree = disk.ramdisk.tree(tag.address)
    assert disk.start().entries == {tag.address: len(tree.entries)}


def test_a_stopped_hash_has_no_answer(disk: Disk) -> None:
    claim(disk)
    disk.stop()
    assert disk.hash(do.HashClaim(CLAIM)) is None


def test_s05_verifying_finds_a_flipped_bit_and_quarantine_takes_the_name(disk: Disk) -> None:
    tag = named(disk)
    stamp = Stamp(1, Epoch(2), 3)
    assert disk.verify(do.VerifyShard(tag.address, stamp)) == did.ShardVerified(tag.address, stamp)
    data = root(disk) / f"{tag.address}.data"
    with data.open("r+b") as file:
        file.write(b"C")
    answer = disk.verify(do.VerifyShard(tag.address, stamp))
    assert isinstance(answer, did.ShardVerified)
    assert "1 leaves differ" in answer.reason
    assert disk.perform(do.Quarantine(tag.address)) == did.ShardQuarantined(tag.address)
    assert disk.perform(do.TakeInventory()) == did.InventoryTaken(())
    assert not data.exists()
    gone = disk.verify(do.VerifyShard(tag.address, stamp))
    assert isinstance(gone, did.ShardVerified)
    assert gone.reason


def test_what_was_changed_by_hand_has_fallen_and_can_still_be_dropped(disk: Disk) -> None:
    tag = named(disk)
    data = root(disk) / f"{tag.address}.data"
    with data.open("ab") as file:
        file.write(b"more")
    assert disk.perform(do.TakeInventory()) == did.InventoryTaken((), (tag,))
    assert disk.start().fallen == (tag,)
    assert disk.perform(do.DropSaves((tag,))) == did.SavesDropped((tag,))
    assert disk.perform(do.TakeInventory()) == did.InventoryTaken(())
    assert not data.exists()


def test_a_shard_that_is_read_is_neither_dropped_nor_quarantined(disk: Disk) -> None:
    tag = named(disk)
    with disk.ramdisk.open_shard(tag.address):
        assert disk.perform(do.DropSaves((tag,))) == did.SavesDropped((), (tag,))
        answer = disk.perform(do.Quarantine(tag.address))
        assert isinstance(answer, did.ShardQuarantined)
        assert answer.reason
    assert disk.perform(do.DropSaves((tag,))) == did.SavesDropped((tag,))
    assert disk.perform(do.DropSaves((tag,))) == did.SavesDropped((tag,))
    disk.sweep()
    assert not list(root(disk).glob("*.data"))


def test_the_clean_up_removes_the_contracts_leftovers_and_nothing_else(disk: Disk) -> None:
    base = root(disk)
    for name in ("notes.txt", "jax-init-info.txt", "replicator.yaml", "replicator.yaml.tmp", NAME):
        (base / name).touch()
    kept = {path.name for path in base.iterdir()}
    for name in ("a.restore", "replicator.prerestore", "replicator.errors", "replicator.failed", "x.save.tmp"):
        (base / name).touch()
    (base / "step=4-unfinished").touch()
    (base / "step=4").mkdir()
    (base / "7.orbax-checkpoint-tmp").mkdir()
    (base / "8").symlink_to("notes.txt")
    (base / "step=9").symlink_to("notes.txt")
    (base / "10").mkdir()
    assert disk.perform(do.CleanUp()) == did.CleanedUp()
    assert {path.name for path in base.iterdir()} == kept | {"10"}


def test_only_the_sessions_own_yaml_is_removed(disk: Disk) -> None:
    path = root(disk) / "replicator.yaml"
    path.write_text("new")
    assert disk.perform(do.RemoveYaml(SESSION, YamlIdentity(1, 2, 3, "d"))) == did.YamlRemoved(SESSION)
    assert path.exists()
    facts = path.stat()
    identity = YamlIdentity(facts.st_ino, facts.st_size, facts.st_ctime_ns, "d")
    assert disk.perform(do.RemoveYaml(SESSION, identity)) == did.YamlRemoved(SESSION)
    assert not path.exists()
    assert disk.perform(do.RemoveYaml(SESSION, identity)) == did.YamlRemoved(SESSION)


@pytest.mark.parametrize("in_place", [True, False])
def test_a_yaml_that_comes_while_the_last_one_is_removed_stays(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, *, in_place: bool
) -> None:
    path = root(disk) / "replicator.yaml"
    path.write_text("old")
    facts = path.stat()
    rename = Path.rename

    def late(self: Path, target: Path) -> Path:
        if self == path:
            fresh = path if in_place else path.with_name("replicator.yaml.tmp")
            fresh.write_text("newer")
            if not in_place:
                fresh.replace(path)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", late)
    identity = YamlIdentity(facts.st_ino, facts.st_size, facts.st_ctime_ns, "d")
    assert disk.perform(do.RemoveYaml(SESSION, identity)) == did.YamlRemoved(SESSION)
    assert path.read_text() == "newer"
    assert list(disk.ramdisk.layout.aside.iterdir()) == []


def test_session_and_fence_survive(disk: Disk) -> None:
    fence = FenceRecord(Stamp(2, Epoch(1), 3), Save(Epoch(1), Step(3)), Stamp(2, Epoch(1), 2))
    assert disk.perform(do.WriteSession(RECORD)) == did.SessionWritten(RECORD)
    assert disk.perform(do.WriteFence(JOB, fence)) == did.FenceWritten(JOB, fence)
    disk.perform(do.WriteFence(JOB, FenceRecord()))
    started = Disk(Ramdisk(root(disk))).start()
    assert started.session == RECORD
    assert started.fences == {JOB: fence}


def test_the_small_files_say_what_they_should(disk: Disk) -> None:
    base = root(disk)
    disk.perform(do.WritePrerestore())
    assert (base / "replicator.prerestore").read_text() == "{}\n"
    disk.perform(do.WritePrerestore(0, "2026-01-01_00-00"))
    assert (base / "replicator.prerestore").read_text() == "restore-step: 0\nrestore-backup: 2026-01-01_00-00\n"
    disk.perform(do.AppendErrors("one\nline"))
    disk.perform(do.AppendErrors("two"))
    assert (base / "replicator.errors").read_text() == "one line\ntwo\n"
    (base / "replicator.errors").write_bytes(b"x" * MAX_ERRORS)
    disk.perform(do.AppendErrors("three"))
    assert (base / "replicator.errors").stat().st_size == MAX_ERRORS
    assert disk.perform(do.WriteFailed(SESSION, "why")) == did.FailedWritten(SESSION)
    assert (base / "replicator.failed").read_text() == "why\n"
    disk.perform(do.PublishStatus("{}"))
    assert (base / ".replicator" / "status.json").read_text() == "{}"


def test_errors_never_follow_a_link(disk: Disk, tmp_path: Path) -> None:
    (root(disk) / "replicator.errors").symlink_to(tmp_path / "victim")
    disk.perform(do.AppendErrors("x"))
    assert not (tmp_path / "victim").exists()


def test_markers_lead_to_hand_outs_and_one_that_was_taken_is_not_made_again(disk: Disk) -> None:
    tag = named(disk)
    markers = (Marker("j-s3-n0-w0.restore", tag.address),)
    assert disk.perform(do.PublishMarkers(SESSION, markers)) == did.MarkersPublished(SESSION, handout=True)
    marker = root(disk) / "j-s3-n0-w0.restore"
    assert marker.read_bytes() == b"content"
    marker.rename(root(disk) / "3")
    disk.perform(do.PublishMarkers(SESSION, markers))
    assert not marker.is_symlink()
    disk.perform(do.PublishMarkers(SESSION, (Marker("j-s0-n0-w0.restore"),)))
    assert (root(disk) / "j-s0-n0-w0.restore").read_bytes() == b""


def test_markers_that_lead_to_the_data_itself_are_not_made_again_either(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    tag = named(disk)
    markers = (Marker("j-s3-n0-w0.restore", tag.address),)
    monkeypatch.setattr(os, "link", Mock(side_effect=PermissionError))
    assert disk.perform(do.PublishMarkers(SESSION, markers)) == did.MarkersPublished(SESSION, handout=False)
    marker = root(disk) / "j-s3-n0-w0.restore"
    assert marker.resolve() == disk.ramdisk.layout.data(tag.address)
    marker.rename(root(disk) / "3")
    assert disk.perform(do.PublishMarkers(SESSION, markers)) == did.MarkersPublished(SESSION, handout=False)
    assert not marker.is_symlink()


def test_what_is_gone_cannot_be_handed_out_and_stops_no_watcher(disk: Disk) -> None:
    tag = named(disk)
    disk.ramdisk.layout.data(tag.address).unlink()
    answer = disk.perform(do.PublishMarkers(SESSION, (Marker("j-s3-n0-w0.restore", tag.address),)))
    assert isinstance(answer, did.MarkersFailed)
    assert tag.address in answer.reason
    assert not (root(disk) / "j-s3-n0-w0.restore").is_symlink()


def test_a_commit_is_noted_in_the_sidecar(disk: Disk) -> None:
    named(disk)
    disk.perform(do.MarkCommitted(JOB, CLAIM.save))
    inventory = disk.perform(do.TakeInventory(recover=True))
    assert isinstance(inventory, did.InventoryTaken)
    assert inventory.held[0].committed


def test_data_that_is_gone_is_called_missing_by_its_path_alone(disk: Disk) -> None:
    tag = named(disk)
    data, tree = disk.ramdisk.layout.data(tag.address), disk.ramdisk.layout.tree(tag.address)
    data.unlink()
    verify = do.VerifyShard(tag.address, Stamp(1, Epoch(1), 1))
    gone = disk.perform(verify)
    tree.unlink()
    lost = disk.perform(verify)
    assert [did_.reason for did_ in (gone, lost) if isinstance(did_, did.ShardVerified)] == [
        f"{data}: is missing",
        f"{tree}: is missing",
    ]


def test_a_shard_that_is_not_here_cannot_be_verified(disk: Disk) -> None:
    answer = disk.perform(do.VerifyShard(Address("a" * 64), Stamp(1, Epoch(1), 1)))
    assert isinstance(answer, did.ShardVerified)
    assert answer.reason


def test_a_job_that_is_forgotten_leaves_nothing_and_others_stay(disk: Disk) -> None:
    tag = named(disk)
    other = root(disk) / "k-s3-n0-w0.save"
    other.write_bytes(b"other")
    foreign = Claim(Job("k"), save(3), SHAPE, ShardKey(Rank(0), Worker(0)))
    disk.perform(do.ClaimSave(other.name, other.stat().st_ino, foreign))
    disk.perform(do.WriteSession(RECORD))
    disk.perform(do.PublishMarkers(SESSION, (Marker("j-s3-n0-w0.restore", tag.address),)))
    claim(disk, b"not hashed yet")
    note = next(disk.ramdisk.layout.claims.glob("*/j-*.json"))
    note.unlink()
    note.mkdir()  # somebody's directory in its place
    disk.perform(do.WriteFence(JOB, FenceRecord(stamp=Stamp(1, Epoch(1), 1), committed=save(3))))
    disk.perform(do.WriteFence(Job("k"), FenceRecord(stamp=Stamp(2, Epoch(1), 1))))
    answer = disk.perform(do.ForgetJob(JOB, session=True))
    assert answer == did.JobForgotten(JOB, ())
    disk.sweep()
    assert [path.name for path in root(disk).iterdir() if path.name != ".replicator"] == []
    started = disk.start()
    assert started.session is None
    assert list(started.fences) == ["k"]
    assert [one.job for one in started.claims] == ["k"]


def test_a_job_that_is_being_read_keeps_its_session_and_its_fence(disk: Disk) -> None:
    tag = named(disk)
    disk.perform(do.WriteSession(RECORD))
    disk.perform(do.WriteFence(JOB, FenceRecord(stamp=Stamp(1, Epoch(1), 1))))
    with disk.ramdisk.open_shard(tag.address):
        answer = disk.perform(do.ForgetJob(JOB, session=True))
    assert isinstance(answer, did.JobForgotten)
    assert answer.reason
    assert answer.reason == f"{tag.name} is being read"
    assert [held.tag for held in answer.held] == [tag]
    started = disk.start()
    assert started.session == RECORD
    assert list(started.fences) == [JOB]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"id": "../../x"}, "expected a session id, found '../../x'"),
        ({"markers": (Marker("../x.restore"),)}, "expected names of markers, found '../x.restore'"),
        ({"spec": SessionSpec(JOB, Rank(7), SHAPE)}, f"expected a rank below {SHAPE.nodes}, found 7"),
    ],
    ids=["id", "marker", "rank"],
)
def test_a_session_that_no_watcher_wrote_is_set_aside(disk: Disk, change: dict[str, Any], expected: str) -> None:
    disk.perform(do.WriteSession(msgspec.structs.replace(RECORD, **change)))
    started = disk.start()
    assert started.session is None
    assert expected in started.unreadable[0]
    assert disk.ramdisk.layout.session.with_name("session.json.unreadable").exists()


def test_a_save_that_may_not_be_read_is_unsupported_and_no_end_of_the_process(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(disk)

    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("checkpoint_watcher.disk.hash_shard", denied)
    answer = disk.hash(do.HashClaim(CLAIM))
    assert answer == did.HashFailed(CLAIM, "unsupported", "a part of it may not be read: Permission denied")


def test_errors_are_told_in_short_lines_and_never_to_a_pipe(disk: Disk) -> None:
    disk.perform(do.AppendErrors("x" * 100_000 + "\udcff"))
    assert len((root(disk) / "replicator.errors").read_bytes()) < 3000
    (root(disk) / "replicator.errors").unlink()
    os.mkfifo(root(disk) / "replicator.errors")
    disk.perform(do.AppendErrors("a line"))


def test_sidecars_that_cannot_be_read_are_named_at_the_start(disk: Disk) -> None:
    tag = named(disk)
    disk.ramdisk.layout.sidecar(tag).write_bytes(b"garbage")
    [reason] = disk.start().unreadable
    assert reason.endswith("nothing that it may name is removed")
