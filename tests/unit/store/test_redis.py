import re
from importlib import resources
from pathlib import Path

import pytest

from checkpoint_replicator.errors import ConfigError, NoServerError
from checkpoint_replicator.store.redis import RedisManifestStore

SCRIPTS = sorted(
    path.name
    for path in (resources.files("checkpoint_replicator.store") / "scripts").iterdir()
    if path.name.endswith(".lua") and path.name != "prelude.lua"
)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://localhost", "localhost:6379"),
        ("redis://10.0.0.1:7000/2", "10.0.0.1:7000"),
        ("rediss://user:secret@redis.example:6380", "redis.example:6380"),
        ("unix:///run/redis.sock", "/run/redis.sock"),
    ],
)
def test_the_address_in_errors_holds_no_password(url: str, address: str) -> None:
    assert RedisManifestStore(url).address == address


@pytest.mark.parametrize("url", ["", "localhost:6379", "http://localhost", "redis://host:port"])
def test_an_url_of_something_else_is_a_config_error(url: str) -> None:
    with pytest.raises(ConfigError, match="redis: expected redis://host:port/db, found"):
        RedisManifestStore(url)


async def test_a_socket_that_nobody_listens_at_is_told_as_such(tmp_path: Path) -> None:
    store = RedisManifestStore(f"unix://{tmp_path}/redis.sock", retries=0)
    with pytest.raises(NoServerError, match=re.escape(f"{tmp_path}/redis.sock")):
        await store.time()
    await store.close()


def test_a_bad_url_is_told_without_its_password() -> None:
    with pytest.raises(ConfigError) as caught:
        RedisManifestStore("http://me:secret@host")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_begins_with_its_key_schema(name: str) -> None:
    text = (resources.files("checkpoint_replicator.store") / "scripts" / name).read_text()
    header = text.split("\n\n")[0].splitlines()
    assert all(line.startswith("-- ") for line in header)
    assert any(line.startswith("-- KEYS[1]") and "ckpt:" in line for line in header)
