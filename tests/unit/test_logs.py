import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from checkpoint_replicator.logs import set_up


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    handlers, level = logging.getLogger().handlers[:], logging.getLogger().level
    yield
    logging.getLogger().handlers[:] = handlers
    logging.getLogger().setLevel(level)
    structlog.reset_defaults()


def test_an_event_is_one_json_line_with_its_fields() -> None:
    stream = io.StringIO()
    set_up("info", "json", stream, service="watcher", node="n1").info("replica_committed", step=3)
    line = json.loads(stream.getvalue())
    assert line.pop("timestamp").endswith("Z")
    assert line == {"event": "replica_committed", "step": 3, "service": "watcher", "node": "n1", "level": "info"}


def test_events_below_the_level_are_not_written() -> None:
    stream = io.StringIO()
    log = set_up("warning", "json", stream)
    log.info("quiet")
    log.warning("loud")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["loud"]


def test_records_of_the_standard_library_take_the_same_way() -> None:
    stream = io.StringIO()
    set_up("info", "json", stream, service="watcher")
    logging.getLogger("redis").warning("gone: %s", "away")
    line = json.loads(stream.getvalue())
    assert (line["event"], line["logger"], line["service"]) == ("gone: away", "redis", "watcher")


def test_an_exception_is_one_line_too() -> None:
    stream = io.StringIO()
    log = set_up("info", "json", stream)
    try:
        raise ValueError("here")
    except ValueError:
        log.exception("service_failed")
    assert "ValueError: here" in json.loads(stream.getvalue())["exception"]


def test_what_is_no_json_is_written_as_text() -> None:
    stream = io.StringIO()
    set_up("info", "json", stream).info("found", path=io)
    assert "module 'io'" in json.loads(stream.getvalue())["path"]


def test_the_console_style_is_for_people() -> None:
    stream = io.StringIO()
    set_up("info", "console", stream).info("replica_committed", step=3)
    assert "replica_committed" in stream.getvalue()
    assert "step=3" in stream.getvalue()
