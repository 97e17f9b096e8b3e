"""Is this server fit to hold the manifest? Judged from what its INFO says."""

from collections.abc import Mapping
from typing import Final

__all__ = ["CLIENTS", "HEADROOM", "OLDEST", "server_problems"]

OLDEST: Final = (6, 2)
"""Oldest Redis that has all commands that we use."""
HEADROOM: Final = 64 << 20
"""Bytes that must be free below `maxmemory`; a job of a thousand nodes needs some 20 MiB."""
CLIENTS: Final = 64
"""Connections that must be free; nodes connect only for moments, but all at once after an outage."""


def server_problems(info: Mapping[str, str]) -> tuple[str, ...]:
    """Say what is wrong, each with what was expected and what was found; fields that are missing are passed over."""
    problems: list[str] = []
    version = info.get("redis_version", "")
    parts = tuple(int(part) if part.isdecimal() else 0 for part in version.split(".")[:2])
    if version and parts < OLDEST:
        problems.append(f"redis_version: expected at least {OLDEST[0]}.{OLDEST[1]}, found {version}")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        problems.append(f"maxmemory-policy: expected noeviction, found {policy}: keys would vanish when memory is full")
    limit, used = _number(info, "maxmemory"), _number(info, "used_memory")
    if limit and used is not None and limit - used < HEADROOM:
        problems.append(f"maxmemory: expected {HEADROOM} bytes free, found {max(0, limit - used)} of {limit}")
    most, clients = _number(info, "maxclients"), _number(info, "connected_clients")
    if most is not None and clients is not None and most - clients < CLIENTS:
        problems.append(f"maxclients: expected {CLIENTS} connections free, found {max(0, most - clients)} of {most}")
    if info.get("role", "master") != "master":
        problems.append(f"role: expected master, found {info['role']}: writes would be refused")
    if info.get("loading", "0") != "0":
        problems.append("loading: the server is still reading its data from disk")
    return tuple(problems)


def _number(info: Mapping[str, str], name: str) -> int | None:
    text = info.get(name, "")
    return int(text) if text.isdecimal() else None
