"""Repeat what came from outside in a text of ours: short, in one line, and such that every reader can take it."""

from typing import Final

__all__ = ["SHOWN", "quote"]

SHOWN: Final = 300
"""Characters of a foreign text that an error, a log line or a report repeats."""


def quote(text: str, most: int = SHOWN) -> str:
    """Return the text without line breaks, control characters and halves of characters, cut after `most` characters.

    What cannot be shown stands as an escape: file names may hold any bytes, and a text from a peer may be megabytes.
    """
    cut = text[:most]
    if not cut.isprintable():
        cut = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in cut)
    return f"{cut}… ({len(text)} characters)" if len(text) > most else cut
