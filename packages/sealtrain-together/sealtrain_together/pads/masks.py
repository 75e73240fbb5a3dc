"""Streams of uniform field elements, each row read once (spec/one-time-pads.md §4).

A stream goes forward only and keeps its place in memory. What could make two readers of one stream
is refused: storing its secret, pickling it, reading it in a forked process. A copy of it is itself.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from typing import Any, Final, Self

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from sealtrain.base.process_state import OneProcess
from sealtrain.base.secret import Secret
from sealtrain.errors import PadsRefused
from sealtrain.keys.derive import derive
from sealtrain_together.channel.streams import Buffer
from sealtrain_together.pads.field import PRIME, centre_words
from sealtrain_together.pads.matrix import Direction, PublicMatrix
from sealtrain_together.pads.tensors import octets

MAX_WORDS: Final = 1 << 36
_WORD_BYTES: Final = 4
_BLOCK_BYTES: Final = 16
_ZEROS: Final = memoryview(bytes(1 << 17))

Keystream = Callable[[int], Buffer]


def draw_secret() -> Secret:
    """32 bytes of the operating system, for one beginning."""
    return Secret(secrets.token_bytes(32))


def aes_ctr(key: Secret) -> Keystream:
    """The next bytes of AES-256-CTR from block zero on (spec/one-time-pads.md §4)."""
    cipher = Cipher(algorithms.AES(key.reveal()), modes.CTR(bytes(_BLOCK_BYTES)))
    encryptor = cipher.encryptor()

    def encrypt_zeros(size: int) -> Buffer:
        # The library wants room for a block more than it writes; the next run is written over it.
        buffer = octets(torch.empty(size + _BLOCK_BYTES, dtype=torch.uint8))
        for begin in range(0, size, len(_ZEROS)):
            encryptor.update_into(_ZEROS[: size - begin], buffer[begin:])
        return buffer[:size]

    return encrypt_zeros


class MaskStream:
    """Uniform centred elements from a key, row after row.

    Args:
        key: 32 bytes, for this stream alone.
        width: Elements of a row.
        max_words: Of the cipher's output; then the stream ends.
        keystream: Makes the function that gives the cipher's next bytes.
    """

    def __init__(
        self,
        key: Secret,
        width: int,
        *,
        max_words: int = MAX_WORDS,
        keystream: Callable[[Secret], Keystream] = aes_ctr,
    ) -> None:
        self._encrypted = keystream(key)
        self._width = width
        self._words_left = max_words
        self._process = OneProcess("pads", refusal=PadsRefused)
        self.position = 0
        """Rows read so far."""

    def rows(self, count: int) -> torch.Tensor:
        """The next rows: int32, (count, width).

        Raises:
            PadsRefused: The stream is at its end, or another process began it.
        """
        self._process.require()
        wanted = count * self._width
        words = self._words(wanted)
        while words.numel() < wanted:  # a word in 2**31 is skipped
            words = torch.cat([words, self._words(wanted - words.numel())])
        self.position += count
        return centre_words(words).view(count, self._width)

    def _words(self, count: int) -> torch.Tensor:
        if count > self._words_left:
            raise PadsRefused(
                "a stream of pads is at its end",
                check="pads",
                hint="begin again: every beginning has its own pads",
            )
        self._words_left -= count
        return accept_words(self._encrypted(_WORD_BYTES * count))

    def __reduce_ex__(self, protocol: object) -> Any:
        raise TypeError("a stream of pads must not be pickled: it would be read twice")


def accept_words(words: Buffer) -> torch.Tensor:
    """Words with their top bit cleared, without those that equal p: int32 in [0, p)."""
    elements = torch.frombuffer(words, dtype=torch.int32).bitwise_and_(PRIME)
    if elements.numel() and int(elements.max()) == PRIME:
        elements = elements[elements != PRIME]
    return elements


class OnePlace:
    """Whatever holds a place in streams of pads: never copied, never pickled."""

    def __deepcopy__(self, memo: object) -> Self:
        """A copied model goes on in the same streams: two places in one would be reuse."""
        return self

    def __copy__(self) -> Self:
        return self

    def __reduce_ex__(self, protocol: object) -> Any:
        raise TypeError("pads must not be pickled: they would be used twice")


class Masks(OnePlace):
    """All streams of one secret, each at its place.

    Args:
        secret: 32 bytes that nothing else uses.
        purpose: ``otp-pad``.
    """

    def __init__(self, secret: Secret, purpose: str = "otp-pad") -> None:
        self._secret = secret
        self._purpose = purpose
        self._streams: dict[tuple[bytes, Direction], MaskStream] = {}
        self._process = OneProcess("pads", refusal=PadsRefused)
        self._lock = threading.Lock()

    def position(self, matrix: PublicMatrix, direction: Direction) -> int:
        """Rows of that stream that were read.

        Raises:
            PadsRefused: This process was forked from the one that began.
        """
        self._process.require()
        with self._lock:
            return self._stream(matrix, direction).position

    def rows(
        self, matrix: PublicMatrix, direction: Direction, count: int
    ) -> tuple[int, torch.Tensor]:
        """Number of the first of the next rows, and the rows.

        Raises:
            PadsRefused: As ``position``, or the stream is at its end.
        """
        self._process.require()
        with self._lock:
            stream = self._stream(matrix, direction)
            first = stream.position
            return first, stream.rows(count)

    def _stream(self, matrix: PublicMatrix, direction: Direction) -> MaskStream:
        name = (matrix.digest, direction)
        if name not in self._streams:
            key = derive(self._secret, self._purpose, matrix.digest.hex(), direction)
            self._streams[name] = MaskStream(key, matrix.widths(direction)[0])
        return self._streams[name]
