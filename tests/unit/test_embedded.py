import random
import socket
import subprocess
from pathlib import Path

import pytest

from checkpoint_replicator import embedded
from checkpoint_replicator.embedded import free_ports, redis_command
from checkpoint_replicator.errors import ConfigError


def test_free_ports_are_different_and_can_be_bound() -> None:
    ports = free_ports(20, random.Random(1))
    assert len(set(ports)) == 20
    for port in ports:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))


def test_a_port_in_use_is_passed_over() -> None:
    [port] = free_ports(1, random.Random(1))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        assert free_ports(1, random.Random(1)) != (port,)


def test_too_many_ports_are_an_error_with_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "HIGH", embedded.LOW + 2)
    with pytest.raises(ConfigError, match=r"expected 3 free TCP ports on 127.0.0.1 from 20000 to 20002, found [012]"):
        free_ports(3, random.Random(1))


def test_the_embedded_server_is_a_program_that_runs_here(tmp_path: Path) -> None:
    command = redis_command(20_000, tmp_path)
    done = subprocess.run([command[0], "--version"], capture_output=True, check=True)
    assert b"v=" in done.stdout
    assert command[1:].index("noeviction") == command[1:].index("--maxmemory-policy") + 1
