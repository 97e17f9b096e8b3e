"""Fixtures that every test may ask for."""

from support.redis import redis_server, redis_url

__all__ = ["redis_server", "redis_url"]
