"""Configuration: flag over environment over TOML file over default, as one frozen Struct per service.

Keys are kebab-case in the file (`ramdisk-size`), `--ramdisk-size` as a flag and `CHECKPOINT_RAMDISK_SIZE` in the
environment. Every error is a `ConfigError` that names where the value came from, the key, what was expected and what
was found.
"""

import inspect
import os
import re
import socket
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast, get_args, get_origin

import msgspec

from checkpoint_replicator.errors import ConfigError
from checkpoint_replicator.ids import Host
from checkpoint_replicator.quote import quote
from checkpoint_replicator.times import Times

__all__ = [
    "PREFIX",
    "NodeConfig",
    "ServiceConfig",
    "Size",
    "default_host",
    "environment_name",
    "load",
    "meanings",
    "parse_size",
    "parse_span",
]

Config = TypeVar("Config", bound="ServiceConfig")

PREFIX: Final = "CHECKPOINT_"
"""What the environment variables of all keys begin with."""
SOCKET_PATH_LIMIT: Final = 107
"""Longest path of a Unix socket in bytes (`sun_path`, without its closing zero)."""

MOST_SIZE: Final = 1 << 53
"""No size reaches this many bytes: no number in a message does."""
MOST_CONFIG: Final = 1 << 16
"""Bytes of a configuration file."""

_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(B|[KMGT]i?B)")
_ATTRIBUTE: Final = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
_SIZE_UNITS: Final = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12} | {
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_PORT: Final = re.compile(r"[0-9]{1,5}")
_SPAN: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(ms|s|min|h)")
_SPAN_UNITS: Final = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}


class Size(int):
    """A number of bytes that a person writes with its unit: `64MiB`."""

    __slots__ = ()

    def __str__(self) -> str:
        for unit in ("TiB", "GiB", "MiB", "KiB"):
            if self and self % _SIZE_UNITS[unit] == 0:
                return f"{self // _SIZE_UNITS[unit]}{unit}"
        return f"{int(self)}B"


def parse_size(text: str) -> Size:
    """Read a size; the unit is mandatory: B, KB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB (of 1024).

    Raises:
        ValueError: another form.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"expected a size with its unit, such as 64MiB or 1.5GB, found {quote(text, 60)!r}")
    size = float(match[1]) * _SIZE_UNITS[match[2]]
    if size >= MOST_SIZE:
        raise ValueError(f"expected a size below {Size(MOST_SIZE)}, found {quote(text, 60)!r}")
    return Size(round(size))


def parse_span(text: str) -> float:
    """Read a span of time in seconds; the unit is mandatory: ms, s, min, h.

    Raises:
        ValueError: another form.
    """
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"expected a time with its unit, such as 500ms, 20s, 5min or 1h, found {quote(text, 60)!r}")
    return float(match[1]) * _SPAN_UNITS[match[2]]


def default_host() -> Host:
    """Return machine name and boot id, for where nobody gave the machine a name of its own."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    suffix = boot.read_text().strip()[:8] if boot.exists() else "0"
    return Host(f"{socket.gethostname()}-{suffix}")


class ServiceConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """What every service has.

    Attributes:
        host: name of this machine in the cluster, the same for its services; without it machine name and boot id.
        redis: URL of Redis.
        run: directory of the Unix sockets and the health file; a service without a ramdisk needs none.
        bind: address that TCP sockets bind to.
        advertise: address that others reach them at, where it differs from `bind`.
        health: `address:port` of `/healthz`, `/readyz` and `/metrics`; port 0 is chosen by the system.
        log_level: what is logged.
        log_format: `json` for machines, `console` for people.
        input_log: file for what the service's machines are told, so that their decisions can be made again; none.
        times: overrides of rows of the table of times.
    """

    host: Host = msgspec.field(default_factory=default_host)
    redis: str = "redis://127.0.0.1:6379/0"
    run: Path | None = None
    bind: str = "127.0.0.1"
    advertise: str | None = None
    health: str = "127.0.0.1:0"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "console"] = "json"
    input_log: Path | None = None
    times: Times = Times()

    @property
    def run_directory(self) -> Path | None:
        """Where sockets and the health file lie; None without."""
        return self.run

    @property
    def health_address(self) -> tuple[str, int]:
        """`health` taken apart.

        Raises:
            ConfigError: it is not `address:port`.
        """
        host, colon, port = self.health.rpartition(":")
        if not colon or _PORT.fullmatch(port) is None or int(port) >= 1 << 16:
            raise ConfigError(f"health: expected address:port, found {quote(self.health)!r}")
        return host.strip("[]"), int(port)

    @property
    def reachable(self) -> str:
        """The address that others reach this service's TCP sockets at."""
        return self.advertise or self.bind


class NodeConfig(ServiceConfig, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """What the three services of a node have beside it.

    Attributes:
        ramdisk: the directory that trainer and services share.
        ramdisk_size: how much of it may be used, where it is a plain directory without a size of its own.
    """

    ramdisk: Path
    ramdisk_size: Size | None = None

    @property
    def run_directory(self) -> Path:
        """Where this node's Unix sockets lie."""
        return self.run or self.ramdisk / ".replicator" / "run"

    def endpoint(self, service: str) -> str:
        """Return the endpoint of a service of this node: `ipc://<run>/<service>.sock`.

        Raises:
            ConfigError: the path is longer than a Unix socket may have.
        """
        path = self.run_directory.absolute() / f"{service}.sock"
        length = len(os.fsencode(path))
        if length > SOCKET_PATH_LIMIT:
            raise ConfigError(
                f"run: the socket {path} has {length} bytes, expected at most {SOCKET_PATH_LIMIT}; "
                "set `run` to a shorter directory"
            )
        return f"ipc://{path}"


def meanings(kind: type[ServiceConfig]) -> dict[str, str]:
    """Return what the docstrings of a configuration and its bases say of each key."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        section = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")[2].partition("\n\n")[0]
        for name, text in _ATTRIBUTE.findall(section):
            found[name.replace("_", "-")] = " ".join(text.split())
    return found


def environment_name(key: str) -> str:
    """Return the environment variable of a key: `ramdisk-size` is `CHECKPOINT_RAMDISK_SIZE`."""
    return PREFIX + key.upper().replace("-", "_")


def load(
    kind: type[Config],
    path: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, str | None] | None = None,
) -> Config:
    """Build the configuration from a TOML file, the environment and flags (by key; None means not given).

    Raises:
        ConfigError: names the source, the key, what was expected and what was found.
    """
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    values: dict[str, Any] = {}
    for source, key, raw in _sources(path, environ or {}, flags or {}, tuple(fields)):
        field = fields.get(key)
        if field is None:
            raise ConfigError(f"{quote(source)}: unknown key; known are {', '.join(fields)}")
        values[field.name] = _convert(source, raw, field.type)
    for field in fields.values():
        if field.required and field.name not in values:
            raise ConfigError(
                f"{field.encode_name}: required; give --{field.encode_name}, {environment_name(field.encode_name)} "
                "or the key in the file"
            )
    return kind(**values)


def _sources(
    path: Path | None, environ: Mapping[str, str], flags: Mapping[str, str | None], keys: tuple[str, ...]
) -> Iterator[tuple[str, str, object]]:
    """Yield (where, key, raw value), the weakest source first."""
    if path is not None:
        for key, value in _read(path).items():
            yield f"{path}: {key}", key, value
    for key in keys:
        text = environ.get(environment_name(key), "")
        if text:  # an empty variable is one that compose files and shells left unset
            yield environment_name(key), key, text
    for key, flag in flags.items():
        if flag is not None:
            yield f"--{key}", key, flag


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(MOST_CONFIG + 1)
        if len(text) > MOST_CONFIG:
            raise ConfigError(f"{path}: has more than {MOST_CONFIG} bytes")
        return tomllib.loads(text.decode())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is not TOML: {quote(str(error))}") from error


def _convert(source: str, raw: object, kind: Any) -> object:
    from_text = isinstance(raw, str)
    try:
        if kind is Times:
            return _times(raw)
        if from_text and getattr(kind, "__origin__", None) in {tuple, list}:
            raw = [part.strip() for part in cast("str", raw).split(",") if part.strip()]
        return msgspec.convert(raw, kind, strict=not from_text, dec_hook=_decode)
    except (ValueError, TypeError, OverflowError) as error:
        raise ConfigError(f"{quote(source)}: {quote(_explain(str(error), raw, kind))}") from error
    except ConfigError as error:
        raise ConfigError(f"{quote(source)}: {quote(str(error).removeprefix('times: '))}") from error


def _explain(text: str, raw: object, kind: Any) -> str:
    if get_origin(kind) is Literal:
        text = f"expected one of {', '.join(map(str, get_args(kind)))}"
    elif kind is int:
        text = "expected a whole number"
    text = text[:1].lower() + text[1:]
    return text if "found" in text else f"{text}, found {raw!r}"


def _times(raw: object) -> Times:
    """Read `{lost = "20s", ...}`, or `lost=20s,...` from a flag or variable."""
    if isinstance(raw, str):
        parts = [part.partition("=") for part in raw.split(",") if part.strip()]
        raw = {key.strip(): value.strip() for key, _, value in parts}
    if not isinstance(raw, dict):
        raise TypeError(f"expected a table of times, found {raw!r}")
    spans: dict[str, float] = {}
    for key, value in raw.items():
        if not isinstance(value, str):
            raise ConfigError(f"{key}: expected a time with its unit, such as 20s, found {value!r}")
        try:
            spans[key] = parse_span(value)
        except ValueError as error:
            raise ConfigError(f"{key}: {error}") from error
    return msgspec.convert(spans, Times)


def _decode(kind: type, value: object) -> object:
    if not isinstance(value, str):
        raise TypeError(f"expected a text in quotes, found {value!r}")
    if kind is Size:
        return parse_size(value)
    if kind is Path:
        try:
            return Path(value).expanduser()
        except RuntimeError as error:
            raise ValueError(f"expected a path, found {quote(value)!r}, whose user is not known here") from error
    raise NotImplementedError(f"no rule for the type {kind}")
