import os
import random
import sys
import tomllib
from pathlib import Path

import pytest

from checkpoint_replicator.cluster import Cluster, Setting, host_name, node_services, toml_text
from checkpoint_replicator.errors import ConfigError


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "t"))
    return tmp_path / "a cluster"


def cluster_run(directory: Path, nodes: int) -> Path:
    return Cluster(directory=directory, nodes=nodes).run


def config_of(cluster: Cluster, name: str) -> dict[str, object]:
    return tomllib.loads((cluster.directory / "config" / f"{name}.toml").read_text())


def test_a_cluster_is_redis_coordinators_and_three_services_a_node(here: Path) -> None:
    redis, programs = Cluster(directory=here, nodes=2).lay_out(random.Random(1))
    assert [program.name for program in programs] == [
        "redis",
        "coordinator-0",
        "coordinator-1",
        *node_services(0),
        *node_services(1),
    ]
    assert redis.startswith("redis://127.0.0.1:")
    assert [program.tier for program in programs] == [0, 1, 1] + 6 * [2]
    watcher = programs[3]
    assert watcher.command[:3] == (sys.executable, "-m", "checkpoint_watcher")
    assert watcher.health == cluster_run(here, 2) / "n0" / "watcher.health"
    assert watcher.log == here / "logs" / "node-0-watcher.log"


def test_each_service_gets_what_its_configuration_knows(here: Path) -> None:
    cluster = Cluster(
        directory=here, nodes=1, redis="redis://r:1", backup="file:///b", ramdisk_size="64MiB", coordinators=1
    )
    redis, programs = cluster.lay_out(random.Random(1))
    assert redis == "redis://r:1"
    assert [program.name for program in programs] == ["coordinator-0", *node_services(0)]
    common = {"redis": "redis://r:1", "log-format": "json"}
    node = {**common, "host": "node-0", "run": str(cluster.run / "n0"), "ramdisk": str(here / "node-0")}
    assert {program.name: config_of(cluster, program.name) for program in programs} == {
        "coordinator-0": {
            **common,
            "host": "coordinator-0",
            "run": str(cluster.run / "c0"),
            "backup": "file:///b",
        },
        "node-0-watcher": {**node, "ramdisk-size": "64MiB", "backup": "file:///b"},
        "node-0-transfer": {**node, "ramdisk-size": "64MiB"},
        "node-0-uploader": {**node, "backup": "file:///b"},
    }


def test_the_inputs_of_every_service_are_logged_where_that_is_asked_for(here: Path) -> None:
    cluster = Cluster(directory=here, nodes=1, redis="redis://r:1", coordinators=1, input_log=True)
    cluster.lay_out(random.Random(1))
    for name in ("coordinator-0", *node_services(0)):
        assert config_of(cluster, name)["input-log"] == str(here / "logs" / f"{name}.inputs")


def test_settings_of_a_service_win(here: Path) -> None:
    cluster = Cluster(directory=here, nodes=1, redis="redis://r:1", settings={"watcher": {"log-format": "console"}})
    cluster.lay_out(random.Random(1))
    assert config_of(cluster, "node-0-watcher")["log-format"] == "console"
    assert config_of(cluster, "node-0-transfer")["log-format"] == "json"


def test_the_run_directory_is_short_private_and_the_same_each_time(here: Path) -> None:
    cluster = Cluster(directory=here, nodes=1)
    cluster.lay_out(random.Random(1))
    cluster.lay_out(random.Random(2))
    assert cluster.run.stat().st_mode & 0o777 == 0o700
    assert Cluster(directory=here, nodes=1).run == cluster.run
    assert Cluster(directory=here / "other", nodes=1).run != cluster.run


def test_a_long_temporary_directory_is_not_used_for_sockets(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/" + "x" * 100)
    assert Cluster(directory=here, nodes=1).run.parent == Path("/tmp")  # noqa: S108


def test_a_run_directory_that_others_can_enter_is_refused(here: Path) -> None:
    cluster = Cluster(directory=here, nodes=1)
    cluster.run.mkdir(parents=True)
    cluster.run.chmod(0o755)
    with pytest.raises(ConfigError, match=f"with mode 0700, found mode 0755 of uid {os.getuid()}"):
        cluster.lay_out(random.Random(1))


def test_settings_survive_toml() -> None:
    settings: dict[str, Setting] = {
        "a-b": 'quote " back\\slash ü\n',
        "c": True,
        "d": 1.5,
        "e": 3,
        "f": {"lost": "2s", "stuck": "1s"},
    }
    assert tomllib.loads(toml_text(settings)) == settings


def test_hosts_are_named_by_number() -> None:
    assert host_name(3) == "node-3"
    assert node_services(3) == ("node-3-watcher", "node-3-transfer", "node-3-uploader")
