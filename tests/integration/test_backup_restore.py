"""A real transfer fetches from a real uploader: the backup is just another holder."""

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from checkpoint_replicator.backup import order_document
from checkpoint_replicator.blobs.location import open_root
from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.hashing import hash_shard, verify_shard
from checkpoint_replicator.ids import Epoch
from checkpoint_replicator.messages import FetchOrder, FetchState
from checkpoint_replicator.records import BackupOrder
from checkpoint_replicator.save import Tag
from checkpoint_uploader.archive import Archive
from checkpoint_uploader.progress import Progress
from support.backup_scene import FolderShards
from support.shards import fill, fill_folder
from support.transfer_node import TransferNode, nodes

NAME = "2026-01-02_03-04"
MIB = 1 << 20

pytestmark = pytest.mark.timeout(90)


@contextmanager
def uploader(node: TransferNode, backup: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the uploader of this node."""
    flags = [f"--host={node.host}", f"--ramdisk={node.root}", f"--run={node.run}", f"--backup={backup.as_uri()}"]
    process = subprocess.Popen([sys.executable, "-m", "checkpoint_uploader", *flags])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@asynccontextmanager
async def restoring(tmp_path: Path, *sources: Path) -> AsyncIterator[tuple[TransferNode, Path, list[Tag]]]:
    """Yield a node with an empty ramdisk, a backup of the sources, and their tags."""
    backup = tmp_path / "backups"
    backup.mkdir()
    async with nodes(tmp_path, "a") as (node,):
        shards = FolderShards()
        trees = [shards.add(source) for source in sources]
        tags = [node.tag(tree.address, tree.size, rank=rank) for rank, tree in enumerate(trees)]
        archive = Archive(open_root(backup.as_uri()), shards)
        document = order_document(stamp=Stamp(1, Epoch(1), 1), save=tags[0].save, shape=tags[0].shape)
        for order in (
            BackupOrder(id="r", kind="reserve", name=NAME, document=document),
            BackupOrder(id="u", kind="upload", name=NAME, tags=tuple(tags)),
        ):
            assert archive.perform(tags[0].job, order, Progress()).done
        yield node, backup, tags


def fetch(node: TransferNode, *tags: Tag) -> None:
    node.order(fetches=tuple(FetchOrder(tags=(tag,), backup=NAME) for tag in tags))


async def test_a_file_and_a_directory_come_back_from_the_backup_byte_for_byte(tmp_path: Path) -> None:
    big = fill(tmp_path / "big", 40 * MIB + 17)
    folder = fill_folder(tmp_path / "folder")
    for number in range(300):
        fill(folder / "many" / f"{number}", number * 7, number)
    async with restoring(tmp_path, big, folder) as (node, backup, tags):
        with uploader(node, backup):
            fetch(node, *tags)
            for source, tag in zip((big, folder), tags, strict=True):
                fetched = await node.fetched(tag, seconds=60)
                assert fetched.by_source == {"backup": tag.size}
                assert verify_shard(node.data(tag), hash_shard(source)).is_none
                assert (node.root / f"{tag.name}.meta").read_text() == tag.address


async def test_an_empty_file_and_an_empty_directory_come_back(tmp_path: Path) -> None:
    empty = fill(tmp_path / "empty", 0)
    void = tmp_path / "void"
    void.mkdir()
    async with restoring(tmp_path, empty, void) as (node, backup, tags):
        with uploader(node, backup):
            fetch(node, *tags)
            for tag in tags:
                await node.fetched(tag)
        assert node.data(tags[0]).read_bytes() == b""
        assert list(node.data(tags[1]).iterdir()) == []


async def test_s81_a_flipped_bit_in_the_backup_is_never_named_and_the_fetch_says_why(tmp_path: Path) -> None:
    async with restoring(tmp_path, fill(tmp_path / "big", 5 * MIB)) as (node, backup, (tag,)):
        with (backup / tag.job / NAME / f"{tag.address}.data").open("r+b") as file:
            file.seek(3 * MIB)
            byte = file.read(1)
            file.seek(3 * MIB)
            file.write(bytes([byte[0] ^ 1]))
        with uploader(node, backup):
            fetch(node, tag)
            fetched = await node.fetched(tag, FetchState.FAILED)
        assert "leaf 3" in fetched.reason
        assert not node.data(tag).exists()


async def test_a_backup_that_lacks_the_shard_fails_the_fetch_with_its_reason(tmp_path: Path) -> None:
    async with restoring(tmp_path, fill(tmp_path / "big", MIB)) as (node, backup, (tag,)):
        for ending in ("data", "tree"):
            (backup / tag.job / NAME / f"{tag.address}.{ending}").unlink()
        with uploader(node, backup):
            fetch(node, tag)
            fetched = await node.fetched(tag, FetchState.FAILED)
        assert "has no data of" in fetched.reason


async def test_a_fetch_goes_on_when_the_uploader_is_killed_amid_it_and_started_again(tmp_path: Path) -> None:
    async with restoring(tmp_path, fill(tmp_path / "big", 100 * MIB)) as (node, backup, (tag,)):
        with uploader(node, backup):
            fetch(node, tag)
            await node.wait(lambda report: any(fetched.have > 0 for fetched in report.fetches))
        with uploader(node, backup):
            await node.fetched(tag, seconds=60)
        assert verify_shard(node.data(tag), hash_shard(tmp_path / "big")).is_none
