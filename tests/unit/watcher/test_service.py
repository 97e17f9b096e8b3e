"""The shell; what it does with real processes is in tests/integration/test_watcher.py."""

from pathlib import Path

from click.testing import CliRunner

from checkpoint_watcher.__main__ import main


def test_a_ramdisk_that_is_no_directory_is_a_configuration_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["--ramdisk", str(tmp_path / "absent"), "--run", str(tmp_path)])
    assert result.exit_code == 78


def test_check_prints_the_configuration(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["--check", "--ramdisk", str(tmp_path), "--ramdisk-size", "64MiB"])
    assert result.exit_code == 0
    assert "ramdisk-size = 64MiB" in result.output
    assert "hash-threads = 4" in result.output


def test_unknown_keys_are_refused_by_name(tmp_path: Path) -> None:
    config = tmp_path / "watcher.toml"
    config.write_text(f'ramdisk = "{tmp_path}"\nhash-thread = 4\n')
    result = CliRunner().invoke(main, ["--check", "--config", str(config)])
    assert result.exit_code == 78
    assert "hash-thread" in result.output
