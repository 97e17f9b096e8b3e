from pathlib import Path

from click.testing import CliRunner

from checkpoint_replicator import __version__
from checkpoint_uploader.__main__ import main


def test_the_command_has_a_flag_for_each_key_and_checks_a_configuration(tmp_path: Path) -> None:
    runner = CliRunner()
    assert __version__ in runner.invoke(main, ["--version"]).output
    checked = runner.invoke(main, ["--check", f"--ramdisk={tmp_path}", "--backup=file:///b", "--calls=7"])
    assert checked.exit_code == 0
    assert "backup = file:///b" in checked.output
    assert "calls = 7" in checked.output


def test_a_missing_ramdisk_is_a_wrong_configuration() -> None:
    wrong = CliRunner().invoke(main, ["--check"], env={"CHECKPOINT_RAMDISK": ""})
    assert wrong.exit_code == 78
    assert "ramdisk: required" in wrong.output
