"""One metrics registry a process, and the HTTP thread that serves `/metrics`, `/healthz` and `/readyz`."""

import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Final

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from checkpoint_replicator import __version__

__all__ = ["Health", "HealthServer", "new_registry"]

CLIENT_TIMEOUT: Final = 2.0
"""Seconds that a connection may last, however slowly its client speaks or listens."""
MAX_CLIENTS: Final = 16
"""Connections at once; what comes beyond them is closed."""
POLL: Final = 0.1
"""Seconds between two looks for connections that last too long."""


def new_registry(service: str, host: str) -> CollectorRegistry:
    """Return a registry with the process' own figures and a `build` gauge that names version, service and host."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    build = Gauge("checkpoint_replicator_build", "Always 1", ["version", "service", "host"], registry=registry)
    build.labels(__version__, service, host).set(1)
    return registry


class Health:
    """What a process says about itself; written by the event loop, read by the HTTP thread.

    Args:
        loop_silent: seconds without a beat after which the process is unhealthy.
        clock: monotonic seconds.
    """

    def __init__(self, loop_silent: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._loop_silent = loop_silent
        self._clock = clock
        self._beat = clock()
        self.waiting: str | None = "starting"
        """Why the service says that it is not ready, or None."""

    def beat(self) -> None:
        """Note that the event loop moves."""
        self._beat = self._clock()

    def set_ready(self, reason: str | None) -> None:
        """Say why the process is not ready; None: it is."""
        self.waiting = reason

    @property
    def not_ready(self) -> str | None:
        """Why the process is not ready, or None."""
        return self.unhealthy or self.waiting

    @property
    def unhealthy(self) -> str | None:
        """Why the process should be restarted, or None."""
        silent = self._clock() - self._beat
        return f"the event loop has not moved for {silent:.0f} s" if silent > self._loop_silent else None


class _Server(ThreadingHTTPServer):
    """One thread a connection, so that a slow client keeps no probe waiting; each one bounded in time."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._since: dict[socket.socket, float] = {}
        super().__init__(address, handler)

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        """Take a connection, unless there are too many."""
        if isinstance(request, tuple) or len(self._since) >= MAX_CLIENTS:
            self.shutdown_request(request)
            return
        self._since[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        """End a connection."""
        if not isinstance(request, tuple):
            self._since.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Cut what lasts too long."""
        self.cut(CLIENT_TIMEOUT)

    def cut(self, age: float) -> None:
        """Cut connections that last so many seconds: their threads find them ended."""
        for request, since in list(self._since.items()):
            if time.monotonic() >= since + age:
                with suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def server_bind(self) -> None:
        """Bind without asking DNS for the machine's full name, which can take long and is of no use here."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def handle_error(self, request: object, client_address: object) -> None:
        """Let a client that hangs up be no event: the log has one JSON object a line, and no traceback."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _IPv6Server(_Server):
    address_family = socket.AF_INET6


class HealthServer:
    """Serves a registry and a Health over HTTP from a thread of its own.

    Raises:
        OSError: the address cannot be bound.
    """

    def __init__(self, registry: CollectorRegistry, health: Health, address: tuple[str, int]) -> None:
        server = _IPv6Server if ":" in address[0] else _Server
        self._server = server(address, _handler(registry, health))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL,), name="health", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it listens, with the port that was chosen."""
        host, port = self._server.server_address[:2]
        return f"http://[{host!s}]:{port}" if ":" in str(host) else f"http://{host!s}:{port}"

    def close(self) -> None:
        """Stop serving and free the port."""
        self._server.shutdown()
        self._server.cut(0)
        self._thread.join(CLIENT_TIMEOUT + 1)
        self._server.server_close()


def _handler(registry: CollectorRegistry, health: Health) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = CLIENT_TIMEOUT

        def do_GET(self) -> None:
            match self.path.partition("?")[0]:
                case "/metrics":
                    self._answer(HTTPStatus.OK, generate_latest(registry), CONTENT_TYPE_LATEST)
                case "/healthz":
                    self._say(health.unhealthy)
                case "/readyz":
                    self._say(health.not_ready)
                case _:
                    self._answer(HTTPStatus.NOT_FOUND, b"try /metrics, /healthz or /readyz\n")

        def _say(self, fault: str | None) -> None:
            status = HTTPStatus.OK if fault is None else HTTPStatus.SERVICE_UNAVAILABLE
            self._answer(status, f"{fault or 'ok'}\n".encode())

        def _answer(self, status: HTTPStatus, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
            with suppress(ConnectionError):  # a probe that did not wait for the answer
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
            """Probes come every few seconds and are no events."""

    return Handler
