from pathlib import Path

import pytest

from checkpoint_replicator.config import Size, load
from checkpoint_replicator.errors import ConfigError
from checkpoint_transfer.config import TransferConfig

SAMPLE = Path(__file__).parents[3] / "services" / "transfer" / "transfer.toml"


def test_windows_and_threads_have_defaults_that_bound_memory() -> None:
    config = TransferConfig(ramdisk=Path("/ramdisk"))
    assert config.window + config.serve_window <= 64 << 20
    assert 1 <= config.hash_threads <= 4


@pytest.mark.parametrize("key", ["window", "serve-window"])
def test_a_window_smaller_than_a_message_is_refused_by_name(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: expected at least 4MiB, found 3MiB"):
        load(TransferConfig, None, {}, {"ramdisk": "/r", key: "3MiB"})


@pytest.mark.parametrize("key", ["hash-threads", "read-threads", "leaf-sockets"])
def test_a_number_below_one_is_refused_by_name(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: expected at least 1, found 0"):
        load(TransferConfig, None, {}, {"ramdisk": "/r", key: "0"})


def test_the_sample_holds_the_defaults() -> None:
    sample = load(TransferConfig, SAMPLE)
    assert sample.window == Size(32 << 20)
    assert sample == TransferConfig(ramdisk=Path("/ramdisk"), host=sample.host, hash_threads=sample.hash_threads)
