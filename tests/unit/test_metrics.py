import http.client
import socket
import struct
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from checkpoint_replicator.metrics import Health, HealthServer, new_registry
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
    assert get(server, "/")[0] == 404  # one thread serves: the other client was dealt with
    assert "Traceback" not in capsys.readouterr().err


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
