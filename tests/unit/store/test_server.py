import pytest

from checkpoint_replicator.store.server import CLIENTS, HEADROOM, server_problems

FIT = {
    "redis_version": "7.2.4",
    "maxmemory": "0",
    "maxmemory_policy": "noeviction",
    "used_memory": "1000000",
    "maxclients": "10000",
    "connected_clients": "3",
    "role": "master",
    "loading": "0",
}


def test_a_fit_server_has_no_problem() -> None:
    assert server_problems(FIT) == ()


def test_what_the_server_does_not_tell_is_no_problem() -> None:
    assert server_problems({}) == ()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"redis_version": "6.0.16"}, "redis_version: expected at least 6.2, found 6.0.16"),
        ({"maxmemory_policy": "volatile-lru"}, "maxmemory-policy: expected noeviction, found volatile-lru"),
        ({"maxmemory": str(HEADROOM)}, f"maxmemory: expected {HEADROOM} bytes free, found {HEADROOM - 1_000_000} of"),
        ({"maxmemory": "5"}, f"maxmemory: expected {HEADROOM} bytes free, found 0 of 5"),
        ({"connected_clients": "9999"}, f"maxclients: expected {CLIENTS} connections free, found 1 of 10000"),
        ({"role": "slave"}, "role: expected master, found slave"),
        ({"loading": "1"}, "loading: the server is still reading"),
    ],
)
def test_each_problem_says_what_was_expected_and_what_was_found(change: dict[str, str], problem: str) -> None:
    [found] = server_problems(FIT | change)
    assert found.startswith(problem)


def test_all_problems_are_told_at_once() -> None:
    assert len(server_problems(FIT | {"role": "slave", "maxmemory_policy": "allkeys-lru"})) == 2
