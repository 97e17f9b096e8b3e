"""What a name in the public directory is."""

import pytest

from checkpoint_watcher.entry import Kind, SaveName, classify, save_name


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("replicator.yaml", Kind.YAML),
        ("replicator.yaml.tmp", Kind.OURS),
        ("jax-init-info.txt", Kind.OURS),
        (".tmp.jax-init-info.txt", Kind.OURS),
        ("replicator.prerestore", Kind.LEFTOVER),
        ("replicator.errors", Kind.LEFTOVER),
        ("replicator.failed", Kind.LEFTOVER),
        ("llama-s3-n0-w0.restore", Kind.LEFTOVER),
        ("x.restore", Kind.LEFTOVER),
        ("llama-s3-n0-w0.save", Kind.FILE),
        ("llama-s3-n0-w0.save.tmp", Kind.LEFTOVER),
        ("llama-s999999999999999-n0-w0.save", Kind.FILE),
        ("llama-s1000000000000000-n0-w0.save", Kind.FOREIGN),
        ("llama-s3-n0-g0.save", Kind.FOREIGN),
        ("llama-s03-n0-w0.save", Kind.FOREIGN),
        ("a b-s3-n0-w0.save", Kind.FOREIGN),
        ("llama-s3-n0-w0.meta", Kind.OURS),
        (f"{'a' * 64}.data", Kind.OURS),
        ("a.data", Kind.FOREIGN),
        ("step=4-unfinished", Kind.LEFTOVER),
        ("step=4", Kind.FOREIGN),
        ("12", Kind.FOREIGN),
        ("notes.txt", Kind.FOREIGN),
    ],
)
def test_a_file_is_what_its_name_says(name: str, kind: Kind) -> None:
    assert classify(name) is kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("12", Kind.DIRECTORY),
        ("0", Kind.DIRECTORY),
        ("012", Kind.FOREIGN),
        ("1000000000000000", Kind.FOREIGN),
        ("step=12", Kind.LEFTOVER),
        ("12.orbax-checkpoint-tmp", Kind.LEFTOVER),
        ("12.orbax-checkpoint-tmp-1700000000", Kind.LEFTOVER),
        ("llama-s3-n0-w0.save", Kind.FOREIGN),
        ("replicator.failed", Kind.FOREIGN),
        ("replicator.yaml", Kind.FOREIGN),
        ("x.restore", Kind.FOREIGN),
        (".replicator", Kind.OURS),
        (f"D{'a' * 64}.data", Kind.OURS),
        ("logs", Kind.FOREIGN),
    ],
)
def test_a_directory_is_what_its_name_says(name: str, kind: Kind) -> None:
    assert classify(name, directory=True) is kind


@pytest.mark.parametrize("name", ["12", "step=12", "llama-s3-n0-w0.restore"])
def test_a_renamed_marker_is_left_over_and_no_save(name: str) -> None:
    assert classify(name, link=True) is Kind.LEFTOVER


def test_a_link_is_never_a_save() -> None:
    assert classify("llama-s3-n0-w0.save", link=True) is Kind.FOREIGN


def test_a_save_name_is_read_from_its_end() -> None:
    assert save_name("my-s1-n2-job-s3-n4-w5.save") == SaveName(3, "my-s1-n2-job", 4, 5)  # type: ignore[arg-type]
    assert save_name("7") == SaveName(7)  # type: ignore[arg-type]
    assert save_name("llama") is None
