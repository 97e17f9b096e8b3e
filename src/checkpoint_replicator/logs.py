"""Logging: structlog for our own events, the standard library's records routed through the same renderer.

An event is snake_case and past tense, its values are fields: `log.info("replica_committed", step=3, peer="node-1")`.
"""

import logging
import sys
from typing import Any, Final, Literal, TextIO

import structlog
from structlog.typing import FilteringBoundLogger, Processor

__all__ = ["Log", "set_up"]

Log = FilteringBoundLogger

_LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def set_up(
    level: Literal["debug", "info", "warning", "error"],
    style: Literal["json", "console"],
    stream: TextIO | None = None,
    **fields: str,
) -> Log:
    """Configure logging for this process and return its logger; the fields stand in every line (stderr unless told)."""
    stream = stream or sys.stderr
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: Processor
    if style == "json":
        shared.append(structlog.processors.format_exc_info)
        renderer = structlog.processors.JSONRenderer(default=str)
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=stream.isatty())
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name, _bind(fields)],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(_LEVELS[level], logging.INFO))  # libraries' debug lines are theirs
    log: Log = structlog.get_logger(**fields)
    return log


def _bind(fields: dict[str, str]) -> Processor:
    def add(_logger: object, _method: str, event: Any) -> Any:
        event.update(fields)
        return event

    return add
