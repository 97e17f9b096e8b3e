"""Every error of ours, and the exit code that a process ends with when it meets one at the top.

- `ReplicatorError` 70
  - `PermanentError` 70: do not try again
    - `ConfigError` 78: a key, flag or variable is wrong; names file, key, expected and found
    - `ProtocolError` 76: bytes from outside do not parse
    - `CorruptError` 65: bytes differ from their address
    - `UnsupportedError` 65: a save holds what cannot be replicated (link, socket, device)
    - `RefusedError` 77: a newer stamp or session exists, or an order of people cannot be fulfilled
    - `UnknownJobError` 66: no job of this name is known
  - `TransientError` 75: try again, on the caller's clock
    - `NoRoomError` 75: bytes or inodes are missing
    - `UnreachableError` 75: Redis, the backup store or a peer does not answer
      - `NoServerError` 75: nobody answers at the address of Redis
    - `BusyError` 75: somebody else holds the lock
    - `NoJobError` 75: Redis knows no job at all, for now
"""

from typing import ClassVar

__all__ = [
    "BusyError",
    "ConfigError",
    "CorruptError",
    "NoJobError",
    "NoRoomError",
    "NoServerError",
    "PermanentError",
    "ProtocolError",
    "RefusedError",
    "ReplicatorError",
    "TransientError",
    "UnknownJobError",
    "UnreachableError",
    "UnsupportedError",
]


class ReplicatorError(Exception):
    """Root of the tree; the message says what was expected and what was found."""

    exit_code: ClassVar[int] = 70


class PermanentError(ReplicatorError):
    """Trying again will not help."""


class ConfigError(PermanentError):
    """A configuration key, flag or environment variable is wrong."""

    exit_code = 78


class ProtocolError(PermanentError):
    """Bytes from the network, from Redis or from a file do not parse."""

    exit_code = 76


class CorruptError(PermanentError):
    """Bytes differ from their address.

    Attributes:
        kind: `corrupt`, or `mutated` where the bytes changed under the reader; the words of a node's faults.
    """

    exit_code = 65

    def __init__(self, message: str, *, kind: str = "corrupt") -> None:
        super().__init__(message)
        self.kind = kind


class UnsupportedError(PermanentError):
    """A save holds something that has no place in a tree: a link, a socket or a device."""

    exit_code = 65


class RefusedError(PermanentError):
    """A newer stamp, lease or session exists, or an order of people cannot be fulfilled."""

    exit_code = 77


class UnknownJobError(PermanentError):
    """No job of this name is known; the message names those that are."""

    exit_code = 66


class TransientError(ReplicatorError):
    """Trying again later may help; the caller owns the clock."""

    exit_code = 75


class NoRoomError(TransientError):
    """The ramdisk lacks bytes or inodes; `lacking` says how many bytes, where that is known."""

    def __init__(self, text: str, lacking: int = 0) -> None:
        super().__init__(text)
        self.lacking = lacking


class UnreachableError(TransientError):
    """Redis, the backup store or a peer does not answer."""


class NoServerError(UnreachableError):
    """Nobody answers at the address of Redis."""


class BusyError(TransientError):
    """Somebody else holds the lock."""


class NoJobError(TransientError):
    """Redis knows no job at all: it was emptied, or no trainer came yet; either way that changes by itself."""
