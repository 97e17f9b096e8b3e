from pathlib import Path

import msgspec
import pytest

from checkpoint_replicator.config import (
    NodeConfig,
    ServiceConfig,
    Size,
    default_host,
    environment_name,
    load,
    meanings,
    parse_size,
    parse_span,
)
from checkpoint_replicator.errors import ConfigError


class Sample(NodeConfig, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    backup: str | None = None
    hash_threads: int = 4
    fresh: bool = False
    roots: tuple[str, ...] = ()


def write(folder: Path, text: str) -> Path:
    path = folder / "sample.toml"
    path.write_text(text)
    return path


def test_defaults_hold_where_nothing_is_said() -> None:
    config = load(ServiceConfig)
    assert config.redis == "redis://127.0.0.1:6379/0"
    assert config.host == default_host()
    assert config.reachable == "127.0.0.1"


def test_a_flag_beats_the_environment_which_beats_the_file_which_beats_the_default(tmp_path: Path) -> None:
    path = write(tmp_path, 'ramdisk = "/file"\nhash-threads = 2\nhost = "file"\nlog-level = "debug"')
    environ = {"CHECKPOINT_HASH_THREADS": "3", "CHECKPOINT_HOST": "environment"}
    config = load(Sample, path, environ, {"host": "flag", "hash-threads": None})
    assert (config.host, config.hash_threads, config.log_level, config.backup) == ("flag", 3, "debug", None)
    assert config.ramdisk == Path("/file")


def test_an_empty_variable_says_nothing() -> None:
    assert load(Sample, None, {"CHECKPOINT_RAMDISK": "/r", "CHECKPOINT_BACKUP": ""}).backup is None


def test_variables_and_flags_are_read_by_the_type_of_their_key() -> None:
    config = load(Sample, None, {"CHECKPOINT_RAMDISK": "/r", "CHECKPOINT_ROOTS": "a, b"}, {"fresh": "true"})
    assert config.fresh
    assert config.roots == ("a", "b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("chunk-sise = 3", r"sample.toml: chunk-sise: unknown key; known are host, redis,"),
        (
            'ramdisk = "/r"\nhash-threads = "many"',
            r"sample.toml: hash-threads: expected a whole number, found 'many'",
        ),
        ('ramdisk = "/r"\nramdisk-size = 64', r"sample.toml: ramdisk-size: expected .*, found 64"),
        (
            'ramdisk = "/r"\nramdisk-size = "64"',
            r"sample.toml: ramdisk-size: expected a size with its unit.*found '64'",
        ),
        (
            'ramdisk = "/r"\nlog-level = "loud"',
            r"sample.toml: log-level: expected one of debug, info, warning, error, found 'loud'",
        ),
        ("ramdisk = ", r"sample.toml: is not TOML"),
        ('ramdisk = "/r"\n[times]\nlost = 20', r"sample.toml: times: lost: expected a time with its unit.*found 20"),
        (
            'ramdisk = "/r"\n[times]\nlost = "20"',
            r"sample.toml: times: lost: expected a time with its unit.*found '20'",
        ),
        ('ramdisk = "/r"\n[times]\nlots = "20s"', r"sample.toml: times: .*unknown field `lots`"),
        ('ramdisk = "/r"\n[times]\nlost = "5s"', r"sample.toml: times: suspect is 6 s, expected less than lost"),
        ('ramdisk = "/r"\ntimes = 3', r"sample.toml: times: expected a table of times, found 3"),
        ("", r"ramdisk: required; give --ramdisk, CHECKPOINT_RAMDISK or the key in the file"),
    ],
)
def test_an_error_names_source_key_expected_and_found(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(Sample, write(tmp_path, text))


def test_a_wrong_variable_and_a_wrong_flag_are_named_as_such() -> None:
    with pytest.raises(ConfigError, match=r"CHECKPOINT_HASH_THREADS: expected a whole number"):
        load(Sample, None, {"CHECKPOINT_HASH_THREADS": "x"})
    with pytest.raises(ConfigError, match=r"--hash-threads: expected a whole number"):
        load(Sample, None, {}, {"hash-threads": "x"})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent.toml: cannot be read: No such file"):
        load(Sample, tmp_path / "absent.toml")


def test_times_come_from_a_table_a_variable_or_a_flag(tmp_path: Path) -> None:
    path = write(tmp_path, 'ramdisk = "/r"\n[times]\nlost = "40s"\nscan = "200ms"')
    assert load(Sample, path).times.lost == 40
    assert load(Sample, path).times.scan == 0.2
    assert load(Sample, path, {"CHECKPOINT_TIMES": "lost=1min, idle=2h"}).times.lost == 60


@pytest.mark.parametrize(
    ("text", "size"),
    [("0B", 0), ("64MiB", 64 << 20), ("1.5 GiB", 3 << 29), ("2GB", 2 * 10**9), ("3KB", 3000), ("1TiB", 1 << 40)],
)
def test_a_size_is_read_with_its_unit(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["64", "", "MiB", "-1MiB", "1 mib", "1e3MB", "0x10B", "1MiB2"])
def test_s55_a_size_without_a_right_unit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a size with its unit"):
        parse_size(text)


def test_a_size_prints_as_a_person_would_write_it() -> None:
    assert [str(Size(size)) for size in (64 << 20, 1 << 30, 1000, 0)] == ["64MiB", "1GiB", "1000B", "0B"]


@pytest.mark.parametrize(("text", "seconds"), [("500ms", 0.5), ("20s", 20), ("1.5min", 90), ("24h", 86400)])
def test_a_time_is_read_with_its_unit(text: str, seconds: float) -> None:
    assert parse_span(text) == seconds


@pytest.mark.parametrize("text", ["20", "20 seconds", "-1s", ""])
def test_a_time_without_a_right_unit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a time with its unit"):
        parse_span(text)


def test_what_a_key_means_is_what_its_docstring_says_over_all_its_lines() -> None:
    found = meanings(NodeConfig)
    assert list(found) == [field.encode_name for field in msgspec.structs.fields(NodeConfig)]
    assert (
        found["ramdisk-size"] == "how much of it may be used, where it is a plain directory without a size of its own."
    )


def test_the_variable_of_a_key_is_upper_case_with_underscores() -> None:
    assert environment_name("ramdisk-size") == "CHECKPOINT_RAMDISK_SIZE"


def test_sockets_lie_below_the_ramdisk_unless_told_otherwise(tmp_path: Path) -> None:
    assert NodeConfig(ramdisk=Path("/r")).endpoint("watcher") == "ipc:///r/.replicator/run/watcher.sock"
    assert NodeConfig(ramdisk=tmp_path, run=Path("/run/c")).endpoint("transfer") == "ipc:///run/c/transfer.sock"


def test_a_socket_path_that_is_too_long_is_refused_with_the_way_out() -> None:
    config = NodeConfig(ramdisk=Path("/" + "r" * 90))
    with pytest.raises(ConfigError, match=r"has 120 bytes, expected at most 107; set `run`"):
        config.endpoint("watcher")


def test_the_health_address_is_taken_apart() -> None:
    assert ServiceConfig(health="0.0.0.0:8080").health_address == ("0.0.0.0", 8080)
    assert ServiceConfig(health="[::1]:0").health_address == ("::1", 0)


@pytest.mark.parametrize("text", ["8080", "localhost:", "localhost:http", "localhost:70000", ""])
def test_a_health_address_without_a_port_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="health: expected address:port"):
        _ = ServiceConfig(health=text).health_address


def test_what_is_advertised_is_what_others_reach() -> None:
    assert ServiceConfig(bind="0.0.0.0", advertise="node-3").reachable == "node-3"
