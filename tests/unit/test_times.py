import msgspec
import pytest

from checkpoint_replicator.errors import ConfigError
from checkpoint_replicator.times import Times


def test_the_defaults_stand_in_order() -> None:
    times = Times()
    assert times.report < times.suspect < times.lost
    assert times.rendezvous < times.failed < times.client


def test_s72_a_row_above_its_successor_is_refused_with_both_names() -> None:
    with pytest.raises(ConfigError, match=r"suspect is 30 s, expected less than lost \(20 s\)"):
        Times(suspect=30)


def test_equal_rows_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"rendezvous is 285 s, expected less than failed \(285 s\)"):
        Times(rendezvous=285)


@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan")])
def test_a_row_must_be_above_zero_and_finite(value: float) -> None:
    with pytest.raises(ConfigError, match="scan is"):
        Times(scan=value)


def test_names_in_files_have_dashes() -> None:
    assert "lease-ttl" in msgspec.to_builtins(Times())


def test_an_unknown_row_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="leese-ttl"):
        msgspec.convert({"leese-ttl": 10.0}, Times)


def test_rows_that_follow_one_another_are_refused_where_they_are_too_long_together() -> None:
    with pytest.raises(
        ConfigError, match=r"lease-renewed and lease-margin are 10 s together, expected less than lease-ttl \(10 s\)"
    ):
        Times(lease_renewed=8)
    with pytest.raises(
        ConfigError, match=r"beacon-silent and hosts are 20 s together, expected less than lost \(20 s\)"
    ):
        Times(hosts=15)
