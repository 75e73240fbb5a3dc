"""Overwriting a chunk, and the proof of it (spec/travelling.md §4).

The range is overwritten with the keystream of a seed, which the accelerator then forgets. Only
after that it gets a nonce, and answers with the fingerprint of the range under it. Zeros could be
answered for without a look at the range; a keystream without its seed cannot.
"""

from __future__ import annotations

from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from sealtrain.base.encoding import from_hex
from sealtrain.base.fingerprint import PIECE_BYTES, ZEROS, Fingerprint, pieces


def overwrite(view: memoryview, seed: bytes) -> None:
    """Overwrite a range with the keystream of a seed, in place.

    Args:
        view: The range.
        seed: 32 bytes that no other range was overwritten with.
    """
    stream = _keystream(seed)
    for start, length in pieces(len(view)):
        stream.update_into(ZEROS[:length], view[start : start + length])


def fingerprint_of(view: memoryview, nonce: bytes) -> str:
    """What lies in a range: its fingerprint under a nonce of 32 bytes, hex."""
    found = Fingerprint(nonce)
    for start, length in pieces(len(view)):
        found.take(view[start : start + length])
    return found.digest().hex()


def proof_of(seed: str, nonce: str, size: int) -> str:
    """What ``prove`` answers for a range of that many bytes that was overwritten.

    Args:
        seed: Of the keystream, 64 hex digits.
        nonce: Of the challenge, 64 hex digits.
        size: Bytes of the range.
    """
    expected, stream = Fingerprint(from_hex(nonce)), _keystream(from_hex(seed))
    piece = memoryview(bytearray(min(size, PIECE_BYTES)))
    for _, length in pieces(size):
        stream.update_into(ZEROS[:length], piece[:length])
        expected.take(piece[:length])
    return expected.digest().hex()


def _keystream(seed: bytes) -> CipherContext:
    return Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()
