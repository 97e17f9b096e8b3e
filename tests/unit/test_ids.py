import pytest

from checkpoint_replicator.ids import MAX_JOB_NAME, is_address, job_fault, new_id


@pytest.mark.parametrize("name", ["j", "llama3-70b", "A.b_c-9", "0", "x" * MAX_JOB_NAME])
def test_usual_job_names_pass(name: str) -> None:
    assert job_fault(name) is None


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "-x", "a b", "a*", "a\n", "ä", "$HOME", "a\x00b", "{a}"])
def test_names_that_would_escape_a_path_a_key_or_a_pattern_are_refused(name: str) -> None:
    assert (fault := job_fault(name)) is not None
    assert "expected letters" in fault


def test_a_long_name_is_refused_with_both_lengths() -> None:
    assert job_fault("x" * 300) == "has 300 bytes, expected at most 128"


def test_the_longest_marker_of_the_longest_job_is_a_legal_file_name() -> None:
    assert len(f"{'x' * MAX_JOB_NAME}-s{10**18}-n{10**9}-w{10**9}.restore") <= 255


@pytest.mark.parametrize(
    ("text", "verdict"),
    [("a" * 64, True), ("D" + "0" * 64, True), ("A" * 64, False), ("a" * 63, False), ("a" * 64 + "\n", False)],
)
def test_an_address_is_64_lower_hex_digits_with_or_without_a_d(text: str, verdict: bool) -> None:
    assert is_address(text) is verdict


def test_ids_are_random() -> None:
    assert len({new_id() for _ in range(1000)}) == 1000
