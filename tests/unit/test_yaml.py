"""What a `replicator.yaml` may say."""

import pytest

from checkpoint_replicator.session import SessionSpec
from checkpoint_replicator.shape import Shape
from checkpoint_replicator.yaml import MAX_SIZE, Accepted, Rejected, read_session

GOOD = {"job-name": "llama", "framework": "pytorch", "node-rank": "1", "nodes": "4"}


def text(**changes: str | None) -> bytes:
    """A good yaml, with keys changed (underscores for dashes) or left out."""
    keys: dict[str, str | None] = {**GOOD, **{key.replace("_", "-"): value for key, value in changes.items()}}
    return "".join(f"{key}: {value}\n" for key, value in keys.items() if value is not None).encode()


def accepted(data: bytes) -> Accepted:
    answer = read_session(data)
    assert isinstance(answer, Accepted), answer
    return answer


def reason(data: bytes) -> str:
    answer = read_session(data)
    assert isinstance(answer, Rejected), answer
    assert answer.reason.startswith("replicator.yaml: ")
    return answer.reason


def test_the_least_yaml_gets_defaults() -> None:
    assert accepted(text()) == Accepted(SessionSpec("llama", 1, Shape(4, 1, 1, "pytorch")))  # type: ignore[arg-type]


def test_a_yaml_as_orbax_writes_it_without_a_newline_at_its_end() -> None:
    data = text(assume_data_parallelism="2", peer_ranks="[3]", backup_interval_minutes="30").rstrip(b"\n")
    spec = accepted(data).spec
    assert spec.shape.d == 2
    assert spec.peer_ranks == (3,)
    assert spec.backup_interval_minutes == 30


def test_numbers_may_be_quoted_and_keys_may_come_in_any_order() -> None:
    spec = accepted(b"nodes: '16'\nnode-rank: \"15\"\nframework: pytorch\njob-name: 12345\n").spec
    assert (spec.job, spec.rank, spec.shape.nodes) == ("12345", 15, 16)


@pytest.mark.parametrize("name", ["12345", "true", "1e3", "null", "a.b_c-d"])
def test_a_job_name_stays_the_text_that_it_is(name: str) -> None:
    assert accepted(text(job_name=name)).spec.job == name


def test_variables_are_not_expanded() -> None:
    assert "job-name" in reason(text(job_name="$HOME"))


def test_unknown_keys_are_ignored_with_a_note_and_master_without() -> None:
    answer = accepted(text(colour="{a: [1, {b: c}]}", master="tcp://10.0.0.1:1", master_port="1"))
    assert answer.notes == ("ignored the unknown key 'colour'",)


def test_the_own_rank_and_duplicates_are_struck_from_the_peers() -> None:
    answer = accepted(text(peer_ranks="[1, 2, 2, 3]"))
    assert answer.spec.peer_ranks == (2, 3)
    assert answer.notes == ("peer-ranks: struck 1, the own rank", "peer-ranks: struck 2, a duplicate")


def test_peers_may_stand_in_a_block_list_or_be_none() -> None:
    assert accepted(text() + b"peer-ranks:\n- 0\n- 3\n").spec.peer_ranks == (0, 3)
    assert accepted(text(peer_ranks="[]")).spec.peer_ranks == ()


def test_more_peers_than_there_are_count_as_all() -> None:
    answer = accepted(text(peers_per_node="9"))
    assert answer.spec.peers_per_node == 3
    assert "counts as 3" in answer.notes[0]


def test_one_directory_a_node_means_one_worker() -> None:
    answer = accepted(text(framework="pytorch.distributed", workers_per_node="8"))
    assert answer.spec.shape.workers == 1
    assert "counts as 1" in answer.notes[0]


def test_data_parallelism_above_the_nodes_means_that_each_holds_all() -> None:
    assert accepted(text(assume_data_parallelism="8")).spec.shape.d == 4


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "empty file"),
        (b"  \n\n", "empty file"),
        (b"# only a remark\n", "empty file"),
        (b"--- \n", "the text ''"),
        (b"{{{", "expected a key"),
        (b"job-name: a: b\n", "is not YAML: "),
        (b"job-name: [1, 2\n", "is not YAML: "),
        (b"\xff\xfe\x00", "is not YAML: "),
        (b"job-name: a\x00b\n", "is not YAML: "),
        (b"\xc3\x28: 1\n", "is not YAML: "),
        (b"- job-name\n- nodes\n", "found a list"),
        (b"just words\n", "found the text 'just words'"),
        (text() + b"---\n" + text(), "expected one document"),
        (text() + b"nodes: 5\n", "found 'nodes' twice"),
        (text() + b"x: &a [1]\ny: *a\n", "anchor or alias"),
        (text() + b"x: !!python/object/apply:os.system ['true']\n", "found the tag"),
        (text() + b"? [a, b]\n: 1\n", "expected a key"),
        (text() + b"x: " + b"[" * 20 + b"]" * 20 + b"\n", "at most 8 levels"),
        (text() + b"x: " + b"[" * 30000, "at most 8 levels"),
        (text() + b"#" * MAX_SIZE, f"at most {MAX_SIZE} bytes"),
    ],
)
def test_what_is_not_one_plain_mapping_is_rejected(data: bytes, says: str) -> None:
    assert says in reason(data)


@pytest.mark.parametrize("key", ["job-name", "framework", "node-rank", "nodes"])
def test_a_missing_key_is_named(key: str) -> None:
    assert reason(text(**{key.replace("-", "_"): None})).endswith("found no such key")
    assert key in reason(text(**{key.replace("-", "_"): None}))
    assert reason(text(**{key.replace("-", "_"): ""})).endswith("found nothing")


@pytest.mark.parametrize(
    ("key", "value", "found"),
    [
        ("nodes", "two", "'two'"),
        ("nodes", "0", "'0'"),
        ("nodes", "-1", "'-1'"),
        ("nodes", "1.0", "'1.0'"),
        ("nodes", "9" * 5000, "'99"),
        ("nodes", "[4]", "'[4]'"),
        ("nodes", "{a: 1}", "a nested value"),
        ("node-rank", "4", "'4'"),
        ("node-rank", "-1", "'-1'"),
        ("node-rank", "x", "'x'"),
        ("framework", "jax", "'jax'"),
        ("framework", "[pytorch]", "'[pytorch]'"),
        ("workers-per-node", "x", "'x'"),
        ("workers-per-node", "0", "'0'"),
        ("assume-data-parallelism", "3", "3"),
        ("assume-data-parallelism", "x", "'x'"),
        ("peer-ranks", "[9]", "'9'"),
        ("peer-ranks", "[a]", "'a'"),
        ("peer-ranks", "[[1]]", "a nested value"),
        ("peer-ranks", "1", "'1'"),
        ("peer-ranks", "", "''"),
        ("peers-per-node", "x", "'x'"),
        ("backup-interval-minutes", "x", "'x'"),
        ("backup-interval-minutes", "0", "'0'"),
        ("backup-interval-minutes", "nan", "'nan'"),
        ("backup-interval-steps", "0", "'0'"),
        ("backup-interval-steps", "1.5", "'1.5'"),
    ],
)
def test_a_mistyped_key_is_named_with_expected_and_found(key: str, value: str, found: str) -> None:
    says = reason(text(**{key.replace("-", "_"): value}))
    assert f"{key}: expected " in says
    assert found in says


@pytest.mark.parametrize("name", ["a/b", "..", "../evil", "*", "a" * 300, "a b", "-a", "ä"])
def test_a_job_name_that_could_leave_the_directory_is_rejected(name: str) -> None:
    says = reason(text(job_name=f'"{name}"'))
    assert says.startswith("replicator.yaml: job-name ")
    assert "expected" in says


def test_a_text_cut_short_is_rejected_or_means_what_it_says() -> None:
    data = text(workers_per_node="2", peer_ranks="[0, 2]", backup_interval_minutes="30")
    for size in range(len(data)):
        assert isinstance(read_session(data[:size]), Accepted | Rejected)
