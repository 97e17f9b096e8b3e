"""Runs a program on a leash: it is killed when the process that started it dies, however that dies.

Run as a script, not imported: `python -I -S leash.py PARENT PROGRAM [ARGUMENT...]`. The kernel's parent-death signal
survives `exec`, so the program keeps its pid and knows nothing of the leash.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

__all__ = ["leashed"]

PR_SET_PDEATHSIG: Final = 1
PARENT_GONE: Final = 75


def leashed(command: Sequence[str]) -> tuple[str, ...]:
    """Return the command that runs `command` on a leash held by this process.

    The first element must be a path: no search along PATH is made.
    """
    return (sys.executable, "-I", "-S", __file__, str(os.getpid()), *command)


def main(arguments: Sequence[str]) -> NoReturn:
    """Ask for the signal, look whether the parent is still there, and become the program."""
    parent, *command = arguments
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != int(parent):  # it died before the signal was asked for
        sys.exit(PARENT_GONE)
    os.execv(command[0], command)  # noqa: S606  # becoming the program, without a shell, is the purpose


if __name__ == "__main__":
    main(sys.argv[1:])
