from pathlib import Path

import pytest

from checkpoint_replicator.blobs.directory import DirectoryBlobStore
from checkpoint_replicator.blobs.location import check_root, open_root
from checkpoint_replicator.errors import ConfigError


def test_a_file_url_opens_a_folder(tmp_path: Path) -> None:
    store = open_root(f"{tmp_path.as_uri()}/")
    assert isinstance(store, DirectoryBlobStore)
    assert store.path == tmp_path
    assert store.root == tmp_path.as_uri()


def test_a_space_may_be_written_either_way() -> None:
    for url in ("file:///mnt/my%20backups", "file:///mnt/my backups", "file://localhost/mnt/my backups"):
        store = open_root(url)
        assert isinstance(store, DirectoryBlobStore)
        assert store.path == Path("/mnt/my backups")


def test_a_slash_at_the_end_makes_no_other_root() -> None:
    assert check_root("file:///mnt/b/") == check_root("file:///mnt/b") == "file:///mnt/b"


def test_a_bucket_is_not_supported_yet_and_the_error_says_so() -> None:
    with pytest.raises(ConfigError, match="gs:// is not supported yet, expected file:///folder"):
        open_root("gs://bucket/prefix")


@pytest.mark.parametrize(
    "url", ["", "/mnt/b", "mnt", "file://host/mnt", "file:///", "file:///a/../b", "s3://x", "file:///a?b", "file:a"]
)
def test_what_is_no_root_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="backup root"):
        open_root(url)
