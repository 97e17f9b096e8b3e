import tomllib
from pathlib import Path

import msgspec
import pytest

from checkpoint_replicator.config import load
from checkpoint_replicator.errors import ConfigError
from checkpoint_uploader.config import UploaderConfig

SAMPLE = Path(__file__).parents[3] / "services" / "uploader" / "uploader.toml"


def test_a_root_is_checked_when_the_configuration_is_read() -> None:
    with pytest.raises(ConfigError, match="gs:// is not supported yet"):
        load(UploaderConfig, flags={"ramdisk": "/r", "backup": "gs://bucket"})
    assert load(UploaderConfig, flags={"ramdisk": "/r", "backup": "file:///b"}).backup == "file:///b"


@pytest.mark.parametrize("key", ["uploads", "calls", "reads"])
@pytest.mark.parametrize("value", ["0", "65", "-1"])
def test_a_number_out_of_range_is_refused_by_name(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: expected 1 to 64, found {value}"):
        load(UploaderConfig, flags={"ramdisk": "/r", key: value})


def test_the_sample_has_every_key_with_its_default() -> None:
    lines = [line.removeprefix("# ") for line in SAMPLE.read_text().splitlines()]
    keys = {line.partition(" = ")[0]: line for line in lines if " = " in line and line[0].islower()}
    fields = {field.encode_name: field for field in msgspec.structs.fields(UploaderConfig)}
    assert keys.keys() - {"store-silent"} == fields.keys() - {"times"}
    for key in ("redis", "bind", "health", "log-level", "log-format", "uploads", "calls", "reads"):
        assert tomllib.loads(keys[key])[key] == fields[key].default, key


def test_the_sample_can_be_loaded() -> None:
    assert load(UploaderConfig, SAMPLE).ramdisk == Path("/local/tmpfs")
