import http.client
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from urllib.parse import urlsplit

import pytest

from checkpoint_replicator import metrics
from checkpoint_replicator.metrics import MAX_CLIENTS, Health, HealthServer, new_registry
from support.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def health(clock: ManualClock) -> Health:
    return Health(30, clock)


@pytest.fixture
def server(health: Health) -> Iterator[HealthServer]:
    server = HealthServer(new_registry("watcher", "node-1"), health, ("127.0.0.1", 0))
    yield server
    server.close()


def get(server: HealthServer, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_metrics_name_version_service_and_host(server: HealthServer) -> None:
    status, text = get(server, "/metrics")
    assert status == 200
    assert 'checkpoint_replicator_build{host="node-1",service="watcher",version=' in text
    assert "process_resident_memory_bytes" in text


def test_a_process_is_not_ready_until_it_says_so(server: HealthServer, health: Health) -> None:
    assert get(server, "/readyz") == (503, "starting\n")
    health.set_ready(None)
    assert get(server, "/readyz") == (200, "ok\n")
    health.set_ready("Redis does not answer")
    assert get(server, "/readyz") == (503, "Redis does not answer\n")


def test_a_stuck_event_loop_is_unhealthy_and_not_ready(
    server: HealthServer, health: Health, clock: ManualClock
) -> None:
    health.set_ready(None)
    clock.advance(31)
    assert get(server, "/healthz") == (503, "the event loop has not moved for 31 s\n")
    assert get(server, "/readyz")[0] == 503
    health.beat()
    assert get(server, "/healthz") == (200, "ok\n")


def test_any_other_path_is_not_found(server: HealthServer) -> None:
    assert get(server, "/")[0] == 404


def test_a_client_that_hangs_up_leaves_no_traceback(server: HealthServer, capsys: pytest.CaptureFixture[str]) -> None:
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=10) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing resets it
        client.sendall(b"GET")
    assert get(server, "/")[0] == 404
    assert "Traceback" not in capsys.readouterr().err


@contextmanager
def silent_clients(server: HealthServer, count: int) -> Iterator[list[socket.socket]]:
    address = urlsplit(server.url)
    with ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection((address.hostname, address.port), timeout=10))
            for _ in range(count)
        ]
        for client in clients:
            client.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        yield clients


@pytest.fixture
def patient(health: Health, monkeypatch: pytest.MonkeyPatch) -> Iterator[HealthServer]:
    """A server that cuts nobody while a test runs."""
    monkeypatch.setattr(metrics, "CLIENT_TIMEOUT", 60.0)
    server = HealthServer(new_registry("watcher", "node-1"), health, ("127.0.0.1", 0))
    yield server
    server.close()


def test_clients_that_say_nothing_keep_no_probe_waiting(health: Health, patient: HealthServer) -> None:
    with silent_clients(patient, MAX_CLIENTS - 1):
        health.set_ready(None)
        assert get(patient, "/readyz") == (200, "ok\n")


def test_more_clients_than_that_are_turned_away_and_the_next_is_served(patient: HealthServer) -> None:
    with silent_clients(patient, MAX_CLIENTS), pytest.raises(ConnectionError):
        get(patient, "/healthz")
    assert eventually_served(patient)


def test_a_client_that_drips_is_cut(monkeypatch: pytest.MonkeyPatch, health: Health) -> None:
    monkeypatch.setattr(metrics, "CLIENT_TIMEOUT", 0.2)
    server = HealthServer(new_registry("a", "h"), health, ("127.0.0.1", 0))
    with silent_clients(server, 1) as (client,):
        client.settimeout(0.01)
        drips = 0
        while drip(client):
            drips += 1
    assert drips
    server.close()


def drip(client: socket.socket) -> bool:
    """Send one byte; whether the server still listens."""
    try:
        client.sendall(b"x")
        return bool(client.recv(1))
    except TimeoutError:
        return True
    except ConnectionError:
        return False


def eventually_served(server: HealthServer) -> bool:
    """Whether it answers as soon as the others' threads have ended."""
    for _ in range(10_000):
        with suppress(ConnectionError):
            return get(server, "/healthz")[0] == 200
    return False


def test_two_registries_do_not_share_anything() -> None:
    assert new_registry("a", "h") is not new_registry("a", "h")


def test_the_port_is_free_after_closing(health: Health) -> None:
    registry = new_registry("a", "h")
    first = HealthServer(registry, health, ("127.0.0.1", 0))
    port = urlsplit(first.url).port
    first.close()
    assert port is not None
    HealthServer(registry, health, ("127.0.0.1", port)).close()


def test_an_ipv6_address_is_served_where_there_is_one(health: Health) -> None:
    try:
        server = HealthServer(new_registry("a", "h"), health, ("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    assert server.url.startswith("http://[::1]:")
    assert get(server, "/healthz")[0] == 200
    server.close()
