"""Bytes that must not be printed, pickled or compared in variable time."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import NoReturn

Random = Callable[[int], bytes]
"""Source of so many unpredictable bytes, as ``os.urandom`` is."""


class Secret:
    """Key material. ``reveal()`` is the one way out and easy to grep for.

    Refuses ``repr`` of its content, pickling and copying into another process; compares in
    constant time.
    """

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        """Take a copy of secret bytes.

        Raises:
            TypeError: The value is not bytes. ``bytes`` would make zeros of a number.
        """
        if not isinstance(value, bytes | bytearray | memoryview):
            raise TypeError(f"{type(self).__name__} holds bytes, not {type(value).__name__}")
        self._value = bytes(value)

    def reveal(self) -> bytes:
        """The raw bytes, for a cryptographic primitive only."""
        return self._value

    def __len__(self) -> int:
        return len(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._value, other._value)

    __hash__ = None  # type: ignore[assignment]  # a secret is no dictionary key

    def __repr__(self) -> str:
        return f"{type(self).__name__}(<{len(self._value)} secret bytes>)"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"{type(self).__name__} must not be pickled: it holds key material")
