"""Fixtures that every test may ask for, and Hypothesis' profiles.

`fast` is what runs while one writes and in CI; `HYPOTHESIS_PROFILE=deep` looks longer.
"""

import os

import pytest
from hypothesis import HealthCheck, settings

from support.redis import redis_server, redis_url

__all__ = ["redis_server", "redis_url"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-crashes", action="store_true", help="tests/crash: all points and sequences, not a few")
    parser.addoption("--crash", metavar="NAME", help="tests/crash: the points and sequences whose name holds this")


settings.register_profile(
    "fast",
    max_examples=50,
    deadline=None,  # a busy machine is no defect
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),  # a red build is red again
    print_blob=True,
)
settings.register_profile("deep", settings.get_profile("fast"), max_examples=2000, derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))
