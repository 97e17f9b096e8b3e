"""Pure: when a program that ended is started again."""

import msgspec

from checkpoint_replicator.errors import ConfigError, PermanentError

__all__ = ["Restarts", "exit_text"]

HOPELESS = frozenset({ConfigError.exit_code})
"""Exit codes after which the same start would end the same way: nobody but a person can help."""


class Restarts(msgspec.Struct):
    """Delays that double from `first` to `most` seconds; a life of `calm` seconds makes the next one `first` again."""

    first: float = 0.25
    most: float = 10.0
    calm: float = 15.0
    count: int = 0
    """Restarts so far."""
    _delay: float = 0.0

    def ended(self, code: int, lived: float) -> float | None:
        """Say in how many seconds to start again; None: never.

        Args:
            code: the exit code, negative for a signal.
            lived: how long the program ran, in seconds.
        """
        if code in HOPELESS:
            return None
        self._delay = self.first if lived >= self.calm or not self._delay else min(self._delay * 2, self.most)
        self.count += 1
        return self._delay


def exit_text(code: int) -> str:
    """Say how a program ended, in words."""
    if code < 0:
        return f"was killed by signal {-code}"
    if code == ConfigError.exit_code:
        return f"ended with exit code {code} (its configuration is wrong)"
    if code == PermanentError.exit_code:
        return f"ended with exit code {code} (an error that it could not handle)"
    return f"ended with exit code {code}"
