"""`docs/storage.md` against a run: a node is lost and comes back, and then Redis holds what the document tells.

`RECORD=1 make test ARGS=tests/system/test_storage.py` writes the run's answers into the document's examples; it judges
the examples as they were before.
"""

import asyncio
import json
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio
from click.testing import CliRunner

from checkpoint_replicator.cli import main
from support.cluster import LiveCluster, live_cluster
from support.examples import Example, examples, form, renamed, rewritten
from support.keys import DOCUMENT, read, undocumented, unseen
from support.memory_store import Value
from support.redis import absent

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]

TEXT = DOCUMENT.read_text()
EXAMPLES = examples(TEXT)
JOB = "llama-8b"
LOST = 1
BY_PEOPLE = {f"ckpt:{{<job>}}:{name}" for name in ("forced", "hold", "branch", "forgotten", "forgetting", "wishes")}
"""These stand there only when people order something."""
BY_THE_LONELY = {"ckpt:{<job>}:help:<host>"}
"""Only a node that is cut off from the coordinator writes these."""
STAGED = BY_PEOPLE | BY_THE_LONELY
ROOT_URL = re.compile(r"file:///[\w./-]+")
BACKUP = re.compile(r"\d{4}-\d\d-\d\d_\d\d-\d\d")


class Run(msgspec.Struct, frozen=True):
    """What a run left: all of Redis, and the server, which still runs."""

    url: str
    contents: dict[str, Value]

    @property
    def backup(self) -> str:
        """The first backup that was verified."""
        backups = self.contents[f"ckpt:{{{JOB}}}:backups"]
        assert isinstance(backups, dict)
        return str(min(backups, key=lambda name: (backups[name], name)))

    def command(self, example: Example) -> str:
        """Return an example's command with this run's names."""
        return renamed(example.command, dict.fromkeys(BACKUP.findall(example.command), self.backup))

    def answer(self, command: str) -> str:
        """Return what `checkpoint-replicator redis` prints for a command."""
        return self.tell(*command.split())

    def tell(self, *words: str) -> str:
        """The same for a command in words."""
        done = CliRunner().invoke(main, ["redis", "--no-raw", "-u", self.url, *words])
        assert done.exit_code == 0, done.output
        return done.stdout


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def run() -> AsyncIterator[Run]:
    async with live_cluster(2, backup=True) as cluster:
        await _play(cluster)
        given = Run(cluster.redis, await _settled(cluster))
        if os.environ.get("RECORD"):
            _record(given)
        yield given


def _record(run: Run) -> None:
    def ask(example: Example) -> tuple[str, str]:
        command = run.command(example)
        answer = ROOT_URL.sub("file:///var/backup", run.answer(command))
        return command, example.answer if example.key in STAGED else answer

    DOCUMENT.write_text(rewritten(TEXT, ask))


async def _play(cluster: LiveCluster) -> None:
    """Save and back up, lose a node amid a save, restore, save and back up again."""
    team = cluster.team(JOB, backup_minutes=0.01)
    assert await team.restore() is None
    await team.save(1, 2, 3)
    await cluster.committed(JOB, 3)
    await cluster.backed_up(JOB, 3)
    await cluster.kill_node(LOST)
    cluster.wipe(LOST)
    await asyncio.to_thread(team.trainers[0].save, 4)
    await _until(cluster, f"ckpt:{{{JOB}}}:step:1.4")
    await cluster.start_node(LOST)
    team = cluster.team(JOB, backup_minutes=0.01)
    assert await team.restore() == 3
    await team.save(4)
    await cluster.committed(JOB, 4)
    await cluster.backed_up(JOB, 4)


async def _until(cluster: LiveCluster, key: str) -> None:
    async with asyncio.timeout(20):
        while key not in await asyncio.to_thread(read, cluster.redis):
            await asyncio.sleep(0.1)


async def _settled(cluster: LiveCluster) -> dict[str, Value]:
    """Wait until the newest save stands everywhere, and is the only one, and nothing is ordered any more."""
    orders, keep = f"ckpt:{{{JOB}}}:orders", f"ckpt:{{{JOB}}}:keep"
    async with asyncio.timeout(30):
        while True:
            contents = await asyncio.to_thread(read, cluster.redis)
            held = [value for key, value in contents.items() if ":inventory:" in key]
            alive = contents.get(f"ckpt:{{{JOB}}}:alive", {})
            quiet = '"backup"' not in str(contents[orders]) and '"replicate"' not in str(contents[orders])
            whole = len(held) == 2 and all(str(value).count('"holds"') == 2 for value in held)
            if quiet and whole and "2.4" in str(contents[keep]) and str(alive).count('"ok"') == 2:
                return contents
            await asyncio.sleep(0.2)


async def test_every_key_type_and_field_of_the_run_is_documented(run: Run) -> None:
    assert undocumented(run.contents) == []


async def test_everything_that_is_documented_occurs_in_the_run(run: Run) -> None:
    assert set(unseen(run.contents)) == STAGED


@pytest.mark.parametrize("number", range(len(EXAMPLES)), ids=[example.command for example in EXAMPLES])
async def test_an_example_is_what_the_run_prints(run: Run, number: int) -> None:
    example = EXAMPLES[number]
    command = run.command(example)
    if example.key in STAGED:
        verb, key = command.split()[:2]
        if verb == "GET":
            run.tell("SET", key, json.loads(example.answer))
        else:
            run.tell("HSET", key, *map(json.loads, re.findall(r'\) (".*")', example.answer)))
    try:
        answer = run.answer(command)
    finally:
        if example.key in STAGED:
            run.answer(f"DEL {key}")
    assert form(command, answer) == form(example.command, example.answer)


async def test_redis_cli_prints_the_examples_too(run: Run) -> None:
    cli = shutil.which("redis-cli")
    if cli is None:
        absent("redis-cli (Debian package redis-tools)")
        raise AssertionError
    for example in EXAMPLES:
        if example.key not in STAGED:
            command = run.command(example)
            words = (cli, "--no-raw", "-u", run.url, *command.split())
            done = await asyncio.to_thread(subprocess.run, words, check=True, capture_output=True, text=True)
            assert form(command, done.stdout) == form(example.command, example.answer)
