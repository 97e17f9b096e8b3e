"""What really lies on ramdisks, in the backup store and in Redis, read by brute force and with nobody's help."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import redis

from crash.content import Ledger, Saved

__all__ = ["Backup", "Disk", "Index", "Line", "read_backups", "read_disk", "read_index", "read_jobs"]

Line = tuple[int, int]
"""Epoch and step: a save."""

NAME = re.compile(r"(?P<job>.+)-s(?P<step>\d+)-n(?P<rank>\d+)-w(?P<worker>\d+)")


class Named(msgspec.Struct, frozen=True):
    """A sidecar."""

    save: Line
    rank: int
    address: str
    committed: bool


class Disk(msgspec.Struct):
    """One ramdisk.

    Attributes:
        named: by path below `saves/`.
        metas: public name to address.
        contents: address to whose bytes these are; None: bytes that nobody saved.
        fence: obeyed stamp and newest committed save, as its `fence.json` tells.
        left: names below `claims`, `partial`, `trash`, and public saves that nobody took yet.
        texts: `replicator.failed` and `replicator.errors` that stand there.
    """

    named: Mapping[str, Named]
    metas: Mapping[str, str]
    contents: Mapping[str, Saved | None]
    obeyed: tuple[int, ...]
    committed: Line | None
    left: list[str]
    texts: Mapping[str, str]

    def holds(self, save: Line, rank: int) -> Saved | None:
        """Say whose bytes stand here under the name of this shard."""
        for one in self.named.values():
            if (one.save, one.rank) == (save, rank):
                return self.contents.get(one.address)
        return None


class Backup(msgspec.Struct):
    """One directory of the backup store.

    Attributes:
        order: which save ORDER.json reserves the name for.
        state: of MANIFEST.json.
        metas: rank to address.
        contents: address to whose bytes.
        lacking: objects of the manifest that are not there with their size.
    """

    name: str
    order: Line | None
    state: str
    metas: Mapping[int, str]
    contents: Mapping[str, Saved | None]
    lacking: list[str]

    def holds(self, rank: int) -> Saved | None:
        """Say whose bytes the `.meta` of this rank names."""
        return self.contents.get(self.metas.get(rank, ""))


class Index(msgspec.Struct):
    """What Redis says; each a claim to be checked.

    Attributes:
        backups: states by name.
        troubles: by name of a backup, why it waits or is given up.
        sessions: states by rank.
    """

    fence: tuple[int, ...]
    epoch: Mapping[str, str]
    steps: Mapping[Line, Mapping[str, str]]
    upto: Line | None
    keep: frozenset[Line]
    drop: frozenset[Line]
    inventory: Mapping[int, frozenset[str]]
    last_backup: str
    lease: Mapping[str, Any]
    backups: Mapping[str, str] = {}
    troubles: Mapping[str, str] = {}
    sessions: Mapping[int, str] = {}


def read_disk(root: Path, ledger: Ledger) -> Disk:
    """Look at every file of a ramdisk."""
    own = root / ".replicator"
    fence = _json(own / "fence.json").get("jobs", {}).get("job", {})
    left = [
        f"{part}/{path.relative_to(own / part)}" for part in ("claims", "partial", "trash") for path in _in(own / part)
    ]
    left += [path.name for path in root.iterdir() if path.name.isdecimal() and not path.is_symlink()]
    return Disk(
        named={str(path.relative_to(own)): _named(path) for path in sorted(own.glob("saves/*/job-s*.json"))},
        metas={path.stem: path.read_text().strip() for path in root.glob("*.meta")},
        contents={path.stem: ledger.whose(path) for path in root.glob("*.data")},
        obeyed=_stamp(fence.get("obeyed")),
        committed=_line(fence.get("newest_committed")),
        left=left,
        texts={
            name: path.read_text()
            for name in ("replicator.failed", "replicator.errors")
            if (path := root / name).exists()
        },
    )


def read_backups(root: Path, ledger: Ledger) -> list[Backup]:
    """Look at every object of the backup store."""
    return [_backup(path, ledger) for path in sorted((root / "job").glob("*/"))]


def read_index(url: str) -> Index:
    """Read the job's keys."""
    with redis.Redis.from_url(url, decode_responses=True) as client:
        steps, inventory, backups, troubles, sessions = {}, {}, {}, {}, {}
        prefix = "ckpt:{job}:"
        for key in client.scan_iter(f"{prefix}*", count=1000):
            kind, _, name = key.removeprefix(prefix).partition(":")
            if kind == "step":
                epoch, step = map(int, name.split("."))
                steps[epoch, step] = client.hgetall(key)
            elif kind == "inventory":
                fields = client.hgetall(key)
                inventory[int(name)] = frozenset(fields) - {"host", "epoch"}
            elif kind == "backup":
                fields = client.hgetall(key)
                backups[name] = fields.get("state", "")
                if fields.get("reason"):
                    troubles[name] = fields["reason"]
            elif kind == "node":
                sessions[int(name)] = client.hget(key, "state") or ""
        keep = client.hgetall(f"{prefix}keep")
        fence = client.hgetall(f"{prefix}fence")
        return Index(
            fence=tuple(int(fence.get(part, 0)) for part in ("token", "epoch", "number")),
            epoch=client.hgetall(f"{prefix}epoch"),
            steps=steps,
            upto=_line(keep.get("upto")),
            keep=frozenset(filter(None, map(_line, json.loads(keep.get("keep", "[]"))))),
            drop=frozenset(filter(None, map(_line, json.loads(keep.get("drop", "[]"))))),
            inventory=inventory,
            last_backup=client.hget(f"{prefix}lastbackup", "save") or "",
            lease=json.loads(client.get(f"{prefix}lease") or "{}"),
            backups=backups,
            troubles=troubles,
            sessions=sessions,
        )


def read_jobs(url: str, host: str) -> frozenset[str]:
    """Read which jobs a host says that it has to do with."""
    with redis.Redis.from_url(url, decode_responses=True) as client:
        return frozenset(json.loads(client.hget(f"ckpt:host:{host}", "jobs") or "[]"))


def _in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if not path.is_dir())


def _named(path: Path) -> Named:
    told = json.loads(path.read_text())
    name = NAME.fullmatch(path.stem)
    assert name is not None, path
    return Named(
        save=(int(path.parent.name), int(name["step"])),
        rank=int(name["rank"]),
        address=told["tag"]["address"],
        committed=told.get("committed", False),
    )


def _backup(path: Path, ledger: Ledger) -> Backup:
    manifest = _json(path / "MANIFEST.json")
    metas = {int(name["rank"]): meta.read_text() for meta in path.glob("*.meta") if (name := NAME.fullmatch(meta.stem))}
    objects = manifest.get("objects", {})
    return Backup(
        name=path.name,
        order=_line(_json(path / "ORDER.json").get("save")),
        state=manifest.get("state", ""),
        metas=metas,
        contents={data.stem: ledger.whose(data) for data in path.glob("*.data")},
        lacking=[
            name
            for name, facts in objects.items()
            if not (path / name).is_file() or (path / name).stat().st_size != facts["size"]
        ],
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    assert isinstance(found, dict), path
    return found


def _line(told: Any) -> Line | None:
    if isinstance(told, str) and told:
        epoch, _, step = told.partition(".")
        return int(epoch), int(step)
    return (told.get("epoch", 0), told.get("step", 0)) if isinstance(told, dict) else None


def _stamp(told: Any) -> tuple[int, ...]:
    if isinstance(told, str):
        return tuple(map(int, told.split(".")))
    return tuple(told.get(part, 0) for part in ("token", "epoch", "number")) if isinstance(told, dict) else ()
