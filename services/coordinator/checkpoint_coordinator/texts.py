"""The texts of records, made once a record; pure.

The coordinator says at every look what Redis should hold. Records are never changed, only replaced, so a key whose
records are the very objects of last time has the very fields of last time.
"""

from collections.abc import Callable

__all__ = ["Texts"]

Fields = dict[str, str]


class Texts:
    """Fields by key, and the records of which they were made."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[tuple[object, ...], Fields]] = {}
        self._asked: set[str] = set()

    def of(self, key: str, records: tuple[object, ...], make: Callable[[], Fields]) -> Fields:
        """Return the key's fields; `make` is called where one of the records is another object than last time."""
        self._asked.add(key)
        known = self._made.get(key)
        if known is not None and len(known[0]) == len(records) and all(map(_is, known[0], records)):
            return known[1]
        fields = make()
        self._made[key] = (records, fields)
        return fields

    def forget(self) -> None:
        """Let go of what nobody asked for since the last call."""
        if len(self._made) > len(self._asked):
            self._made = {key: made for key, made in self._made.items() if key in self._asked}
        self._asked = set()


def _is(one: object, other: object) -> bool:
    return one is other
