"""A cursor over bytes of strangers: every length is checked before anything is taken."""

from __future__ import annotations

from typing import Literal

from sealtrain.attest.errors import EvidenceMalformed


class Octets:
    """Reads one structure from front to back.

    Args:
        data: The whole structure.
        what: Its name, for messages.
        order: Byte order of its numbers: TPM structures are big-endian, TCG logs little-endian.
    """

    __slots__ = ("_at", "_data", "_order", "_what")

    def __init__(self, data: bytes, what: str, order: Literal["big", "little"] = "big") -> None:
        self._data = data
        self._what = what
        self._order = order
        self._at = 0

    @property
    def left(self) -> int:
        """How many bytes were not read yet."""
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes.

        Raises:
            EvidenceMalformed: So many are not left.
        """
        if count > self.left:
            raise self.malformed_error("it is truncated")
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, size: int) -> int:
        """An unsigned number of ``size`` bytes."""
        return int.from_bytes(self.take(size), self._order)

    def read_sized(self, size: int, most: int) -> bytes:
        """Bytes behind their length, which is a number of ``size`` bytes and at most ``most``.

        Raises:
            EvidenceMalformed: Longer, or truncated.
        """
        length = self.number(size)
        if length > most:
            raise self.malformed_error(f"a field is longer than {most} bytes")
        return self.take(length)

    def finish(self) -> None:
        """Nothing may follow.

        Raises:
            EvidenceMalformed: Bytes are left.
        """
        if self.left:
            raise self.malformed_error("bytes follow it")

    def malformed_error(self, why: str) -> EvidenceMalformed:
        """The error that says why the structure is refused."""
        return EvidenceMalformed(f"{self._what} is malformed: {why}", check=self._what)
