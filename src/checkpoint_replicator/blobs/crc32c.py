"""CRC-32C as Cloud Storage writes it; the one door to google-crc32c."""

import base64

import google_crc32c

__all__ = ["Crc32c", "crc32c_of"]


class Crc32c:
    """A running sum."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, data: bytes) -> None:
        """Add bytes. Only `bytes` will do: the C code takes no memoryview."""
        self._value = google_crc32c.extend(self._value, data)

    @property
    def text(self) -> str:
        """Base64 of the big-endian sum, as in Cloud Storage."""
        return base64.b64encode(self._value.to_bytes(4, "big")).decode()


def crc32c_of(data: bytes) -> str:
    """Return the sum of the bytes as base64."""
    total = Crc32c()
    total.update(data)
    return total.text
