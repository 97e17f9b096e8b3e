from checkpoint_replicator.demo.content import shard_bytes, step_files


def test_content_follows_from_job_step_rank_and_worker_alone() -> None:
    assert shard_bytes("j", 1, 2, 3, 100) == shard_bytes("j", 1, 2, 3, 100)
    different = {
        shard_bytes(*key, 100)
        for key in [("j", 1, 2, 3), ("k", 1, 2, 3), ("j", 2, 2, 3), ("j", 1, 3, 3), ("j", 1, 2, 4)]
    }
    assert len(different) == 5


def test_a_directory_holds_a_part_for_each_worker_and_the_metadata_last() -> None:
    files = step_files("j", 1, 2, 2, 10)
    assert list(files) == ["__4_0.distcp", "__5_0.distcp", ".metadata"]
    assert files["__5_0.distcp"] == shard_bytes("j", 1, 2, 1, 10)
