from pathlib import Path

import pytest

from checkpoint_coordinator.config import CoordinatorConfig
from checkpoint_replicator.config import load
from checkpoint_replicator.errors import ConfigError


def test_everything_has_a_default() -> None:
    config = load(CoordinatorConfig)
    assert (config.reports_port, config.beacons_port, config.backup, config.fresh_start) == (0, 0, None, "refused")
    assert not config.options.fresh_start


def test_a_file_is_read_and_a_flag_wins(tmp_path: Path) -> None:
    path = tmp_path / "coordinator.toml"
    path.write_text('backup = "file:///b"\nfresh-start = "allowed"\nreports-port = 4242\n')
    config = load(CoordinatorConfig, path, {}, {"reports-port": "4243"})
    assert config.reports_port == 4243
    assert config.options.backup == "file:///b"
    assert config.options.fresh_start


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("fresh-start", "maybe", "fresh-start"),
        ("reports-port", "70000", "reports-port: expected a port from 0 to 65535, found 70000"),
        ("jobs", "0", "jobs: expected at least 1, found 0"),
        ("report-port", "1", "unknown key"),
    ],
)
def test_a_wrong_value_is_named(key: str, value: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load(CoordinatorConfig, None, {}, {key: value})
