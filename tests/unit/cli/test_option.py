"""What commands share."""

import click
import pytest
from click.testing import CliRunner

from checkpoint_replicator.cli.option import Seconds, known_job, redis_option
from checkpoint_replicator.errors import NoJobError, NoServerError, UnknownJobError, UnreachableError
from checkpoint_replicator.ids import Job
from support.memory_store import MemoryManifestStore, StoreModel


async def test_a_job_is_found_by_its_name_or_the_known_ones_are_named() -> None:
    model = StoreModel(lambda: 1000.0)
    model.add_job(Job("llama"))
    store = MemoryManifestStore(model)
    assert await known_job(store, "llama") == Job("llama")
    with pytest.raises(UnknownJobError, match="no job gemma; known: llama"):
        await known_job(store, "gemma")


async def test_where_redis_knows_no_job_at_all_it_is_said_that_one_shows_soon() -> None:
    with pytest.raises(NoJobError) as caught:
        await known_job(MemoryManifestStore(StoreModel(lambda: 1000.0)), "llama")
    assert str(caught.value) == (
        "no job llama; Redis knows none at all: a job shows within seconds after Redis was emptied or its first "
        "trainer came"
    )
    assert caught.value.exit_code == 75


@pytest.mark.parametrize("text", ["nan", "-nan", "inf", "-inf", "4", "ten"])
def test_seconds_are_a_number_within_their_bounds(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Seconds(min=5).convert(text, None, None)
    assert Seconds(min=5).convert("7.5", None, None) == 7.5


async def test_a_name_that_no_job_can_have_is_refused_before_redis_is_asked() -> None:
    model = StoreModel(lambda: 1000.0)
    model.down = "connection refused"
    with pytest.raises(UnknownJobError, match="--job"):
        await known_job(MemoryManifestStore(model), "../evil")


DEFAULT = "redis://127.0.0.1:6379/0"
ELSEWHERE = "redis://elsewhere:1/0"


@click.command
@redis_option
def ask(redis: str) -> None:
    if redis == DEFAULT:
        raise NoServerError(f"{redis} does not answer")
    raise NoServerError(f"{redis} is silent")


@click.command
@redis_option
def order(redis: str) -> None:
    raise UnreachableError(f"the coordinator found at {redis} does not answer")


def test_who_chose_no_server_and_found_none_is_told_how_to_choose_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHECKPOINT_REDIS", raising=False)
    told = f"{DEFAULT} does not answer; --redis or CHECKPOINT_REDIS names another server"
    assert str(CliRunner().invoke(ask).exception) == told


def test_who_chose_a_server_or_reached_it_is_told_no_more_than_what_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(CliRunner().invoke(ask, ["--redis", ELSEWHERE]).exception) == f"{ELSEWHERE} is silent"
    assert str(CliRunner().invoke(ask, env={"CHECKPOINT_REDIS": ELSEWHERE}).exception) == f"{ELSEWHERE} is silent"
    monkeypatch.delenv("CHECKPOINT_REDIS", raising=False)
    assert str(CliRunner().invoke(order).exception) == f"the coordinator found at {DEFAULT} does not answer"
